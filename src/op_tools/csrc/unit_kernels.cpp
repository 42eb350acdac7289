// Kernels as they are called. By torch's own observers in every thread, with nothing put in their way;
// or by a layer of the dispatcher below autograd, for threads that have its key: it costs half as
// much, for torch puts nothing together for what is not a kernel.
#include "recorded.h"

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace op_tools {
namespace {

// Python's side. decide(name) -> function, (function, recorder, head, name) or None; before(function,
// args, kwargs) -> state or None; after(state, results). Held for the life of the process, so that no
// thread outlives them.
PyObject* decide_call = nullptr;
PyObject* before_call = nullptr;
PyObject* after_call = nullptr;

// By the address of the schema's name: each overload has its own, for the life of the process.
std::unordered_map<const char*, std::shared_ptr<const Decision>> decisions;
std::shared_mutex decisions_lock;
std::atomic<uint64_t> generation{1};  // of the decisions
std::atomic<bool> host_too{false};
std::optional<at::CallbackHandle> handle;
std::atomic<bool> layered{false}, observing{false};

// A key between autograd's and those of devices that torch itself has no use for.
constexpr c10::DispatchKey kLayer = c10::DispatchKey::Fake;

struct Watched : Context {
  PyObject* state;
  Quiet quiet;
  explicit Watched(PyObject* state) : Context(Of::python), state(state) {}
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

// A function that torch takes apart for every device is none of a device's kernels.
bool is_kernel(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

Decision unpacked(PyObject* found, const c10::FunctionSchema& schema) {
  if (!PyTuple_Check(found)) return {found, &schema};
  const auto parts = py::reinterpret_steal<py::tuple>(found);
  Decision made{py::object(parts[0]).release().ptr(), &schema, parts[1].cast<std::shared_ptr<Recorder>>()};
  made.name = lasting(parts[3].cast<std::string>());
  if (py::isinstance<Heads>(parts[2])) made.heads = parts[2].cast<std::shared_ptr<Heads>>();
  else made.head = py::object(parts[2]).release().ptr();
  return made;
}

Decision decide(const std::optional<c10::OperatorName>& name) {  // under the GIL
  Decision made;
  if (!name) return made;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op || !is_kernel(*op)) return made;
  const auto full = name->overload_name.empty() ? name->name : name->name + "." + name->overload_name;
  PyObject* function = PyObject_CallFunction(decide_call, "s", full.c_str());
  if (function == nullptr) PyErr_WriteUnraisable(decide_call);
  else if (function == Py_None) Py_DECREF(function);
  else made = unpacked(function, op->schema()), made.read_schema();
  return made;
}

// What a thread has asked for; it owns nothing, for it may outlive Python.
struct Asked {
  const char* name = nullptr;
  uint64_t generation = 0;
  bool unwanted = false;
  std::weak_ptr<const Decision> found;
};
constexpr size_t kAsked = 1024;

Asked& asked(const char* name) {
  static thread_local std::unique_ptr<std::array<Asked, kAsked>> all = std::make_unique<std::array<Asked, kAsked>>();
  const auto mixed = reinterpret_cast<uint64_t>(name) * 0x9E3779B97F4A7C15ull;
  return (*all)[mixed >> 54];
}

std::shared_ptr<const Decision> known(const char* name, Asked& own, uint64_t now) {
  if (own.name == name && own.generation == now)
    if (auto found = own.found.lock()) return found;
  std::shared_lock lock(decisions_lock);
  const auto found = decisions.find(name);
  if (found == decisions.end()) return nullptr;
  own = {name, now, found->second->function == nullptr, found->second};
  return found->second;
}

// An operator, as torch's observers and its dispatcher have it.
struct Named {
  const char* name;
  const at::RecordFunction* fn = nullptr;
  const c10::OperatorHandle* op = nullptr;

  explicit Named(const at::RecordFunction& fn) : name(fn.name()), fn(&fn) {}
  explicit Named(const c10::OperatorHandle& op) : name(op.schema().name().c_str()), op(&op) {}
  std::optional<c10::OperatorName> whole() const { return fn != nullptr ? fn->operator_name() : op->operator_name(); }
};

// Null: nobody wants it. Hot path.
std::shared_ptr<const Decision> decided(const Named& named) {
  Asked& own = asked(named.name);
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (own.name == named.name && own.generation == now && own.unwanted) return nullptr;
  if (auto found = known(named.name, own, now)) return found;
  py::gil_scoped_acquire gil;
  auto made = std::make_shared<const Decision>(decide(named.whole()));
  std::unique_lock lock(decisions_lock);
  decisions[named.name] = made;
  return made;
}

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
    if (now.inside != nullptr) now.inside->nests = true;
    return nullptr;
  }
  const auto made = decided(named);
  if (made == nullptr || made->function == nullptr) return nullptr;
  const Decision& decision = *made;
  const Values inputs = inputs_of();
  if (!host_too && !any_on_device(inputs)) return nullptr;
  if (decision.recorder != nullptr) {
    std::unique_ptr<Context> context;
    bool done = true;
    now.depth++;
    try {
      done = record(made, inputs, context);
    } catch (const std::exception& error) {  // it must not kill the program
      decision.recorder->report(decision.function, error.what());
    }
    if (context == nullptr) now.depth--;
    if (done) return context;
  }
  Batch::start_all();
  py::gil_scoped_acquire gil;
  now.depth++;  // what the tool itself calls
  PyObject* state = nullptr;
  try {
    state = call_before(decision, inputs);
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
  return std::make_unique<Watched>(state);
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

void end_recorded(Recorded& call, Values outputs) {
  Here& now = here();
  now.listed = nullptr;
  now.inside = nullptr;
  if (outputs.size() != call.decision->returns) return;  // the kernel raised
  now.depth++;
  try {
    recorded(call, outputs);
  } catch (const std::exception& error) {
    call.decision->recorder->report(call.decision->function, error.what());
  }
  now.depth--;
}

// After it.
void finish(const Named& named, Context& context, Values outputs) {
  Here& now = here();
  now.depth--;
  switch (context.of) {
    case Context::Of::part: return recorded(static_cast<ListedPart&>(context), outputs);
    case Context::Of::record: return end_recorded(static_cast<Recorded&>(context), outputs);
    case Context::Of::python: break;
  }
  py::gil_scoped_acquire gil;
  PyObject* state = static_cast<Watched&>(context).state;
  const auto made = decided(named);
  const bool whole = made != nullptr && made->schema != nullptr && outputs.size() == made->returns;
  if (whole) {  // else the kernel raised
    now.depth++;
    try {
      py::list results;
      const bool hidden = may_become_subclass(*made);
      for (const auto& output : outputs) results.append(torch::jit::toPyObject(hidden ? stand_in(output) : output));
      PyObject* done = PyObject_CallFunctionObjArgs(after_call, state, results.ptr(), nullptr);
      if (done == nullptr) PyErr_WriteUnraisable(after_call);
      Py_XDECREF(done);
    } catch (const std::exception&) {
      PyErr_Clear();
    }
    now.depth--;
  }
  Py_DECREF(state);
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& fn) {
  return begin(Named(fn), [&] { return fn.inputs(); });
}

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context != nullptr) finish(Named(fn), *static_cast<Context*>(context), Values(fn.outputs().data(), fn.outputs().size()));
}

Values top(const torch::jit::Stack& stack, size_t count) { return Values(stack.data() + (stack.size() - count), count); }

// The layer.
void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kLayer);
  const Named named(op);
  const auto context = layered ? begin(named, [&] { return top(*stack, op.schema().arguments().size()); }) : nullptr;
  if (context == nullptr) return op.redispatchBoxed(below, stack);
  try {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> alone;
    if (context->keeps_to_itself()) alone.emplace(kLayer);
    op.redispatchBoxed(below, stack);
  } catch (...) {
    finish(named, *context, Values());
    throw;
  }
  finish(named, *context, top(*stack, op.schema().returns().size()));
}

}  // namespace

bool is_observing() { return observing; }

// Forget what was decided: a tool came or went.
void forget_kernels() {
  std::unique_lock lock(decisions_lock);
  decisions.clear();  // the functions are torch's own and live as long as it does
  generation.fetch_add(1, std::memory_order_release);
}

// By the layer or by torch's observers; `layer_thread` gives it to a thread.
void watch_kernels(bool on, bool by_layer, bool host, py::object decide, py::object before, py::object after) {
  host_too = host;
  forget_kernels();
  if (on && decide_call == nullptr) {
    decide_call = decide.release().ptr();
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
  m.def("forget_kernels", &forget_kernels);
}

}  // namespace op_tools

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&op_tools::pass>()); }
