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
  looked_ = new (memory_) Looked(std::move(decision), now_);
  now_.depth++;  // what the tool itself calls
}

void Met::begin() {
  auto& [call, given, alone] = *looked_;
  auto begun = Begun::unwanted;
  if (given.on_device || looks_at_host()) begun = record(now_, given, call);
  if (begun == Begun::recorded) {
    way_ = Way::recorded;
    if (now_.inside->nests && call.keeps_to_itself()) alone.emplace(kLayer);
    return;
  }
  if (begun == Begun::for_python) way_ = Way::boxed;
  close();
}

void Met::end(const Results& results) {
  way_ = Way::passed;
  looked_->alone.reset();
  recorded(now_, looked_->call, &results);
}

void Met::close() {
  if (way_ == Way::recorded) recorded(now_, looked_->call, nullptr);
  looked_->~Looked();
  looked_ = nullptr;
  now_.depth--;
}

}  // namespace op_tools
