// A layer of torch's dispatcher below autograd: calls of kernels come by, in threads that have its key.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "recorded.h"

namespace op_tools {

// A key between autograd's and those of devices that torch itself has no use for.
constexpr c10::DispatchKey kLayer = c10::DispatchKey::Fake;
const auto kBelow = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kLayer);

bool is_layered();

// The layer for any operator, with its arguments in boxes.
void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// An operator that is met with its arguments as they are.
struct Operator {
  Operator(const char* name, const char* overload)
      : op(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), slot(slot_of(op.schema().name().c_str())) {}

  const c10::OperatorHandle op;
  Slot& slot;
};

// A call of one: looked at before, recorded after it. Small where nobody looks.
class Met {
 public:
  explicit Met(const Operator& op);
  ~Met() {
    if (looked_ != nullptr) close();
  }
  Met(const Met&) = delete;

  Given* given() { return looked_ != nullptr ? &looked_->given : nullptr; }  // null: nobody asks what it is given
  void begin();                                                               // all is
  bool is_boxed() const { return way_ == Way::boxed; }                        // it goes the way of any operator
  bool is_recorded() const { return way_ == Way::recorded; }
  void end(const Results& results);  // unless it raised

 private:
  enum class Way : uint8_t { passed, boxed, recorded };
  struct Looked {
    Looked(Slot::Use decision, Here& now) : call(std::move(decision)), given(*call.decision, now.given) {}
    Recorded call;
    Given given;
    std::optional<c10::impl::ExcludeDispatchKeyGuard> alone;
  };
  void close();

  Way way_ = Way::passed;
  Here& now_;
  Looked* looked_ = nullptr;
  alignas(Looked) std::byte memory_[sizeof(Looked)];
};

}  // namespace op_tools
