/* SPDX-License-Identifier: Apache-2.0 */
// How the parameters of a vendor's C functions come from an overload's stack: decided when the library
// was loaded (torch_dipu/c_kernels.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/core.h"

namespace dipu {

// Where a value comes from: an argument on the stack, or a constant of the plan (-1 is the first).
using Source = int;

enum class Form : uint8_t { Functional, Out, InPlace };

struct Geometry {
  at::DimVector sizes, strides;
  at::ScalarType type = at::ScalarType::Undefined;  // undefined: no tensor
};
using Geometries = c10::SmallVector<Geometry, 2>;

struct Plan {
  Form form;
  bool pointwise, dynamic;
  int mask;                                    // the argument that says which results are wanted, or -1
  std::vector<int> results;                    // the argument that each result goes into, or -1: a new tensor
  std::optional<c10::OperatorHandle> functional;  // what tells the results' sizes
  std::vector<Source> sources;                 // its arguments
  std::vector<c10::IValue> constants;
  uint64_t refused = 0;                        // types that are converted elsewhere: a bit each
};

inline const c10::IValue& value_of(const Plan& plan, const c10::IValue* arguments, Source source) {
  return source >= 0 ? arguments[source] : plan.constants[static_cast<size_t>(-source - 1)];
}

// The results of these arguments; nullptr: the arguments are wrong, and the host will say how.
const Geometries* results_of(const Plan& plan, const c10::IValue* arguments);
at::Tensor empty_result(const Geometry& geometry);  // on the current device

}  // namespace dipu
