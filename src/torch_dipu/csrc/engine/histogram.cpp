// SPDX-License-Identifier: Apache-2.0
// The histogram of integers, which CUDA has and the CPU refuses: computed in float64.
#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "runtime/core.h"

namespace dipu {

using at::Scalar;
using at::Tensor;

static Tensor count(const Tensor& values, int64_t bins, const Scalar& min, const Scalar& max) {
  // by way of int64: a count that does not fit wraps around, as on CUDA
  return at::histc(values.to(at::kDouble), bins, min, max).to(at::kLong).to(values.scalar_type());
}
static bool is_integer(const Tensor& t) {
  return at::isIntegralType(t.scalar_type(), /*includeBool=*/false);
}

static Tensor histc(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
  return is_integer(self) ? count(self, bins, min, max) : at::histc(self, bins, min, max);
}
static Tensor& histc_out(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max, Tensor& out) {
  if (!is_integer(self)) return at::histc_out(out, self, bins, min, max);
  TORCH_CHECK(
      out.scalar_type() == self.scalar_type(), "torch.histc: input tensor and out tensor should have the same dtype, but got input ",
      self.scalar_type(), " and out ", out.scalar_type());
  return out.resize_({bins}).copy_(count(self, bins, min, max));
}

TORCH_LIBRARY(dipu_host, m) {
  m.def("histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor");
  m.def("histc.out(Tensor self, int bins=100, Scalar min=0, Scalar max=0, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(dipu_host, CPU, m) {
  m.impl("histc", histc);
  m.impl("histc.out", histc_out);
}

}  // namespace dipu
