// The numbers of calls and of steps, for Python too.
#include "counting.h"

namespace py = pybind11;

namespace op_tools {

std::atomic<int64_t> next_id{1};
std::atomic<int64_t> current_step{0};

namespace {

PyObject* ids_next(PyObject*) { return PyLong_FromLongLong(next_id.fetch_add(1, std::memory_order_relaxed)); }

// `next(ids)`: as an itertools.count. From what comes next in the count that it takes the place of.
py::object ids(int64_t first) {
  static PyType_Slot slots[] = {{Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                {Py_tp_iternext, reinterpret_cast<void*>(ids_next)},
                                {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Ids", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  static PyObject* const one = type->tp_alloc(type, 0);  // of the process
  for (int64_t now = next_id; now < first && !next_id.compare_exchange_weak(now, first);) {
  }
  return py::reinterpret_borrow<py::object>(one);
}

}  // namespace

void bind_counting(py::module_& m) {
  m.def("ids", &ids, "the numbers of calls, from this one on");
  m.def("set_step", [](int64_t step) { current_step = step; });
}

}  // namespace op_tools
