/* SPDX-License-Identifier: Apache-2.0 */
// The plan of a vendor's C functions: the source of each parameter on an overload's stack, computed
// when the library is loaded (torch_dipu/c_kernels.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/core.h"

namespace dipu {

// Index of a value: an argument on the stack, or a constant of the plan (-1 is the first).
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
  int mask;  // the argument that selects the requested results, or -1
  std::vector<int> results;  // the argument that each result is written to, or -1: a new tensor
  std::optional<c10::OperatorHandle> functional;  // its meta kernel gives the sizes of the results
  std::vector<Source> sources;  // the arguments of `functional`
  std::vector<c10::IValue> constants;
  uint64_t refused = 0;  // one bit for each type that is converted elsewhere
};

inline const c10::IValue& value_of(const Plan& plan, const c10::IValue* arguments, Source source) {
  return source >= 0 ? arguments[source] : plan.constants[static_cast<size_t>(-source - 1)];
}

// The results of these arguments; nullptr: the arguments are invalid, and the host raises the error.
const Geometries* results_of(const Plan& plan, const c10::IValue* arguments);
at::Tensor empty_result(const Geometry& geometry);  // on the current device

}  // namespace dipu
