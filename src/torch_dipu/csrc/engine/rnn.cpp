// SPDX-License-Identifier: Apache-2.0
// The fused cells that PyTorch's recurrent layers require of an accelerator; the CPU has none.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "runtime/core.h"

namespace dipu {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

static bool given(const MaybeTensor& t) {
  return t.has_value() && t->defined();
}
static Tensor bias_gradient(const Tensor& gates, bool has_bias) {
  return has_bias ? gates.sum(0) : at::empty({0}, gates.options());
}

static std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& cx, const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  Tensor sum = input + hidden;
  if (given(input_bias)) sum = sum + *input_bias + *hidden_bias;
  const auto gates = sum.chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

static std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const Tensor& cx, const Tensor& cy, const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor gh = given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor gc = gh * out * (1 - tanh_cy * tanh_cy);
  if (given(grad_cy)) gc = gc + *grad_cy;
  const Tensor grads = at::cat(
      {gc * cell * in * (1 - in), gc * cx * forget * (1 - forget), gc * in * (1 - cell * cell),
       gh * tanh_cy * out * (1 - out)}, 1);
  return {grads, gc * forget, bias_gradient(grads, has_bias)};
}

static std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& hx, const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto from_input = (given(input_bias) ? input + *input_bias : input).chunk(3, 1);
  const auto from_hidden = (given(hidden_bias) ? hidden + *hidden_bias : hidden).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor candidate = (from_input[2] + reset * from_hidden[2]).tanh();
  return {candidate + update * (hx - candidate), at::cat({reset, update, candidate, hx, from_hidden[2]}, 1)};
}

static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &candidate = saved[2], &hx = saved[3], &hidden = saved[4];
  const Tensor g_candidate = grad_hy * (1 - update) * (1 - candidate * candidate);
  const Tensor g_update = grad_hy * (hx - candidate) * update * (1 - update);
  const Tensor g_reset = g_candidate * hidden * reset * (1 - reset);
  const Tensor g_input = at::cat({g_reset, g_update, g_candidate}, 1);
  const Tensor g_hidden = at::cat({g_reset, g_update, g_candidate * reset}, 1);
  return {g_input, g_hidden, grad_hy * update, bias_gradient(g_input, has_bias), bias_gradient(g_hidden, has_bias)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace dipu
