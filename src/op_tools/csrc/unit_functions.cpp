// Calls at the level of torch's functions that a recorder writes down, without a line of Python.
#include "flow.h"

#include <structmember.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include "found.h"
#include "heads.h"

namespace op_tools {
namespace {

constexpr size_t kLine = 512;  // bytes that most calls take

// What a plan calls: `recorded(func, args, kwargs)`, for one operator; `python` does what this does not.
struct Function {
  PyObject_HEAD
  vectorcallfunc call;
  std::shared_ptr<Recorder>* recorder;
  std::shared_ptr<Heads>* heads;
  const std::string* name;
  PyObject* python;
  bool writes;  // or it may: its arguments are looked at before it
};

bool is_simple(Recorder& recorder, const Found& found) {
  if (!found.plain || found.tensors.empty() || is_under_mode()) return false;
  return std::all_of(found.tensors.begin(), found.tensors.end(), [&](const at::Tensor* tensor) {
    return !tensor->is_inference() && recorder.handles(*tensor);
  });
}

// Without the GIL where the host reads some of them: that takes long, and waits for their device.
class Reading {
 public:
  Reading(Recorder& recorder, std::initializer_list<const Tensors*> sides) {
    const auto is_far = [&](const at::Tensor* tensor) { return recorder.way(*tensor) == Recorder::Way::device; };
    const auto are_far = [&](const Tensors* side) { return std::all_of(side->begin(), side->end(), is_far); };
    if (!std::all_of(sides.begin(), sides.end(), are_far)) release_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> release_;
};

// One call: what is known of it.
struct Call {
  Recorder& recorder;
  Found given;
  Head head;
  Raw raw;
  std::optional<Given> arguments;
  c10::SmallVector<uint32_t, 8> versions;
  uint64_t sequence = 0;
  bool early = true;

  // Whether it is one to write down here.
  bool begin(Heads& heads, const std::string* name, PyObject* args, PyObject* kwargs) {
    collect(args, given);
    collect(kwargs, given);
    if (!is_simple(recorder, given)) return false;
    sequence = at::sequence_number::peek();
    const auto found = heads.head(name, kind_of(given.tensors));
    if (!found) return false;
    head = *found;
    raw.bytes().reserve(kLine);
    raw.head(head);
    if (c10::GradMode::is_enabled()) arguments.emplace(given.tensors);
    return true;
  }

  // `now`: on the device, too. Else with what comes after the call, unless that has written it.
  void look(bool now) {
    early = now;
    const Reading reading(recorder, {&given.tensors});
    auto hold = recorder.hold();
    for (const at::Tensor* tensor : given.tensors) {
      recorder.tensor(hold, recorder.way(*tensor), raw, *tensor);
      versions.push_back(version_of(*tensor));
    }
    hold.free();
    if (now) recorder.settle();
  }

  // Whether it has written none of its arguments.
  bool end(PyObject* result) {
    Found made;
    collect(result, made);
    c10::SmallVector<size_t, 4> changed;
    bool written = false;
    for (size_t i = 0; i < given.tensors.size(); i++) {
      const at::Tensor& tensor = *given.tensors[i];
      if (version_of(tensor) == versions[i]) continue;
      written = true;
      recorder.forget(tensor);
      const auto is_it = [&](const at::Tensor* other) { return other->is_same(tensor); };
      if (std::none_of(made.tensors.begin(), made.tensors.end(), is_it)) changed.push_back(i);
    }
    {
      const Reading reading(recorder, {&made.tensors, &given.tensors});
      if (written && !early) look_again();
      raw.outputs();
      auto hold = recorder.hold();
      const auto put = [&](const at::Tensor& tensor) { recorder.tensor(hold, recorder.way(tensor), raw, tensor); };
      for (const at::Tensor* tensor : made.tensors) put(*tensor);
      for (const size_t place : changed) {
        raw.mutated(static_cast<uint32_t>(place));
        put(*given.tensors[place]);
      }
      hold.free();
      raw.end();
      recorder.settle();
      recorder.add(raw);
    }
    return !written;
  }

