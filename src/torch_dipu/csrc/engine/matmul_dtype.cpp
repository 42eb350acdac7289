// SPDX-License-Identifier: Apache-2.0
// Matrix products with the argument out_dtype, which CUDA has and the CPU lacks: the product of half
// types in float32, without rounding to their type.
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "runtime/core.h"

namespace dipu {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

static void check_types(const Tensor& a, const Tensor& b, ScalarType wanted) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "both matrices must have one dtype, found ", a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(
      wanted == a.scalar_type() || (wanted == at::kFloat && c10::isReducedFloatingType(a.scalar_type())),
      "out_dtype must be that of the matrices, or float32 for float16 and bfloat16, found ", wanted, " for ", a.scalar_type());
}
static void check_out(const Tensor& out, ScalarType wanted) {
  TORCH_CHECK(out.scalar_type() == wanted, "out must have the dtype of out_dtype, ", wanted, ", found ", out.scalar_type());
}

static Tensor mm(const Tensor& a, const Tensor& b, ScalarType type) {
  check_types(a, b, type);
  return at::mm(a.to(type), b.to(type));
}
static Tensor& mm_out(const Tensor& a, const Tensor& b, ScalarType type, Tensor& out) {
  check_types(a, b, type);
  check_out(out, type);
  return at::mm_out(out, a.to(type), b.to(type));
}
static Tensor bmm(const Tensor& a, const Tensor& b, ScalarType type) {
  check_types(a, b, type);
  return at::bmm(a.to(type), b.to(type));
}
static Tensor& bmm_out(const Tensor& a, const Tensor& b, ScalarType type, Tensor& out) {
  check_types(a, b, type);
  check_out(out, type);
  return at::bmm_out(out, a.to(type), b.to(type));
}
static Tensor addmm(
    const Tensor& self, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta, const Scalar& alpha) {
  check_types(a, b, type);
  return at::addmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}
static Tensor& addmm_out(
    const Tensor& self, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  check_types(a, b, type);
  check_out(out, type);
  return at::addmm_out(out, self.to(type), a.to(type), b.to(type), beta, alpha);
}
static Tensor baddbmm(
    const Tensor& self, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta, const Scalar& alpha) {
  check_types(a, b, type);
  return at::baddbmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}
static Tensor& baddbmm_out(
    const Tensor& self, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  check_types(a, b, type);
  check_out(out, type);
  return at::baddbmm_out(out, self.to(type), a.to(type), b.to(type), beta, alpha);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm.dtype", mm);
  m.impl("mm.dtype_out", mm_out);
  m.impl("bmm.dtype", bmm);
  m.impl("bmm.dtype_out", bmm_out);
  m.impl("addmm.dtype", addmm);
  m.impl("addmm.dtype_out", addmm_out);
  m.impl("baddbmm.dtype", baddbmm);
  m.impl("baddbmm.dtype_out", baddbmm_out);
}

}  // namespace dipu
