// SPDX-License-Identifier: Apache-2.0
// Operators that SyncBatchNorm requires of an accelerator: statistics and gradients in two steps.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include "runtime/core.h"

namespace dipu {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// Half types are summed in float32, as on CUDA.
static Tensor wide(const Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
}
static std::vector<int64_t> all_but_channel(const Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < input.dim(); i++) if (i != 1) dims.push_back(i);
  return dims;
}
static Tensor per_channel(const Tensor& t, const Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return wide(t).view(shape);
}

static std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const auto [var, mean] = at::var_mean(wide(input), all_but_channel(input), /*correction=*/at::Scalar(0), /*keepdim=*/false);
  return {mean, at::rsqrt(var + eps)};
}

static std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(
    const Tensor& input, const Tensor& means, const Tensor& invstds, const MaybeTensor& running_mean,
    const MaybeTensor& running_var, double momentum, double eps, const Tensor& counts) {
  const Tensor weight = wide(counts).to(means.scalar_type()).view({-1, 1});
  const Tensor total = weight.sum();
  const Tensor mean = (means * weight).sum(0) / total;
  const Tensor vars = invstds.pow(-2) - eps;
  const Tensor var = (weight * (vars + (means - mean).square())).sum(0) / total;
  if (running_mean.has_value() && running_mean->defined()) {
    running_mean->mul_(1 - momentum).add_(mean.to(running_mean->scalar_type()), momentum);
  }
  if (running_var.has_value() && running_var->defined()) {
    running_var->mul_(1 - momentum).add_((var * (total / (total - 1))).to(running_var->scalar_type()), momentum);
  }
  return {mean, at::rsqrt(var + eps)};
}

static Tensor batch_norm_elemt(
    const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean, const Tensor& invstd, double) {
  Tensor result = (wide(input) - per_channel(mean, input)) * per_channel(invstd, input);
  if (weight.has_value() && weight->defined()) result = result * per_channel(*weight, input);
  if (bias.has_value() && bias->defined()) result = result + per_channel(*bias, input);
  return result.to(input.scalar_type());
}

static std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(
    const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& weight, bool input_g,
    bool weight_g, bool bias_g) {
  const Tensor wide_grad = wide(grad);
  const Tensor sum_dy = wide_grad.sum(all_but_channel(input));
  const Tensor sum_dy_xmu = (wide_grad * (wide(input) - per_channel(mean, input))).sum(all_but_channel(input));
  const auto dtype = weight.has_value() && weight->defined() ? weight->scalar_type() : sum_dy.scalar_type();
  return {
      input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(),
      weight_g ? (sum_dy_xmu * wide(invstd)).to(dtype) : Tensor(), bias_g ? sum_dy.to(dtype) : Tensor()};
}

static Tensor batch_norm_backward_elemt(
    const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& weight,
    const Tensor& sum_dy, const Tensor& sum_dy_xmu, const Tensor& counts) {
  const Tensor total = counts.sum().to(sum_dy.scalar_type());
  const Tensor scale = per_channel(invstd, input);
  const Tensor centred = wide(input) - per_channel(mean, input);
  Tensor result = wide(grad) - per_channel(sum_dy / total, input);
  result = (result - centred * scale.square() * per_channel(sum_dy_xmu / total, input)) * scale;
  if (weight.has_value() && weight->defined()) result = result * per_channel(*weight, input);
  return result.to(input.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", batch_norm_stats);
  m.impl("batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts);
  m.impl("batch_norm_elemt", batch_norm_elemt);
  m.impl("batch_norm_backward_reduce", batch_norm_backward_reduce);
  m.impl("batch_norm_backward_elemt", batch_norm_backward_elemt);
}

}  // namespace dipu
