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
      dict_ = dict.ptr(), state_ = state, local_ = local.ptr(), name_ = nullptr;
    }
    PyObject* found = PyDict_GetItemWithError(dict_, name);
    if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return found;
  }

  // Whether it was asked for before, and can be looked at without the GIL: nobody else writes the
  // dict of this thread, and a name that is interned is found by its address.
  bool is_known(PyThreadState* own, const py::object& local) const { return local.ptr() == local_ && PyThreadState_GetID(own) == state_; }
  PyObject* peek(PyObject* name) {
#if PY_VERSION_HEX < 0x030D0000
    const uint64_t version = reinterpret_cast<PyDictObject*>(dict_)->ma_version_tag;  // another one after each change
    if (version != version_ || name != name_) value_ = PyDict_GetItemWithError(dict_, name), version_ = version, name_ = name;
    return value_;
#else
    return PyDict_GetItemWithError(dict_, name);
#endif
  }

 private:
  PyObject *local_ = nullptr, *dict_ = nullptr;
  uint64_t state_ = 0;
  PyObject *name_ = nullptr, *value_ = nullptr;  // borrowed: the last one, of this version of the dict
  uint64_t version_ = 0;
};

}  // namespace op_tools
