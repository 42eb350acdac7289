// A module's call with its path on the stack, without a frame of Python; see modules.py.
#include "threads.h"

namespace op_tools {
namespace {

// What modules.py gives to its `__call__`.
struct Following {
  py::object plain, local, known;  // known: {weak reference: path}
};

vectorcallfunc by_python = nullptr;  // how any function of Python's is called

// Borrowed; null: it has no name yet.
PyObject* path_of(const Following& own, PyObject* module) {
  PyObject* key = PyWeakref_NewRef(module, nullptr);
  PyObject* path = key == nullptr ? nullptr : PyDict_GetItemWithError(own.known.ptr(), key);
  Py_XDECREF(key);
  return path;
}

PyObject* own_stack(const Following& own) {
  static PyObject* const name = PyUnicode_InternFromString("stack");
  thread_local OwnPart part;
  try {
    PyObject* stack = part.get(own.local, name);
    return stack != nullptr && PyList_CheckExact(stack) ? stack : nullptr;
  } catch (py::error_already_set&) {  // Python will meet it as well
    return nullptr;
  }
}

// As the function's own lines do it.
PyObject* followed(const Following& own, PyObject* list, PyObject* path, PyObject* const* args, size_t count, PyObject* names) {
  const auto held = py::reinterpret_borrow<py::object>(list);
  PyObject* entry = PyTuple_Pack(2, args[0], path);
  const Py_ssize_t depth = PyList_GET_SIZE(list);
  const int failed = entry == nullptr ? -1 : PyList_Append(list, entry);
  Py_XDECREF(entry);
  if (failed != 0) return nullptr;
  PyObject* result = PyObject_Vectorcall(own.plain.ptr(), args, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyList_SetSlice(list, depth, PY_SSIZE_T_MAX, nullptr);
  PyErr_Restore(type, value, trace);
  return result;
}

PyObject* state_word() {
  static PyObject* const word = PyUnicode_InternFromString("_following");
  return word;
}

PyObject* follow(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
  PyObject* dict = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
  PyObject* held = dict == nullptr ? nullptr : PyDict_GetItemWithError(dict, state_word());
  if (held == nullptr || PyVectorcall_NARGS(count) == 0) return by_python(function, args, count, names);
  const auto alive = py::reinterpret_borrow<py::object>(held);
  const auto* own = static_cast<const Following*>(PyCapsule_GetPointer(held, nullptr));
  PyObject* stack = own == nullptr ? nullptr : own_stack(*own);
  PyObject* path = stack == nullptr ? nullptr : path_of(*own, args[0]);
  if (path != nullptr) return followed(*own, stack, path, args, count, names);
  PyErr_Clear();
  // it gives the name; torch.compile, where it looks on, traces that call, and none of our lines but those
  return by_python(function, args, count, names);
}

// The function stays one of Python's, with its lines, for who reads or traces it (torch.compile); who calls it comes here.
void natively(const py::object& function, py::object plain, py::object local, py::object known) {
  if (!PyFunction_Check(function.ptr()) || !PyDict_Check(known.ptr())) throw py::type_error("a function, and a dict of paths");
  auto* target = reinterpret_cast<PyFunctionObject*>(function.ptr());
  auto* own = new Following{std::move(plain), std::move(local), std::move(known)};
  if (by_python == nullptr) by_python = target->vectorcall;
  const py::capsule held(own, [](void* state) { delete static_cast<Following*>(state); });
  if (PyObject_SetAttr(function.ptr(), state_word(), held.ptr()) != 0) throw py::error_already_set();
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(target, follow);
#else
  target->vectorcall = follow;
#endif
}

}  // namespace

void bind_modules(py::module_& m) { m.def("follow_natively", &natively); }

}  // namespace op_tools
