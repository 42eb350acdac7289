// A layer of torch's dispatcher below autograd: calls of kernels with their arguments as they are.
#include "layer.h"

namespace op_tools {

Met::Met(const Operator& op) : now_(here()) {  // hot path
  if (!is_layered()) return;
  if (now_.depth > 0 || batch_at_work()) {
    if (now_.depth == 1 && now_.listed != nullptr) way_ = Way::boxed;
    else if (now_.inside != nullptr) now_.inside->nesting();
    return;
  }
  auto decision = op.slot.use([&] { return op.op.operator_name(); });
  if (!decision) return;
  if (decision->recorder == nullptr) {
    way_ = Way::boxed;
    return;
  }
  call_.emplace(std::move(decision));
  given_.emplace(*call_->decision);
  now_.depth++;  // what the tool itself calls
}

void Met::begin() {
  auto begun = Begun::unwanted;
  if (given_->on_device || looks_at_host()) begun = record(now_, *given_, *call_);
  if (begun == Begun::recorded) {
    way_ = Way::recorded;
    if (now_.inside->nests && call_->keeps_to_itself()) alone_.emplace(kLayer);
    return;
  }
  if (begun == Begun::for_python) way_ = Way::boxed;
  call_.reset();
  now_.depth--;
}

void Met::end(const Results* results) {
  way_ = Way::passed;
  alone_.reset();
  recorded(now_, *call_, results);
  call_.reset();
  now_.depth--;
}

}  // namespace op_tools
