/* SPDX-License-Identifier: Apache-2.0 */
// Checks and conversions of tensors in both process groups.
#pragma once

#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dipu {

using c10d::OpType;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<Work>;

// one-dimensional views
inline at::Tensor line(const at::Tensor& t) {
  return t.view({-1});
}
inline Tensors line(const Tensors& all) {
  Tensors result;
  for (auto& t : all) result.push_back(line(t));
  return result;
}
// all tensors in one list
inline Tensors flat(const TensorLists& all) {
  Tensors result;
  for (auto& list : all) result.insert(result.end(), list.begin(), list.end());
  return result;
}
inline Tensors flat(const Tensors& all) {
  return all;
}
inline Tensors flat(const at::Tensor& one) {
  return {one};
}

// Refuses types for which a reduction has no meaning.
inline void check_type(const at::Tensor& t, const c10d::ReduceOp& op) {
  TORCH_CHECK_TYPE(
      op != c10d::ReduceOp::AVG || t.scalar_type() != at::kBool, "dicl: ReduceOp.AVG has no meaning for bool; found a tensor of ",
      t.scalar_type(), ", allowed are floats, complex numbers and integers (their average is truncated)");
  TORCH_CHECK_TYPE(
      op != c10d::ReduceOp::PREMUL_SUM || t.is_floating_point(), "dicl: PREMUL_SUM is for floats; found a tensor of ",
      t.scalar_type());
}

}  // namespace dipu
