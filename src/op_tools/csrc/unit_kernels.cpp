// Kernels as they are called. By torch's own observers in every thread, with nothing put in their way;
// or by a layer of the dispatcher below autograd, for threads that have its key: it costs half as
// much, for torch puts nothing together for what is not a kernel.
#include "layer.h"

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

namespace op_tools {
namespace {

// Python's side. before(function, args, kwargs) -> state or None; after(state, results). Held for the
// life of the process, so that no thread outlives them.
PyObject* before_call = nullptr;
PyObject* after_call = nullptr;

std::atomic<bool> host_too{false};
std::optional<at::CallbackHandle> handle;
std::atomic<bool> layered{false}, observing{false};

struct Watched : Context {
  PyObject* state;
  const Slot::Use decision;
  Quiet quiet;
  Watched(PyObject* state, Slot::Use decision) : Context(Of::python), state(state), decision(std::move(decision)) {}
};

bool on_device(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() && !tensor.is_cpu();
  }
  if (value.isDevice()) return !value.toDevice().is_cpu();
  if (value.isList()) {  // of tensors, or of optional ones, as an index has
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor() && on_device(item)) return true;
  }
  return false;
}

bool any_on_device(Values values) {
  for (const auto& value : values)
    if (on_device(value)) return true;
  return false;
}

// An operator, as torch's observers and its dispatcher have it.
struct Named {
  const char* name;
  const at::RecordFunction* fn = nullptr;
  const c10::OperatorHandle* op = nullptr;

  explicit Named(const at::RecordFunction& fn) : name(fn.name()), fn(&fn) {}
  explicit Named(const c10::OperatorHandle& op) : name(op.schema().name().c_str()), op(&op) {}
  std::optional<c10::OperatorName> operator()() const { return fn != nullptr ? fn->operator_name() : op->operator_name(); }
};

PyObject* call_before(const Decision& decision, Values inputs) {  // under the GIL
  const auto& arguments = decision.schema->arguments();
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < inputs.size() && i < arguments.size(); i++) {
    auto value = torch::jit::toPyObject(inputs[i]);
    if (arguments[i].kwarg_only()) keywords[py::str(arguments[i].name())] = value;
    else positional.append(value);
  }
  return PyObject_CallFunctionObjArgs(before_call, decision.function, py::tuple(positional).ptr(), keywords.ptr(), nullptr);
}

// By a recorder; false: Python is to look at it. The context is null where it is not written down.
bool begin_recorded(Here& now, Slot::Use& decision, Values inputs, std::unique_ptr<Context>& to) {
  auto call = std::make_unique<Recorded>(std::move(decision));
  Given given(*call->decision, now.given);
  Begun begun = Begun::unwanted;
  now.depth++;
  try {
    for (size_t i = 0; i < inputs.size(); i++) given.take(inputs[i], i);
    if (host_too || given.on_device) begun = record(now, given, *call);
  } catch (const std::exception& error) {  // it must not kill the program
    call->decision->recorder->report(call->decision->function, error.what());
  }
  if (begun == Begun::recorded) to = std::move(call);
  else now.depth--;
  if (begun == Begun::for_python) decision = std::move(call->decision);
  return begun != Begun::for_python;
}

// By Python; null: it is not watched.
std::unique_ptr<Context> begin_watched(Here& now, Slot::Use decision, Values inputs) {
  Batch::start_all();
  py::gil_scoped_acquire gil;
  now.depth++;  // what the tool itself calls
  PyObject* state = nullptr;
  try {
    state = call_before(*decision, inputs);
  } catch (const std::exception&) {  // an argument that Python has no word for: not watched
    PyErr_Clear();
  }
  now.depth--;
  if (state == nullptr) {
    if (PyErr_Occurred()) PyErr_WriteUnraisable(before_call);
    return nullptr;
  }
  if (state == Py_None) {
    Py_DECREF(state);
    return nullptr;
  }
  now.depth++;
  return std::make_unique<Watched>(state, std::move(decision));
}

