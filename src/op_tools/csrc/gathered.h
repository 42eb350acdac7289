// Gradients of calls that were gathered, and the end of a backward pass for those: see unit_gathered.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <vector>

namespace op_tools {

// Our own work: unseen by modes and observers, and outside of the graph.
struct Aside {
  c10::impl::ExcludeDispatchKeyGuard modes{c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  at::DisableRecordFunctionGuard unwatched;
  at::NoGradGuard unrecorded;
};

// One call's gradients: of its results in float64, and of its arguments. Undefined where none came.
struct Flowed {
  Flowed(size_t results, size_t arguments) : outputs(results), inputs(arguments) {}

  std::vector<at::Tensor> outputs, inputs;
  bool complete = true;
  std::string error;
};

void finish_gathered();  // those that the pass went through in part are told so; needs no GIL

}  // namespace op_tools
