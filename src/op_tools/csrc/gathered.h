// Gradients of calls that were gathered, and the end of a backward pass for those: see unit_gathered.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace op_tools {

// One call's gradients: of its results in float64, and of its arguments. Undefined where none came.
struct Flowed {
  Flowed(size_t results, size_t arguments) : outputs(results), inputs(arguments) {}

  std::vector<at::Tensor> outputs, inputs;
  bool complete = true;
  std::string error;
};

void finish_gathered();  // those that the pass went through in part are told so; needs no GIL

}  // namespace op_tools
