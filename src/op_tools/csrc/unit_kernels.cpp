// Kernels as they are called, in every thread, by torch's own observers: nothing is put in their way.
#ifndef NDEBUG
#define NDEBUG  // as torch is built: a RecordFunction is laid out otherwise without it
#endif
#include <ATen/record_function.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "heads.h"
#include "recorder.h"

namespace op_tools {
namespace {

// What is found out about a kernel while it runs.
struct Learned {
  mutable std::atomic<bool> nests{false};  // it calls others that torch tells of
  Learned() = default;
  Learned(Learned&&) noexcept {}
  Learned& operator=(Learned&&) noexcept { return *this; }
};

struct Decision {
  PyObject* function = nullptr;  // torch.ops.aten.…; null: nobody wants it
  const c10::FunctionSchema* schema = nullptr;
  std::shared_ptr<Recorder> recorder = nullptr;  // writes its calls down: Python does not look at them
  std::shared_ptr<Heads> heads = nullptr;        // gives the starts of its lines, else `head` does:
  PyObject* head = nullptr;                      // head(kind of device) -> the start, or None
  std::string name = "";
  // of the schema, which is large and seldom in the cache
  std::vector<bool> writes = {};  // the arguments that it writes
  size_t returns = 0;
  bool of_torch = false, of_lists = false;
  Learned learned = {};

  void read_schema() {
    for (const auto& argument : schema->arguments()) {
      const auto* alias = argument.alias_info();
      writes.push_back(alias != nullptr && alias->isWrite());
    }
    returns = schema->returns().size();
    of_torch = schema->name().starts_with("aten::");
    of_lists = schema->name().starts_with("aten::_foreach_");
  }
};

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

thread_local int depth = 0;  // inside a kernel that is watched: what it calls is its own business
thread_local const Learned* inside = nullptr;  // that kernel, where it is recorded

// While a kernel is watched, torch has no observer in its thread: it would put together the arguments
// of all that the kernel calls for nothing. Not where another one listens too, such as a profiler. It
// costs a microsecond: only for kernels that were seen to call others.
class Quiet {
 public:
  Quiet() : on_(at::isRecordFunctionEnabled() && alone()) {
    if (on_) at::enableRecordFunction(false);
  }
  ~Quiet() {
    if (on_) at::enableRecordFunction(true);
  }
  Quiet(const Quiet&) = delete;

 private:
  static bool alone() {
    const auto found = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    return found && found->callbacks_.size() == 1;
  }

  const bool on_;
};

struct Watched : at::ObserverContext {
  PyObject* state;
  Quiet quiet;
  explicit Watched(PyObject* state) : state(state) {}
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
  made.name = parts[3].cast<std::string>();
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
  uint64_t generation = 0;
  std::unordered_map<const char*, std::weak_ptr<const Decision>> found;
};
thread_local Asked asked;

std::shared_ptr<const Decision> known(const char* name) {  // hot path
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (asked.generation != now) asked = {now, {}};
  auto& own = asked.found[name];
  if (auto found = own.lock()) return found;
  std::shared_lock lock(decisions_lock);
  const auto found = decisions.find(name);
  if (found == decisions.end()) return nullptr;
  own = found->second;
  return found->second;
}

std::shared_ptr<const Decision> decided(const at::RecordFunction& fn) {
  if (auto found = known(fn.name())) return found;
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

// A call that a recorder writes down.
struct Recorded : at::ObserverContext {
  std::shared_ptr<const Decision> decision;
  std::string line;
  std::vector<at::Tensor> given;
  std::vector<bool> declared;  // the kernel says that it writes it
  std::vector<uint32_t> versions;
  Warm warm;
  std::optional<Quiet> quiet;  // unless what it calls is measured
};

// A call on lists that is made of a kernel for each tensor: one of these, whose result is measured
// while it is in the cache.
struct Part : at::ObserverContext {
  std::optional<Quiet> quiet;
};

thread_local Recorded* listed = nullptr;  // such a call that is going on

// The tensors of a value, in order; a number that torch has wrapped is none, in Python neither.
void flatten(const c10::IValue& value, std::vector<at::Tensor>& to) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) to.push_back(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) flatten(item, to);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) flatten(item, to);
  }
}

// Whether a recorder may look at it by itself: plain memory within its reach, and a count of writes.
bool is_simple(Recorder& recorder, const std::vector<at::Tensor>& given) {
  using c10::DispatchKey;
  const auto on = c10::impl::tls_local_dispatch_key_set().included_;
  if (on.has(DispatchKey::Python) || on.has(DispatchKey::FuncTorchDynamicLayerFrontMode)) return false;
  return std::all_of(given.begin(), given.end(), [&](const at::Tensor& tensor) {
    return !tensor.is_inference() && !tensor.key_set().has(DispatchKey::Python) && recorder.handles(tensor);
  });
}

// The kind of device that a call works on, as `call.scan` finds it; an accelerator goes before the CPU.
std::optional<c10::DeviceType> kind_of(const std::vector<at::Tensor>& given, c10::ArrayRef<const c10::IValue> inputs) {
  std::optional<c10::DeviceType> found;
  for (const auto& tensor : given) {
    if (!tensor.is_cpu()) return tensor.device().type();
    found = c10::DeviceType::CPU;
  }
  for (const auto& value : inputs) {
    if (!found && value.isDevice()) found = value.toDevice().type();
  }
  return found;
}

std::string head_of(const Decision& decision, c10::DeviceType kind) {
  if (decision.heads != nullptr) return decision.heads->head(decision.function, decision.name, kind);
  const py::object head = py::handle(decision.head)(c10::DeviceTypeName(kind, true));
  return head.is_none() ? std::string() : head.cast<std::string>();
}

