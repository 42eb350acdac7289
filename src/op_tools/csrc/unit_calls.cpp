// What the function mode does with a call, without a line of Python where all is decided.
#include <pybind11/pybind11.h>
#include <structmember.h>

namespace py = pybind11;

namespace op_tools {
namespace {

// `calls(func, args, kwargs or None)`; see `_called` of engine.py.
struct Calls {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *decided, *compiler, *python;  // {function: its plan, or None}, what torch.compiler holds, what does all else
};

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

PyObject* plan_direct(PyObject* plan) {
  static PyObject* const direct = word("direct");
  return PyObject_GetAttr(plan, direct);
}

PyObject* calls_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  static PyObject* const compiling = word("_is_compiling_flag");
  const auto& own = *reinterpret_cast<Calls*>(self);
  if (PyVectorcall_NARGS(count) != 3 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a function, its arguments and those by name");
    return nullptr;
  }
  PyObject* plan = PyDict_GetItemWithError(own.decided, args[0]);
  if (plan == nullptr && PyErr_Occurred()) return nullptr;
  if (plan == nullptr || PyDict_GetItem(own.compiler, compiling) != Py_False) return PyObject_Vectorcall(own.python, args, 3, nullptr);
  PyObject* kwargs = args[2] == Py_None ? nullptr : args[2];
  if (plan == Py_None) return PyObject_Call(args[0], args[1], kwargs);
  const auto direct = py::reinterpret_steal<py::object>(plan_direct(plan));
  if (!direct) return nullptr;
  if (direct.is_none()) return PyObject_Vectorcall(own.python, args, 3, nullptr);
  const auto none = py::reinterpret_steal<py::object>(kwargs == nullptr ? PyDict_New() : nullptr);
  PyObject* const given[] = {args[0], args[1], kwargs == nullptr ? none.ptr() : kwargs};
  return PyObject_Vectorcall(direct.ptr(), given, 3, nullptr);
}

void calls_free(PyObject* self) {
  auto* own = reinterpret_cast<Calls*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(own->decided);
  Py_XDECREF(own->compiler);
  Py_XDECREF(own->python);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* calls_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Calls, call), READONLY}, {nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {Py_tp_dealloc, reinterpret_cast<void*>(calls_free)},
                                {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return type;
}

py::object calls(py::dict decided, py::dict compiler, py::object python) {
  auto* type = reinterpret_cast<PyTypeObject*>(calls_type());
  PyObject* made = type->tp_alloc(type, 0);
  auto* own = reinterpret_cast<Calls*>(made);
  own->call = calls_call;
  own->decided = decided.release().ptr();
  own->compiler = compiler.release().ptr();
  own->python = python.release().ptr();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void bind_calls(py::module_& m) { m.def("calls", &calls); }

}  // namespace op_tools
