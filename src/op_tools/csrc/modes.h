// The stack of torch's function modes, and functions in C that are met before they come to it.
#pragma once
#include <pybind11/pybind11.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/PyInterpreter.h>

namespace op_tools {

namespace py = pybind11;

using Modes = at::impl::PythonTorchFunctionTLS;

// The mode on top, put aside.
struct ModeAside {
  std::shared_ptr<c10::SafePyObject> mode = Modes::pop_stack();
  ModeAside() = default;
  ModeAside(const ModeAside&) = delete;
  ~ModeAside() { Modes::push_onto_stack(std::move(mode)); }
};

inline bool is_on_top(PyObject* mode) {
  const int64_t depth = at::impl::torch_function_mode_enabled() ? Modes::stack_len() : 0;
  return depth > 0 && Modes::get_stack_at(depth - 1)->ptr(getPyInterpreter()) == mode;
}

// A call of a function in C, as Python makes it, and the function's own way to do it.
struct Way {
  vectorcallfunc plain;
  PyObject* callable;
  PyObject* const* args;
  size_t count;
  PyObject* names;

  PyObject* operator()() const { return plain(callable, args, count, names); }
};

bool is_timed(PyObject* direct);

// Does and times a call that is on its way to the mode; false: it was not done, and is to go there.
bool timed_on_its_way(PyObject* timed, const Way& way, PyObject*& result);

// The same for a function whose calls a recorder writes down; its `direct` is held meanwhile.
bool is_recorded(PyObject* direct);
bool recorded_on_its_way(PyObject* recorded, const Way& way, PyObject*& result);

}  // namespace op_tools
