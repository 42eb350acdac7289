// Kernels as they are called, in every thread, by torch's own observers: nothing is put in their way.
#include "recorded.h"

#include <torch/csrc/jit/python/pybind_utils.h>

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

bool any_on_device(c10::ArrayRef<const c10::IValue> values) {
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

Decision decide(const at::RecordFunction& fn) {  // under the GIL
  Decision made;
  const auto name = fn.operator_name();
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

// Null: nobody wants it. Hot path.
std::shared_ptr<const Decision> decided(const at::RecordFunction& fn) {
  Asked& own = asked(fn.name());
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (own.name == fn.name() && own.generation == now && own.unwanted) return nullptr;
  if (auto found = known(fn.name(), own, now)) return found;
  py::gil_scoped_acquire gil;
  auto made = std::make_shared<const Decision>(decide(fn));
  std::unique_lock lock(decisions_lock);
  decisions[fn.name()] = made;
  return made;
}

PyObject* call_before(const Decision& decision, c10::ArrayRef<const c10::IValue> inputs) {  // under the GIL
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

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& fn) {
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
  const auto made = decided(fn);
  if (made == nullptr || made->function == nullptr) return nullptr;
  const Decision& decision = *made;
  const auto inputs = fn.inputs();
  if (!host_too && !any_on_device(inputs)) return nullptr;
  if (decision.recorder != nullptr) {
    std::unique_ptr<at::ObserverContext> context;
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

void end_recorded(Recorded& call, const std::vector<c10::IValue>& outputs) {
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

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr) return;
  Here& now = here();
  now.depth--;
  const auto& outputs = fn.outputs();
  switch (static_cast<Context*>(context)->of) {
    case Context::Of::part: return recorded(*static_cast<ListedPart*>(context), outputs);
    case Context::Of::record: return end_recorded(*static_cast<Recorded*>(context), outputs);
    case Context::Of::python: break;
  }
  py::gil_scoped_acquire gil;
  PyObject* state = static_cast<Watched*>(context)->state;
  const auto made = decided(fn);
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

}  // namespace

// Forget what was decided: a tool came or went.
void forget_kernels() {
  std::unique_lock lock(decisions_lock);
  decisions.clear();  // the functions are torch's own and live as long as it does
  generation.fetch_add(1, std::memory_order_release);
}

void watch_kernels(bool on, bool host, py::object decide, py::object before, py::object after) {
  host_too = host;
  forget_kernels();
  if (on && !handle) {
    decide_call = decide.release().ptr();
    before_call = before.release().ptr();
    after_call = after.release().ptr();
    handle = at::addGlobalCallback(at::RecordFunctionCallback(start, end)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  } else if (!on && handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

void bind_kernels(py::module_& m) {
  m.def("watch_kernels", &watch_kernels);
  m.def("forget_kernels", &forget_kernels);
}

}  // namespace op_tools
