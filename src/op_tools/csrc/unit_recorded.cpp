// Calls of kernels that a recorder writes down, without Python.
#include "recorded.h"

#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#ifndef NDEBUG
#error "torch is built with it, and a RecordFunction is laid out otherwise without: see flags.txt"
#endif

namespace op_tools {
namespace {

// Calls `take` with the tensors of a value, in order; a number that torch has wrapped is none, in Python neither.
template <typename Take>
void each_tensor(const c10::IValue& value, Take&& take) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) take(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, take);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, take);
  }
}

struct Given {
  struct One {
    const at::Tensor* tensor;
    Recorder::Way way;
    bool declared, held;  // the kernel says that it writes it; or it may
  };
  c10::SmallVector<One, 16> all;
  size_t held = 0;
  std::optional<c10::DeviceType> kind;  // of device, as `call.scan` finds it; an accelerator goes before the CPU
  bool simple = true;                   // a recorder may look at it by itself: plain memory within its reach, and a count of writes
  bool reached = false;                 // the host reads some of it
};

Given given_of(const Decision& decision, Values inputs) {
  Given given;
  Recorder& recorder = *decision.recorder;
  for (size_t i = 0; i < inputs.size() && i < decision.writes.size(); i++) {
    const bool declared = decision.writes[i], held = declared || !decision.of_torch;
    if (inputs[i].isList()) given.all.reserve(given.all.size() + inputs[i].toListRef().size());
    each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      const auto way = tensor.is_inference() ? Recorder::Way::none : recorder.way(tensor);
      given.all.push_back({&tensor, way, declared, held});
      given.held += held;
      given.simple = given.simple && way != Recorder::Way::none;
      given.reached = given.reached || way != Recorder::Way::device;
      if (!given.kind || *given.kind == c10::DeviceType::CPU) given.kind = tensor.device().type();
    });
  }
  for (size_t i = 0; !given.kind && i < inputs.size(); i++) {
    if (inputs[i].isDevice()) given.kind = inputs[i].toDevice().type();
  }
  return given;
}

bool is_under_mode() {
  using c10::DispatchKey;
  const auto on = c10::impl::tls_local_dispatch_key_set().included_;
  return on.has(DispatchKey::Python) || on.has(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool put_head(Raw& to, const Decision& decision, c10::DeviceType kind) {
  if (decision.heads != nullptr) {
    const auto head = decision.heads->head(decision.name, kind, !is_observing());
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

void Decision::read_schema() {
  for (const auto& argument : schema->arguments()) {
    const auto* alias = argument.alias_info();
    writes.push_back(alias != nullptr && alias->isWrite());
  }
  returns = schema->returns().size();
  of_torch = schema->name().starts_with("aten::");
  of_lists = schema->name().starts_with("aten::_foreach_");
}

bool record(std::shared_ptr<const Decision> made, Values inputs, std::unique_ptr<Context>& to) {
  const Decision& decision = *made;
  Recorder& recorder = *decision.recorder;
  const Given given = given_of(decision, inputs);
  if (!given.kind || !given.simple || is_under_mode()) return false;
  Here& now = here();
  now.raw.clear();
  auto hold = recorder.hold();
  if (!put_head(now.raw, decision, *given.kind)) {
    before_write(recorder, hold, given);
    return true;
  }
  auto call = std::make_unique<Recorded>();
  call->held.reserve(given.held);
  for (size_t i = 0; i < given.all.size(); i++) {
    const auto& one = given.all[i];
    recorder.tensor(hold, one.way, now.raw, *one.tensor);
    // torch's own say what they write; of others, autograd's count is compared
    if (one.held) call->held.push_back({*one.tensor, static_cast<uint32_t>(i), version_of(*one.tensor), one.declared});
  }
  if (recorder.settles()) hold.free(), recorder.settle();
  before_write(recorder, hold, given);
  hold.free();
  call->decision = std::move(made);
  now.inside = &call->decision->learned;
  if (call->decision->of_lists && given.reached) now.listed = call.get();
  else if (now.inside->nests) call->quiet.emplace();
  to = std::move(call);
  return true;
}

void recorded(Recorded& call, Values outputs) {
  Recorder& recorder = *call.decision->recorder;
  Raw& to = here().raw;
  auto hold = recorder.hold();
  const auto put = [&](const at::Tensor& tensor) { recorder.tensor(hold, recorder.way(tensor), to, tensor, &call.warm); };
  const auto returns = [&](const at::Tensor& tensor) {
    bool found = false;
    for (const auto& output : outputs) each_tensor(output, [&](const at::Tensor& other) { found = found || other.is_same(tensor); });
    return found;
  };
  c10::SmallVector<const Recorded::Held*, 4> changed;
  for (const auto& one : call.held) {
    if (!one.declared && version_of(one.tensor) == one.version) continue;
    recorder.forget(hold, one.tensor);
    if (!returns(one.tensor)) changed.push_back(&one);
  }
  to.outputs();
  for (const auto& output : outputs) each_tensor(output, put);
  for (const auto* one : changed) {
    to.mutated(one->place);
    put(one->tensor);
  }
  to.end();
  hold.free();
  recorder.settle();
  recorder.add(to);
}

void recorded(ListedPart&, Values outputs) {
  Recorded* call = std::exchange(here().listed, nullptr);
  Recorder& recorder = *call->decision->recorder;
  try {
    for (const auto& output : outputs) each_tensor(output, [&](const at::Tensor& tensor) { recorder.warm(call->warm, tensor); });
  } catch (const std::exception& error) {
    recorder.report(call->decision->function, error.what());
  }
  here().listed = call;
}

}  // namespace op_tools
