// torch's functions in C, met by who calls them: what the function mode would do with a call is done there, without the
// way to the mode (two readings of the arguments, five look-ups of names), which costs more than most tools do.
#include "modes.h"

#include <unordered_map>
#include <vector>

namespace op_tools {
namespace {

struct Packed {  // arguments as a tuple, and a dict or nothing
  py::tuple args;
  py::object kwargs;

  explicit Packed(const Way& way) : args(PyVectorcall_NARGS(way.count)) {
    const Py_ssize_t count = PyVectorcall_NARGS(way.count), named = way.names == nullptr ? 0 : PyTuple_GET_SIZE(way.names);
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(args.ptr(), i, Py_NewRef(way.args[i]));
    if (named > 0) kwargs = py::dict();
    for (Py_ssize_t i = 0; i < named; i++)
      if (PyDict_SetItem(kwargs.ptr(), PyTuple_GET_ITEM(way.names, i), way.args[count + i]) != 0) throw py::error_already_set();
  }
};

// How Python calls a function that has no quicker way.
PyObject* by_type(PyObject* callable, PyObject* const* args, size_t count, PyObject* names) {
  try {
    const Packed packed(Way{nullptr, callable, args, count, names});
    return Py_TYPE(callable)->tp_call(callable, packed.args.ptr(), packed.kwargs.ptr());
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

// One function. It stays in the table for good: a call of it may be under way.
struct Front {
  vectorcallfunc plain;
  vectorcallfunc* place;
  vectorcallfunc before;  // what was there: null where Python goes by the type
  PyObject *func = nullptr, *direct = nullptr;  // what the mode is told was called, and what does it; null: nobody wants it
  bool on = false;
  bool soft = false;  // an operator of Python's: where its arguments are of no use to it, the other one's is asked
};

std::unordered_map<PyObject*, Front>& fronts() {
  static auto* all = new std::unordered_map<PyObject*, Front>();
  return *all;
}

PyObject *mode = nullptr, *compiler = nullptr;  // whose calls they are, what torch.compiler holds: both stay for good

bool is_compiling() {
  static PyObject* const flag = PyUnicode_InternFromString("_is_compiling_flag");
  return PyDict_GetItem(compiler, flag) != Py_False;
}

// As the mode's method does it.
PyObject* by_direct(const Way& way, PyObject* func, PyObject* direct) {
  try {
    Packed packed(way);
    if (!packed.kwargs) packed.kwargs = py::dict();
    PyObject* const given[] = {func, packed.args.ptr(), packed.kwargs.ptr()};
    const ModeAside aside;
    return PyObject_Vectorcall(direct, given, 3, nullptr);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* met(PyObject* callable, PyObject* const* args, size_t count, PyObject* names) {
  const Front front = fronts().find(callable)->second;
  const Way way{front.plain, callable, args, count, names};
  if (!front.on || !is_on_top(mode) || is_compiling()) return way();
  if (front.direct == nullptr) {
    const ModeAside aside;
    return way();
  }
  PyObject* result = nullptr;
  if (is_timed(front.direct)) return timed_on_its_way(front.direct, way, result) ? result : way();
  const auto func = py::reinterpret_borrow<py::object>(front.func), direct = py::reinterpret_borrow<py::object>(front.direct);
  if (!is_recorded(front.direct) || !recorded_on_its_way(front.direct, way, result)) result = by_direct(way, front.func, front.direct);
  if (result != nullptr || !front.soft || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
  PyErr_Clear();
  return Py_NewRef(Py_NotImplemented);
}

vectorcallfunc* place_of(PyObject* callable) {
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) return &reinterpret_cast<PyMethodDescrObject*>(callable)->vectorcall;
  if (PyCFunction_CheckExact(callable)) return &reinterpret_cast<PyCFunctionObject*>(callable)->vectorcall;
  return nullptr;
}

// Whether the function is one that can be met.
bool meet(py::object callable, py::object func, py::object direct, bool soft) {
  vectorcallfunc* place = place_of(callable.ptr());
  if (place == nullptr || mode == nullptr) return false;
  const auto [at, fresh] = fronts().try_emplace(callable.ptr(), Front{*place == nullptr ? by_type : *place, place, *place});
  Front& front = at->second;
  if (fresh) callable.release();
  else if (*place != met && *place != front.before) return false;  // another one's by now
  Py_XDECREF(front.func), Py_XDECREF(front.direct);
  front.func = func.release().ptr();
  front.direct = direct.is_none() ? nullptr : direct.release().ptr();
  front.soft = soft;
  front.on = true;
  *place = met;
  return true;
}

void leave_all() {
  std::vector<PyObject*> held;
  for (auto& [_, front] : fronts()) {
    if (*front.place == met) *front.place = front.before;
    front.on = false;
    held.push_back(std::exchange(front.func, nullptr)), held.push_back(std::exchange(front.direct, nullptr));
  }
  for (PyObject* one : held) Py_XDECREF(one);
}

void meet_for(py::handle whose, py::handle flags) { mode = whose.ptr(), compiler = flags.ptr(); }

}  // namespace

void bind_fronts(py::module_& m) {
  m.def("meet_for", &meet_for, "the mode whose calls are met, and what torch.compiler holds");
  m.def("meet", &meet, "a function in C is met: who is called, which function that is to the mode, what does it or None, whether softly");
  m.def("leave_all", &leave_all, "none is met any more");
}

}  // namespace op_tools
