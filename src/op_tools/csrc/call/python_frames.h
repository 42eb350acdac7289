/* SPDX-License-Identifier: Apache-2.0 */
// The Python frames of this thread, and attributes of a Python `threading.local`. Both need the
// GIL.
#pragma once
#include <frameobject.h>
#include <pybind11/pybind11.h>

namespace op_tools {

namespace py = pybind11;

struct Frame {
  PyCodeObject* code;  // borrowed
  int instruction;

  int line() const { return PyCode_Addr2Line(code, instruction); }
};

// Visits the frames of this thread, innermost first, until `visit` returns false.
template <class Visit>
void each_frame(Visit visit) {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  bool more = true;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    more = visit(Frame{code, PyFrame_GetLasti(frame)});
    Py_DECREF(code);  // the frame holds a reference
    PyFrameObject* back = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
}

// Reads attributes of a `threading.local`. Use one thread_local instance per call site: it caches
// the dict of this thread, which lives as long as the thread does in Python.
class LocalDict {
 public:
  // A borrowed reference; null: the attribute was never set in this thread.
  PyObject* get(const py::object& local, PyObject* name) {
    const uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (thread != thread_ || local.ptr() != local_) {
      const py::object dict = local.attr("__dict__");
      dict_ = dict.ptr(), thread_ = thread, local_ = local.ptr();
    }
    PyObject* found = PyDict_GetItemWithError(dict_, name);
    if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return found;
  }

 private:
  PyObject *local_ = nullptr, *dict_ = nullptr;
  uint64_t thread_ = 0;
};

}  // namespace op_tools