// Before a call; null: it is not watched.
template <typename Inputs>
std::unique_ptr<Context> begin(const Named& named, Inputs&& inputs_of) {
  Here& now = here();
  if (now.depth == 1 && now.listed != nullptr) {
    now.depth++;
    auto part = std::make_unique<ListedPart>();
    if (now.inside->nests) part->quiet.emplace();
    return part;
  }
  if (now.depth > 0 || batch_at_work()) {
    if (now.inside != nullptr) now.inside->nesting();
    return nullptr;
  }
  auto decision = slot_of(named.name).use(named);
  if (!decision) return nullptr;
  const Values inputs = inputs_of();
  if (decision->recorder != nullptr) {
    std::unique_ptr<Context> context;
    if (begin_recorded(now, decision, inputs, context)) return context;
  } else if (!host_too && !any_on_device(inputs)) {
    return nullptr;
  }
  return begin_watched(now, std::move(decision), inputs);
}

// `nn.Parameter` and `as_subclass` take the result of these two for a class of their own, which it
// must not have by then: Python is shown another tensor of the same memory.
bool may_become_subclass(const Decision& decision) {
  const std::string& name = decision.schema->name();
  return name == "aten::detach" || name == "aten::alias";
}

c10::IValue stand_in(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  const auto* impl = value.toTensor().unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

void end_recorded(Here& now, Recorded& call, Values outputs) {
  now.depth++;
  if (outputs.size() != call.decision->returns) recorded(now, call, nullptr);  // the kernel raised
  else if (const auto results = results_of(outputs); true) recorded(now, call, &results);
  now.depth--;
}

void end_watched(Here& now, Watched& call, Values outputs) {
  py::gil_scoped_acquire gil;
  if (outputs.size() == call.decision->returns) {  // else the kernel raised
    now.depth++;
    try {
      py::list results;
      const bool hidden = may_become_subclass(*call.decision);
      for (const auto& output : outputs) results.append(torch::jit::toPyObject(hidden ? stand_in(output) : output));
      PyObject* done = PyObject_CallFunctionObjArgs(after_call, call.state, results.ptr(), nullptr);
      if (done == nullptr) PyErr_WriteUnraisable(after_call);
      Py_XDECREF(done);
    } catch (const std::exception&) {
      PyErr_Clear();
    }
    now.depth--;
  }
  Py_DECREF(call.state);
}

// After it.
void finish(Context& context, Values outputs) {
  Here& now = here();
  now.depth--;
  switch (context.of) {
    case Context::Of::part: return recorded(static_cast<ListedPart&>(context), outputs);
    case Context::Of::record: return end_recorded(now, static_cast<Recorded&>(context), outputs);
    case Context::Of::python: return end_watched(now, static_cast<Watched&>(context), outputs);
  }
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& fn) {
  return begin(Named(fn), [&] { return fn.inputs(); });
}

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context != nullptr) finish(*static_cast<Context*>(context), Values(fn.outputs().data(), fn.outputs().size()));
}

Values top(const torch::jit::Stack& stack, size_t count) { return Values(stack.data() + (stack.size() - count), count); }

}  // namespace

void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & kBelow;
  const auto context = layered ? begin(Named(op), [&] { return top(*stack, op.schema().arguments().size()); }) : nullptr;
  if (context == nullptr) return op.redispatchBoxed(below, stack);
  try {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> alone;
    if (context->keeps_to_itself()) alone.emplace(kLayer);
    op.redispatchBoxed(below, stack);
  } catch (...) {
    finish(*context, Values());
    throw;
  }
  finish(*context, top(*stack, op.schema().returns().size()));
}

bool is_observing() { return observing; }

bool is_layered() { return layered; }

bool looks_at_host() { return host_too; }

// By the layer or by torch's observers; `layer_thread` gives it to a thread.
void watch_kernels(bool on, bool by_layer, bool host, py::object decide, py::object before, py::object after) {
  host_too = host;
  forget_decisions();  // a tool came or went
  if (on && before_call == nullptr) {
    decide_by(decide.release().ptr());
    before_call = before.release().ptr();
    after_call = after.release().ptr();
  }
  layered = on && by_layer;
  observing = on && !by_layer;
  if (observing && !handle) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(start, end)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  } else if (!observing && handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

void bind_kernels(py::module_& m) {
  m.def("watch_kernels", &watch_kernels);
  m.def("layer_thread", [](bool on) { c10::impl::tls_set_dispatch_key_included(kLayer, on); });
  m.def("forget_kernels", &forget_decisions);
}

}  // namespace op_tools

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&op_tools::pass>()); }
