// What the function mode does with a call, without a line of Python where all is decided.
#include "batch.h"
#include "modes.h"

#include <structmember.h>

namespace op_tools {
namespace {

// Stands for the mode's `__torch_function__(func, types, args, kwargs or None)`; see engine.py.
struct Mode {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* mode;  // borrowed: it holds this one
  PyObject *decided, *compiler, *python;  // {function: its plan, or None}, what torch.compiler holds, what does all else
};

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

PyObject* called(const Mode& own, PyObject* func, PyObject* args, PyObject* kwargs) {
  static PyObject* const compiling = word("_is_compiling_flag");
  static PyObject* const direct_word = word("direct");
  const auto by_python = [&] {
    Batch::start_all();  // it may write any, and so may one that is met for the first time
    PyObject* const given[] = {func, args, kwargs};
    return PyObject_Vectorcall(own.python, given, 3, nullptr);
  };
  PyObject* plan = PyDict_GetItemWithError(own.decided, func);
  if (plan == nullptr && PyErr_Occurred()) return nullptr;
  if (plan == nullptr || PyDict_GetItem(own.compiler, compiling) != Py_False) return by_python();
  PyObject* named = kwargs == Py_None ? nullptr : kwargs;
  if (plan == Py_None) return PyObject_Call(func, args, named);
  const auto direct = py::reinterpret_steal<py::object>(PyObject_GetAttr(plan, direct_word));
  if (!direct) return nullptr;
  if (direct.is_none()) return by_python();
  const auto none = py::reinterpret_steal<py::object>(named == nullptr ? PyDict_New() : nullptr);
  PyObject* const given[] = {func, args, named == nullptr ? none.ptr() : named};
  return PyObject_Vectorcall(direct.ptr(), given, 3, nullptr);
}

PyObject* mode_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  const Py_ssize_t given = PyVectorcall_NARGS(count);
  if (given >= 3 && given <= 4 && names == nullptr && PyTuple_Check(args[2]))
    return called(*reinterpret_cast<Mode*>(self), args[0], args[2], given == 4 ? args[3] : Py_None);
  static PyObject* const own_call = word("__call__");  // Python's
  PyObject* const method = PyObject_GetAttr(self, own_call);
  if (method == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(method, args, given, names);
  Py_DECREF(method);
  return result;
}

void mode_free(PyObject* self) {
  auto* own = reinterpret_cast<Mode*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(own->decided);
  Py_XDECREF(own->compiler);
  Py_XDECREF(own->python);
  type->tp_free(self);
  Py_DECREF(type);
}

// A type whose objects are called natively, and traced by torch.compile as what Python calls `__call__`.
PyObject* mode_type(const py::object& traced) {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Mode, call), READONLY},
                                  {"__self__", T_OBJECT, offsetof(Mode, mode), READONLY},
                                  {nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {Py_tp_dealloc, reinterpret_cast<void*>(mode_free)},
                                {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Mode", sizeof(Mode), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr || PyObject_SetAttrString(type, "__call__", traced.ptr()) != 0) throw py::error_already_set();
  auto* own = reinterpret_cast<PyTypeObject*>(type);
  own->tp_call = PyVectorcall_Call;  // both are Python's since it has a `__call__`
  own->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  return type;
}

py::object function_mode(py::handle mode, py::dict decided, py::dict compiler, py::object python, const py::object& traced) {
  static auto* const type = reinterpret_cast<PyTypeObject*>(mode_type(traced));
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) throw py::error_already_set();
  auto* own = reinterpret_cast<Mode*>(made);
  own->call = mode_call;
  own->mode = mode.ptr();
  own->decided = decided.release().ptr();
  own->compiler = compiler.release().ptr();
  own->python = python.release().ptr();
  return py::reinterpret_steal<py::object>(made);
}

// torch.overrides.handle_torch_function(func, relevant_args, *args, **kwargs), for functions that are written in Python.
PyObject* handle(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  PyObject *method = PyTuple_GET_ITEM(self, 0), *plain = PyTuple_GET_ITEM(self, 1);
  auto* mode = static_cast<PyObject*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(self, 2)));
  if (count < 2 || !is_on_top(mode)) return PyObject_Vectorcall(plain, given, count, names);
  py::tuple args(count - 2);
  for (Py_ssize_t i = 2; i < count; i++) PyTuple_SET_ITEM(args.ptr(), i - 2, Py_NewRef(given[i]));
  const auto kwargs = py::reinterpret_steal<py::object>(names == nullptr ? Py_NewRef(Py_None) : PyDict_New());
  for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); i++)
    if (PyDict_SetItem(kwargs.ptr(), PyTuple_GET_ITEM(names, i), given[count + i]) != 0) return nullptr;
  static PyObject* const types = PyTuple_New(0);  // nobody asks for them
  PyObject* const all[] = {given[0], types, args.ptr(), kwargs.ptr()};
  const ModeAside aside;
  PyObject* result = PyObject_Vectorcall(method, all, 4, nullptr);
  if (result != Py_NotImplemented) return result;
  Py_DECREF(result);  // the arguments' own handlers are asked next
  return PyObject_Vectorcall(plain, given, count, names);
}

PyMethodDef handle_method{"handle_torch_function", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(handle)), METH_FASTCALL | METH_KEYWORDS, nullptr};

// What stands for torch's `plain`: a call that comes to the mode whose method this is goes there without a frame of Python.
// It has the mode's address alone: who lists torch's functions keeps it, and the end of Python waits for those who hold a mode.
py::object handler(const py::object& method, const py::object& plain) {
  const auto mode = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(method.attr("__self__").ptr()));
  const py::tuple self = py::make_tuple(method, plain, mode);
  return py::reinterpret_steal<py::object>(PyCFunction_New(&handle_method, self.ptr()));
}

}  // namespace

void bind_calls(py::module_& m) {
  m.def("function_mode", &function_mode);
  m.def("handler", &handler);
}

}  // namespace op_tools