// What still waits to be reduced is, before a call that writes it; what is not torch's own may write all.
void before_write(const Decision& decision, const Recorded& call) {
  for (size_t i = 0; i < call.given.size(); i++) {
    if (call.declared[i] || !decision.of_torch) decision.recorder->before_write(call.given[i]);
  }
}

// The start of a recorded call; false: Python is to look at it.
bool record(std::shared_ptr<const Decision> made, c10::ArrayRef<const c10::IValue> inputs, std::unique_ptr<at::ObserverContext>& to) {
  const Decision& decision = *made;
  auto call = std::make_unique<Recorded>();
  for (size_t i = 0; i < inputs.size() && i < decision.writes.size(); i++) {
    flatten(inputs[i], call->given);
    call->declared.resize(call->given.size(), decision.writes[i]);
  }
  const auto kind = kind_of(call->given, inputs);
  if (!kind || !is_simple(*decision.recorder, call->given)) return false;
  {
    py::gil_scoped_acquire gil;
    call->line = head_of(decision, *kind);
  }
  if (call->line.empty()) {
    before_write(decision, *call);
    return true;
  }
  call->line += ",\"inputs\":[";
  decision.recorder->texts(call->line, call->given);
  decision.recorder->settle();
  before_write(decision, *call);
  for (const auto& tensor : call->given) call->versions.push_back(version_of(tensor));
  call->decision = std::move(made);
  inside = &call->decision->learned;
  if (call->decision->of_lists) listed = call.get();
  else if (inside->nests) call->quiet.emplace();
  to = std::move(call);
  return true;
}

void recorded(Recorded& call, const std::vector<c10::IValue>& outputs) {
  Recorder& recorder = *call.decision->recorder;
  std::vector<at::Tensor> made;
  for (const auto& output : outputs) flatten(output, made);
  std::vector<size_t> changed;
  for (size_t i = 0; i < call.given.size(); i++) {
    const at::Tensor& tensor = call.given[i];
    if (!call.declared[i] && version_of(tensor) == call.versions[i]) continue;
    recorder.forget(tensor);
    const bool returned = std::any_of(made.begin(), made.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
    if (!returned) changed.push_back(i);
  }
  call.line += "],\"outputs\":[";
  recorder.texts(call.line, made, &call.warm);
  call.line += ']';
  for (size_t i = 0; i < changed.size(); i++) {
    call.line += (i == 0 ? ",\"mutated\":{\"" : ",\"") + std::to_string(changed[i]) + "\":";
    recorder.text(call.line, call.given[changed[i]], &call.warm);
  }
  call.line += changed.empty() ? "}\n" : "}}\n";
  recorder.settle();
  recorder.add(call.line);
}

void warm(const std::vector<c10::IValue>& outputs) {
  Recorded* call = std::exchange(listed, nullptr);
  try {
    std::vector<at::Tensor> made;
    for (const auto& output : outputs) flatten(output, made);
    for (const auto& tensor : made) call->decision->recorder->warm(call->warm, tensor);
  } catch (const std::exception& error) {
    call->decision->recorder->report(call->decision->function, error.what());
  }
  listed = call;
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& fn) {
  if (depth == 1 && listed != nullptr) {
    depth++;
    auto part = std::make_unique<Part>();
    if (inside->nests) part->quiet.emplace();
    return part;
  }
  if (depth > 0 || batch_at_work()) {
    if (inside != nullptr) inside->nests = true;
    return nullptr;
  }
  const auto made = decided(fn);
  const Decision& decision = *made;
  if (decision.function == nullptr) return nullptr;
  const auto inputs = fn.inputs();
  if (!host_too && !any_on_device(inputs)) return nullptr;
  if (decision.recorder != nullptr) {
    std::unique_ptr<at::ObserverContext> context;
    bool done = true;
    depth++;
    try {
      done = record(made, inputs, context);
    } catch (const std::exception& error) {  // it must not kill the program
      decision.recorder->report(decision.function, error.what());
    }
    depth--;
    if (context != nullptr) depth++;
    if (done) return context;
  }
  Batch::start_all();
  py::gil_scoped_acquire gil;
  depth++;  // what the tool itself calls
  PyObject* state = nullptr;
  try {
    state = call_before(decision, inputs);
  } catch (const std::exception&) {  // an argument that Python has no word for: not watched
    PyErr_Clear();
  }
  depth--;
  if (state == nullptr) {
    if (PyErr_Occurred()) PyErr_WriteUnraisable(before_call);
    return nullptr;
  }
  if (state == Py_None) {
    Py_DECREF(state);
    return nullptr;
  }
  depth++;
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

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr) return;
  depth--;
  const auto& outputs = fn.outputs();
  if (dynamic_cast<Part*>(context) != nullptr) {
    warm(outputs);
    return;
  }
  if (auto* call = dynamic_cast<Recorded*>(context)) {
    listed = nullptr;
    inside = nullptr;
    if (outputs.size() != call->decision->returns) return;  // the kernel raised
    depth++;
    try {
      recorded(*call, outputs);
    } catch (const std::exception& error) {
      call->decision->recorder->report(call->decision->function, error.what());
    }
    depth--;
    return;
  }
  py::gil_scoped_acquire gil;
  PyObject* state = static_cast<Watched*>(context)->state;
  const auto made = decided(fn);
  const bool whole = made->schema != nullptr && outputs.size() == made->returns;
  if (whole) {  // else the kernel raised
    depth++;
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
    depth--;
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
