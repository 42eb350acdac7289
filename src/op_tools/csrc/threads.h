// What a `threading.local` of Python's holds for this thread, without asking Python each time.
#pragma once
#include <pybind11/pybind11.h>

namespace op_tools {

namespace py = pybind11;

// One for each place that asks, as a thread_local. The thread's dict lives as long as its state in
// Python, whose number no other gets; the local is one of a module, for good.
class OwnPart {
 public:
  // Borrowed; null: it was never set in this thread. Under the GIL.
  PyObject* get(const py::object& local, PyObject* name) {
    const uint64_t state = PyThreadState_GetID(PyThreadState_Get());
    if (state != state_ || local.ptr() != local_) {
      const py::object dict = local.attr("__dict__");
      dict_ = dict.ptr(), state_ = state, local_ = local.ptr();
    }
    PyObject* found = PyDict_GetItemWithError(dict_, name);
    if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return found;
  }

  // Whether it was asked for before, and can be looked at without the GIL: nobody else writes the
  // dict of this thread, and a name that is interned is found by its address.
  bool is_known(PyThreadState* own, const py::object& local) const { return local.ptr() == local_ && PyThreadState_GetID(own) == state_; }
  PyObject* peek(PyObject* name) const { return PyDict_GetItemWithError(dict_, name); }

 private:
  PyObject *local_ = nullptr, *dict_ = nullptr;
  uint64_t state_ = 0;
};

}  // namespace op_tools
