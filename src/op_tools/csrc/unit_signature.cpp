// Which calls are like one that has been seen, told without a line of Python: they are made and that is all.
#include "seen.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <unordered_set>

namespace py = pybind11;

namespace op_tools {
namespace {

struct Known {  // one run of the tool; everything under the GIL
  py::object local, ids;
  std::unordered_set<Words, WordsHash> calls;
};

// What a plan calls: `once(func, args, kwargs)`, for one operator.
struct Once {
  PyObject_HEAD
  std::shared_ptr<Known>* known;
  PyObject *name, *python;
};

bool busy(const Known& known) {
  static PyObject* const word = PyUnicode_InternFromString("busy");
  const auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(known.local.ptr(), word));
  return found.ptr() != Py_False;
}

// Whether the call can be told from others by its words alone.
bool read(const Once& once, PyObject* args, PyObject* kwargs, Seen& seen) {
  seen.work = true;
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  seen.words.insert(seen.words.end(), {uint64_t(once.name), uint64_t(backward), uint64_t(c10::GradMode::is_enabled())});
  see(args, seen);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; seen.plain && PyDict_Next(kwargs, &at, &key, &value);) {
    see_hashed(key, 10, seen);
    see(value, seen);
  }
  return seen.plain && !seen.tensors.empty() &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

PyObject* once_call(PyObject* self, PyObject* given, PyObject*) {
  if (PyTuple_GET_SIZE(given) != 3) {
    PyErr_SetString(PyExc_TypeError, "a function, its arguments and those by name");
    return nullptr;
  }
  const auto& once = *reinterpret_cast<Once*>(self);
  const auto known = *once.known;  // the tool may be stopped meanwhile
  PyObject *func = PyTuple_GET_ITEM(given, 0), *args = PyTuple_GET_ITEM(given, 1), *kwargs = PyTuple_GET_ITEM(given, 2);
  if (busy(*known)) return PyObject_Call(func, args, kwargs);
  Seen seen;
  const bool told = read(once, args, kwargs, seen);
  if (!told || !known->calls.count(seen.words)) {
    PyObject* result = PyObject_Call(once.python, given, nullptr);
    if (told && result != nullptr) known->calls.insert(std::move(seen.words));
    return result;
  }
  Py_XDECREF(PyIter_Next(known->ids.ptr()));  // every call has a number
  return PyObject_Call(func, args, kwargs);
}

void once_free(PyObject* self) {
  auto* once = reinterpret_cast<Once*>(self);
  PyTypeObject* type = Py_TYPE(self);
  delete once->known;
  Py_XDECREF(once->name);
  Py_XDECREF(once->python);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* once_type() {
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(once_call)}, {Py_tp_dealloc, reinterpret_cast<void*>(once_free)}, {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Once", sizeof(Once), 0, Py_TPFLAGS_DEFAULT, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return type;
}

py::object once(std::shared_ptr<Known> known, py::object name, py::object python) {
  auto* type = reinterpret_cast<PyTypeObject*>(once_type());
  PyObject* made = type->tp_alloc(type, 0);
  auto* own = reinterpret_cast<Once*>(made);
  own->known = new std::shared_ptr<Known>(std::move(known));
  own->name = name.release().ptr();
  own->python = python.release().ptr();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void bind_signature(py::module_& m) {
  py::class_<Known, std::shared_ptr<Known>>(m, "Known")
      .def(py::init([](py::object local, py::object ids) { return std::make_shared<Known>(Known{local, ids, {}}); }))
      .def("once", &once);
}

}  // namespace op_tools
