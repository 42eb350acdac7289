// Calls of kernels that a recorder writes down, without Python.
#include "recorded.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#ifndef NDEBUG
#error "torch is built with it, and a RecordFunction is laid out otherwise without: see flags.txt"
#endif

namespace op_tools {
namespace {

// Calls `take` with the tensors of a value, in order.
template <typename Take>
void each_tensor(const c10::IValue& value, Take&& take) {
  if (value.isTensor()) {
    take(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, take);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, take);
  }
}

bool is_under_mode() {
  using c10::DispatchKey;
  const auto on = c10::impl::tls_local_dispatch_key_set().included_;
  return on.has(DispatchKey::Python) || on.has(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool put_head(Raw& to, const Decision& decision, c10::DeviceType kind) {
  if (decision.heads != nullptr) {
    const auto head = decision.heads->head(decision.name, kind, !is_observing(), decision.count);
    if (head) to.head(*head);
    return head.has_value();
  }
  py::gil_scoped_acquire gil;
  const py::object head = py::handle(decision.head)(c10::DeviceTypeName(kind, true));
  if (!head.is_none()) to.begun(head.cast<std::string>());
  return !head.is_none();
}

// What still waits to be reduced is, before a call that writes it; what is not torch's own may write all.
void before_write(Recorder& recorder, Batch::Hold& hold, const Given& given) {
  if (given.held == 0) return;
  for (const auto& one : given.all)
    if (one.held) recorder.before_write(hold, *one.tensor);
}

}  // namespace

Here& here() {
  static thread_local Here found;
  return found;
}

namespace {

struct Spare {
  c10::SmallVector<void*, 4> all;
  ~Spare() {
    for (void* memory : all) ::operator delete(memory);
  }
};
thread_local Spare spare;

}  // namespace

void* Recorded::operator new(size_t size) {
  if (spare.all.empty()) return ::operator new(size);
  void* memory = spare.all.back();
  return spare.all.pop_back(), memory;
}

void Recorded::operator delete(void* memory) {
  if (spare.all.size() < 4) spare.all.push_back(memory);
  else ::operator delete(memory);
}

bool Quiet::alone() {
  if (!is_observing()) return false;
  const auto found = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return found && found->callbacks_.size() == 1;
}

bool Context::keeps_to_itself() const { return of != Of::record || !static_cast<const Recorded*>(this)->decision->of_lists; }

static Recorder::Way way_of(Recorder& recorder, const at::Tensor& tensor) {
  try {
    return recorder.way(tensor);
  } catch (const std::exception&) {  // Python will meet it as well
    return Recorder::Way::none;
  }
}

void Given::take(const at::Tensor& tensor, size_t argument) {  // hot path
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
  const bool declared = decision_.writes(argument), may = declared || !decision_.of_torch;
  const auto way = tensor.is_inference() ? Recorder::Way::none : way_of(*decision_.recorder, tensor);
  all.push_back({&tensor, way, declared, may});
  held += may;
  simple = simple && way != Recorder::Way::none;
  reached = reached || way != Recorder::Way::device;
  const auto type = tensor.device().type();
  on_device = on_device || type != c10::DeviceType::CPU;
  if (!of_tensors_ || *of_tensors_ == c10::DeviceType::CPU) of_tensors_ = type;
}

void Given::take(c10::Device device) {
  on_device = on_device || !device.is_cpu();
  if (!named_) named_ = device.type();
}

void Given::take(const c10::IValue& value, size_t argument) {
  if (value.isDevice()) return take(value.toDevice());
  if (value.isList()) all.reserve(all.size() + value.toListRef().size());
  each_tensor(value, [&](const at::Tensor& tensor) { take(tensor, argument); });
}

Results results_of(Values outputs) {
  Results made;
  for (const auto& output : outputs) each_tensor(output, [&](const at::Tensor& tensor) { put_result(made, tensor); });
  return made;
}

namespace {

Begun begun(Here& now, const Given& given, Recorded& call) {
  const Decision& decision = *call.decision;
  Recorder& recorder = *decision.recorder;
  const auto kind = given.kind();
  if (!kind || !given.simple || is_under_mode()) return Begun::for_python;
  now.raw.clear();
  auto hold = recorder.hold();
  if (!put_head(now.raw, decision, *kind)) {
    before_write(recorder, hold, given);
    return Begun::unwanted;
  }
  for (size_t i = 0; i < given.all.size(); i++) {
    const auto& one = given.all[i];
    recorder.tensor(hold, one.way, now.raw, *one.tensor);
    // torch's own say what they write; of others, autograd's count is compared
    if (one.held) now.held.push_back({*one.tensor, static_cast<uint32_t>(i), version_of(*one.tensor), one.declared});
  }
  if (recorder.settles()) hold.free(), recorder.settle();
  before_write(recorder, hold, given);
  hold.free();
  now.inside = &decision.learned;
  if (decision.of_lists && given.reached) now.listed = &call;
  else if (now.inside->nests) call.quiet.emplace();
  return Begun::recorded;
}

void ended(Here& now, Recorded& call, const Results& results) {
  Recorder& recorder = *call.decision->recorder;
  Raw& to = now.raw;
  auto hold = recorder.hold();
  const auto put = [&](const at::Tensor& tensor) { recorder.tensor(hold, recorder.way(tensor), to, tensor, call.warm.get()); };
  const auto returns = [&](const at::Tensor& tensor) {
    return std::any_of(results.begin(), results.end(), [&](const at::Tensor* other) { return other->is_same(tensor); });
  };
  for (auto& one : now.held) {
    if (!one.declared && version_of(one.tensor) == one.version) continue;
    recorder.forget(hold, one.tensor);
    one.changed = !returns(one.tensor);
  }
  to.outputs();
  for (const auto* result : results) put(*result);
  for (const auto& one : now.held) {
    if (!one.changed) continue;
    to.mutated(one.place);
    put(one.tensor);
  }
  to.end();
  hold.free();
  recorder.settle();
  recorder.add(to);
}

}  // namespace

Begun record(Here& now, const Given& given, Recorded& call) {
  try {
    return begun(now, given, call);
  } catch (const std::exception& error) {  // it must not kill the program
    now.held.clear();
    call.decision->recorder->report(call.decision->function, error.what());
    return Begun::unwanted;
  }
}

void recorded(Here& now, Recorded& call, const Results* results) {
  now.listed = nullptr;
  now.inside = nullptr;
  try {
    if (results != nullptr) ended(now, call, *results);
  } catch (const std::exception& error) {
    call.decision->recorder->report(call.decision->function, error.what());
  }
  now.held.clear();
}

void recorded(ListedPart&, Values outputs) {
  Recorded* call = std::exchange(here().listed, nullptr);
  Recorder& recorder = *call->decision->recorder;
  try {
    if (call->warm == nullptr) call->warm = std::make_unique<Warm>();
    for (const auto* result : results_of(outputs)) recorder.warm(*call->warm, *result);
  } catch (const std::exception& error) {
    recorder.report(call->decision->function, error.what());
  }
  here().listed = call;
}

}  // namespace op_tools