  // What was to be read after the call is not what it was before it.
  void look_again() {
    raw.clear();
    raw.head(head);
    for (size_t i = 0; i < given.tensors.size(); i++) {
      const at::Tensor& tensor = *given.tensors[i];
      if (version_of(tensor) == versions[i]) {
        recorder.tensor(raw, tensor);
        continue;
      }
      raw.tensor(tensor);
      raw.known("\"skipped\":\"it was written before it was read\"");
    }
  }
};

PyObject* by_python(const Function& own, PyObject* const* args) {
  return PyObject_Vectorcall(own.python, args, 3, nullptr);
}

PyObject* function_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) != 3 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a function, its arguments and those by name");
    return nullptr;
  }
  auto& own = *reinterpret_cast<Function*>(self);
  const auto recorder = *own.recorder;  // the tool may be stopped meanwhile
  Call call{*recorder};
  try {
    if (!call.begin(**own.heads, own.name, args[1], args[2])) return by_python(own, args);
    static PyObject* const out = PyUnicode_InternFromString("out");
    call.look(own.writes || call.given.chosen || PyDict_Contains(args[2], out) == 1);
  } catch (const std::exception& error) {  // a tool must not kill the program that it watches
    PyErr_Clear();
    recorder->report(nullptr, error.what());
    return PyObject_Call(args[0], args[1], args[2]);
  }
  PyObject* result = PyObject_Call(args[0], args[1], args[2]);
  if (result == nullptr) return nullptr;
  try {
    if (!call.end(result)) own.writes = true;
    if (call.arguments && call.arguments->wanted()) {
      Found made;
      collect(result, made);
      Flow::watch(recorder, call.head, *call.arguments, call.given.tensors.size(), made.tensors, call.sequence);
    }
  } catch (const std::exception& error) {
    PyErr_Clear();
    recorder->report(nullptr, error.what());
  }
  return result;
}

void function_free(PyObject* self) {
  auto* own = reinterpret_cast<Function*>(self);
  PyTypeObject* type = Py_TYPE(self);
  delete own->recorder;
  delete own->heads;
  Py_XDECREF(own->python);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* function_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY}, {nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {Py_tp_dealloc, reinterpret_cast<void*>(function_free)},
                                {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Recorded", sizeof(Function), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return type;
}

// A recorder, with what writes its lines for as long: gradients may come after the end of the tool.
std::shared_ptr<Recorder> kept_with(py::object store, const std::shared_ptr<Recorder>& recorder) {
  const auto end = [](py::object* held) {
    if (Py_IsInitialized()) {
      const py::gil_scoped_acquire gil;  // the graph may end in any thread
      *held = py::object();
    } else {
      held->release();
    }
    delete held;
  };
  return {std::shared_ptr<py::object>(new py::object(std::move(store)), end), recorder.get()};
}

py::object function(const std::shared_ptr<Recorder>& recorder, py::object store, std::shared_ptr<Heads> heads, const std::string& name, bool writes,
                    py::object python) {
  auto* type = reinterpret_cast<PyTypeObject*>(function_type());
  PyObject* made = type->tp_alloc(type, 0);
  auto* own = reinterpret_cast<Function*>(made);
  own->call = function_call;
  own->recorder = new std::shared_ptr<Recorder>(kept_with(std::move(store), recorder));
  own->heads = new std::shared_ptr<Heads>(std::move(heads));
  own->name = lasting(name);
  own->python = python.release().ptr();
  own->writes = writes;
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void bind_functions(py::module_& m) {
  m.def("recorded", &function, "what writes the calls of one function down: recorder, its store, heads, name, whether it writes, else");
  m.def("finish_flow", [] { Flow::finish(); }, py::call_guard<py::gil_scoped_release>());
}

}  // namespace op_tools
