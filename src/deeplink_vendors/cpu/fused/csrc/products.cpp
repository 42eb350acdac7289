// SPDX-License-Identifier: Apache-2.0
// gelu, quantised products and mixtures of experts, on the dispatch key of the CPU.
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tensors.h"

namespace dlinfer {
namespace {

using Both = std::tuple<Tensor, Tensor>;
constexpr int64_t kMany = 2;  // rows of int8 from which torch's own product is faster
constexpr int64_t kRestoreFew = 8;  // rows up to which weights are dequantised a few at a time

void gelu_rows(const Rows& in, const Tensor& y, bool tanh) {
  const int64_t half = in.size / 2, item = y.element_size();
  const auto kernel = kernels().gelu_and_mul[kind(y)];
  at::parallel_for(0, in.count, grain(half), [&](int64_t begin, int64_t end) {
    for (const auto row : c10::irange(begin, end)) {
      const char* gate = address(in.held) + row * in.stride;
      kernel(gate, gate + half * item, address(y) + row * half * item, half, tanh);
    }
  });
}

Tensor gelu_and_mul(const Tensor& x, c10::string_view approximate) {
  const char* name = "gelu_and_mul";
  std::string why = bypassed ? "" : wrong_type(x);
  if (!bypassed && why.empty() && (x.dim() == 0 || x.size(-1) % 2)) why = "its kernel requires two halves";
  if (bypassed || !why.empty()) return otherwise<Tensor>(name, why, x, std::string(approximate));
  auto sizes = x.sizes().vec();
  sizes.back() /= 2;
  Tensor y = at::empty(sizes, x.options());
  gelu_rows(Rows(x), y, approximate == "tanh");
  return y;
}

Both quantised(const Tensor& x) {
  const Rows in(x);
  auto sizes = x.sizes().vec();
  Tensor numbers = at::empty(sizes, x.options().dtype(at::kChar));
  sizes.back() = 1;
  Tensor scales = at::empty(sizes, x.options().dtype(at::kFloat));
  const auto kernel = kernels().quantise[kind(x)];
  at::parallel_for(0, in.count, grain(in.size), [&](int64_t begin, int64_t end) {
    for (const auto row : c10::irange(begin, end))
      scales.mutable_data_ptr<float>()[row] =
          kernel(address(in.held) + row * in.stride, numbers.mutable_data_ptr<int8_t>() + row * in.size, in.size);
  });
  return {numbers, scales};
}

Both dynamic_quant(const Tensor& x) {
  std::string why = bypassed ? "" : wrong_type(x);
  if (!bypassed && why.empty() && (x.dim() == 0 || x.size(-1) == 0)) why = "its kernel requires rows";
  if (bypassed || !why.empty()) return otherwise<Both>("dynamic_quant", why, x);
  return quantised(x);
}

Both rms_norm_w8a8(const Tensor& x, const Tensor& weight, double eps) {
  std::string why = bypassed ? "" : mixed({&x, &weight});
  if (!bypassed && why.empty()) why = not_norm(x, weight);
  if (bypassed || !why.empty()) return otherwise<Both>("rms_norm_w8a8", why, x, weight, eps);
  Tensor y = empty_as(x);
  norm(x, nullptr, nullptr, weight, y, eps);
  return quantised(y);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_w8a8(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  using Three = std::tuple<Tensor, Tensor, Tensor>;
  std::string why = bypassed ? "" : mixed({&x, &residual, &weight});
  if (!bypassed && why.empty()) why = not_norm(x, weight);
  if (!bypassed && why.empty() && x.sizes() != residual.sizes()) why = "its kernel does not expand the residual";
  if (bypassed || !why.empty()) return otherwise<Three>("add_rms_norm_w8a8", why, x, residual, weight, eps);
  Tensor y = empty_as(x), total = empty_as(x);
  norm(x, &residual, &total, weight, y, eps);
  auto [numbers, scales] = quantised(y);
  return {numbers, scales, total};
}

std::string not_w8a8(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale, at::ScalarType out, const Maybe& bias) {
  if (a.scalar_type() != at::kChar || b.scalar_type() != at::kChar) return "its kernel supports int8 only";
  if (out != at::kFloat && out != at::kBFloat16) return "its kernel returns float32 and bfloat16";
  if (a_scale.scalar_type() != at::kFloat || b_scale.scalar_type() != at::kFloat) return "its kernel requires scales of float32";
  if (a.dim() == 0 || b.dim() != 2 || a.size(-1) != b.size(1) || b.stride(1) != 1) return "its kernel requires [..., in] and [out, in]";
  if (a_scale.numel() != a.numel() / std::max<int64_t>(a.size(-1), 1) || b_scale.numel() != b.size(0)) return "its kernel does not expand the scales";
  return bias && bias->numel() != b.size(0) ? "its kernel does not expand the bias" : "";
}

Tensor linear_w8a8(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale, at::ScalarType out, const Maybe& bias) {
  const std::string why = bypassed ? "" : not_w8a8(a, b, a_scale, b_scale, out, bias);
  if (bypassed || !why.empty()) return otherwise<Tensor>("linear_w8a8", why, a, b, a_scale, b_scale, out, bias);
  const Tensor left = a.contiguous(), rows_scale = a_scale.contiguous(), columns_scale = b_scale.contiguous();
  const Tensor added = bias ? bias->to(at::kFloat).contiguous() : Tensor();
  const int64_t inner = b.size(1), outer = b.size(0), rows = inner ? a.numel() / inner : 0, steps = (outer + kTogether - 1) / kTogether;
  auto sizes = a.sizes().vec();
  sizes.back() = outer;
  const bool many = rows > kMany;  // torch's own product is faster for them
  Tensor sums = many ? at::_int_mm(left.reshape({rows, inner}), b.t()) : at::empty({rows, outer}, a.options().dtype(at::kInt));
  Tensor y = at::empty(sizes, a.options().dtype(at::kFloat));
  const float *of_row = rows_scale.const_data_ptr<float>(), *of_column = columns_scale.const_data_ptr<float>();
  const float* more = bias ? added.const_data_ptr<float>() : nullptr;
  int32_t* whole = sums.mutable_data_ptr<int32_t>();
  float* result = y.mutable_data_ptr<float>();
  at::parallel_for(0, steps, grain(kTogether * inner), [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kTogether, to = std::min(outer, end * kTogether);
    if (!many)
      kernels().int8_products(left.const_data_ptr<int8_t>(), b.const_data_ptr<int8_t>(), b.stride(0), whole, rows, from, to, inner, outer);
    for (const auto m : c10::irange(rows))
      for (const auto n : c10::irange(from, to))
        result[m * outer + n] = float(whole[m * outer + n]) * of_row[m] * of_column[n] + (more ? more[n] : 0.f);
  });
  return out == at::kFloat ? y : y.to(out);
}

std::optional<Packing> stored_as(const Tensor& weight) {
  switch (weight.scalar_type()) {
    case at::kChar:
      return Packing::whole;
    case at::kByte:
      return Packing::nibbles;
    case at::kFloat8_e4m3fn:
      return Packing::float8;
    default:
      return std::nullopt;
  }
}

// A scale with a row for each row of the weight.
Tensor spread(const Tensor& scale, int64_t group, int64_t outer) {
  if (scale.size(0) == outer) return scale.contiguous();
  return scale.repeat_interleave(scale.size(0) == 1 ? outer : group, 0).slice(0, 0, outer).contiguous();
}

std::string not_restored(const Tensor& x, const Tensor& weight, const Tensor& scale, const Maybe& offset, int64_t group) {
  std::string why = wrong_type(x);
  if (why.empty() && scale.scalar_type() != at::kFloat) why = mixed({&x, &scale});
  if (why.empty() && offset) why = mixed({&scale, &*offset});
  if (!why.empty()) return why;
  const auto stored = stored_as(weight);
  if (!stored) return "its kernel has weights of int8, uint8 and float8_e4m3fn";
  if (x.dim() == 0 || weight.dim() != 2 || scale.dim() != 2 || weight.stride(1) != 1) return "its kernel requires [..., in], [out, in] and [out, groups]";
  const int64_t inner = x.size(-1), outer = weight.size(0), size = group ? group : inner;
  const bool rows = scale.size(0) == outer || scale.size(0) == 1 || (group && scale.size(0) == (outer + group - 1) / group);
  if (!inner || weight.size(1) * (*stored == Packing::nibbles ? 2 : 1) != inner || !rows || scale.size(1) != (inner + size - 1) / size)
    return "its kernel requires groups of one size";
  return offset && offset->sizes() != scale.sizes() ? "its kernel requires an offset for each scale" : "";
}

Tensor weight_quant_matmul(const Tensor& x, const Tensor& weight, const Tensor& scale, const Maybe& offset, const Maybe& bias, int64_t group) {
  const std::string why = bypassed ? "" : not_restored(x, weight, scale, offset, group);
  if (bypassed || !why.empty()) return otherwise<Tensor>("weight_quant_matmul", why, x, weight, scale, offset, bias, group);
  const Packing stored = *stored_as(weight);
  const int64_t inner = x.size(-1), outer = weight.size(0), rows = x.numel() / inner, size = group ? group : inner;
  const Tensor scales = spread(scale, group, outer), offsets = offset ? spread(*offset, group, outer) : Tensor();
  const int64_t item = x.element_size(), row = scales.size(1) * scales.element_size(), steps = (outer + kTogether - 1) / kTogether;
  const int type = kind(x);
  const auto kernel = kernels().restore[kind(x) == kind(scales) ? type : 2];
  const auto restore = [&](int64_t n, char* to) {
    kernel(address(weight) + n * weight.stride(0), stored, address(scales) + n * row, offset ? address(offsets) + n * row : nullptr, size,
           to, inner);
  };
  const bool plain_bias = !bias || (bias->scalar_type() == x.scalar_type() && bias->dim() == 1 && bias->size(0) == outer);
  if (rows > kRestoreFew || !plain_bias || !rows) {
    const Tensor whole = at::empty({outer, inner}, x.options());
    at::parallel_for(0, outer, grain(inner), [&](int64_t begin, int64_t end) {
      for (const auto n : c10::irange(begin, end)) restore(n, address(whole) + n * inner * item);
    });
    return at::linear(x, whole, bias).contiguous();
  }
  const Tensor in = x.contiguous().to(at::kFloat), added = bias ? bias->contiguous() : Tensor();
  auto sizes = x.sizes().vec();
  sizes.back() = outer;
  Tensor y = at::empty(sizes, x.options());
  at::parallel_for(0, steps, grain(kTogether * inner), [&](int64_t begin, int64_t end) {
    const Tensor few = at::empty({kTogether, inner}, x.options());
    for (const auto step : c10::irange(begin, end)) {
      const int64_t from = step * kTogether, count = std::min(outer - from, kTogether);
      for (const auto n : c10::irange(count)) restore(from + n, address(few) + n * inner * item);
      kernels().linear[type](in.const_data_ptr<float>(), address(few), inner, bias ? address(added) + from * item : nullptr,
                             address(y) + from * item, rows, 0, count, inner, outer);
    }
  });
  return y;
}

// The parameters of the choice of experts for a token.
struct Gate {
  int64_t count, top, groups, top_groups;
  bool sigmoid, renormalize;
  const float* bias;
  float scale;
};

// The indices of the largest, best first; the first of equal values.
void best(const float* values, int64_t count, int64_t top, std::vector<int64_t>& places) {
  places.resize(count);
  std::iota(places.begin(), places.end(), 0);
  std::partial_sort(places.begin(), places.begin() + top, places.end(),
                    [&](int64_t a, int64_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
  places.resize(top);
}

void gate_token(const float* logits, const Gate& gate, float* weights, int64_t* experts) {
  const int64_t count = gate.count;
  std::vector<float> scores(logits, logits + count);
  if (gate.sigmoid) {
    for (float& score : scores) score = 1.f / (1.f + std::exp(-score));
  } else {
    const float top = *std::max_element(scores.begin(), scores.end());
    float total = 0;
    for (float& score : scores) total += score = std::exp(score - top);
    for (float& score : scores) score /= total;
  }
  std::vector<float> wanted = scores;
  if (gate.bias)
    for (const auto i : c10::irange(count)) wanted[i] += gate.bias[i];
  std::vector<int64_t> places;
  if (gate.groups > 1) {
    const int64_t size = count / gate.groups;
    std::vector<float> worth(gate.groups);
    for (const auto g : c10::irange(gate.groups)) {
      best(&wanted[g * size], size, gate.bias ? 2 : 1, places);
      for (const auto place : places) worth[g] += wanted[g * size + place];
    }
    best(worth.data(), gate.groups, gate.top_groups, places);
    std::vector<bool> kept(gate.groups);
    for (const auto g : places) kept[g] = true;
    for (const auto i : c10::irange(count))
      if (!kept[i / size]) wanted[i] = -INFINITY;
  }
  best(wanted.data(), count, gate.top, places);
  float total = 0;
  for (const auto place : places) total += scores[place];
  for (const auto i : c10::irange(gate.top)) {
    experts[i] = places[i];
    weights[i] = scores[places[i]] / (gate.renormalize ? total : 1.f) * gate.scale;
  }
}

Both moe_gating(const Tensor& logits, int64_t top, bool renormalize, c10::string_view scoring, int64_t groups, int64_t top_groups,
                const Maybe& bias, double scale) {
  std::string why = bypassed ? "" : wrong_type(logits);
  const int64_t count = logits.dim() == 2 ? logits.size(1) : 0, size = groups ? count / groups : 0;
  if (!bypassed && why.empty()) {
    const bool fits = count && top > 0 && top <= count && groups > 0 && count % groups == 0 && top_groups <= groups && size >= (bias ? 2 : 1);
    if (!fits) why = "its kernel requires [tokens, experts], and groups of one size";
    if (bias && bias->numel() != count) why = "its kernel requires a bias for each expert";
  }
  if (bypassed || !why.empty())
    return otherwise<Both>("moe_gating", why, logits, top, renormalize, std::string(scoring), groups, top_groups, bias, scale);
  const Tensor given = logits.to(at::kFloat).contiguous(), added = bias ? bias->to(at::kFloat).contiguous() : Tensor();
  const int64_t tokens = given.size(0);
  Tensor weights = at::empty({tokens, top}, given.options()), experts = at::empty({tokens, top}, given.options().dtype(at::kLong));
  const Gate gate{count, top, groups, top_groups, scoring != "softmax", renormalize, bias ? added.const_data_ptr<float>() : nullptr, float(scale)};
  at::parallel_for(0, tokens, grain(16 * count), [&](int64_t begin, int64_t end) {
    for (const auto t : c10::irange(begin, end))
      gate_token(given.const_data_ptr<float>() + t * count, gate, weights.mutable_data_ptr<float>() + t * top,
                 experts.mutable_data_ptr<int64_t>() + t * top);
  });
  return {weights, experts};
}

std::string not_moe(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Tensor& weights, const Tensor& experts) {
  const std::string why = mixed({&x, &gate_up, &down});
  if (!why.empty()) return why;
  if (x.dim() != 2 || gate_up.dim() != 3 || down.dim() != 3 || weights.sizes() != experts.sizes() || weights.dim() != 2)
    return "its kernel requires [tokens, size], [experts, 2 * inner, size] and [experts, size, inner]";
  return weights.scalar_type() == at::kFloat ? "" : "its kernel requires weights of float32";
}

// Returns the result of one expert for some rows.
Tensor expert_of(const Tensor& x, const Tensor& gate_up, const Tensor& down, bool gelu) {
  const Tensor both = product(x, gate_up, std::nullopt);
  Tensor gated = at::empty({both.size(0), both.size(1) / 2}, both.options());
  if (gelu) {
    gelu_rows(Rows(both), gated, false);
  } else {
    const int64_t half = gated.size(1), item = both.element_size();
    for (const auto row : c10::irange(both.size(0))) {
      const char* gate = address(both) + 2 * row * half * item;
      kernels().silu_and_mul[kind(both)](gate, gate + half * item, address(gated) + row * half * item, half);
    }
  }
  return product(gated, down, std::nullopt);
}

Tensor fused_moe(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Tensor& weights, const Tensor& experts, c10::string_view activation) {
  std::string why = bypassed ? "" : not_moe(x, gate_up, down, weights, experts);
  if (!bypassed && why.empty() && activation != "silu" && activation != "gelu") why = "its kernel has silu and gelu";
  if (bypassed || !why.empty()) return otherwise<Tensor>("fused_moe", why, x, gate_up, down, weights, experts, std::string(activation));
  const Tensor shares = weights.contiguous();
  const Whole chosen(experts);
  const int64_t count = down.size(0), size = x.size(1), each = experts.size(1);
  std::vector<std::vector<int64_t>> places(count);
  for (const auto i : c10::irange(experts.numel())) {
    const int64_t expert = chosen[i];
    TORCH_CHECK_INDEX(expert >= 0 && expert < count, "fused_moe: expert ", expert, " of token ", i / each, "; there are ", count);
    places[expert].push_back(i);
  }
  Tensor total = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for (const auto expert : c10::irange(count)) {
    const auto& own = places[expert];
    if (own.empty()) continue;
    Tensor tokens = at::empty({int64_t(own.size())}, experts.options().dtype(at::kLong));
    for (const auto i : c10::irange(own.size())) tokens.mutable_data_ptr<int64_t>()[i] = own[i] / each;
    const Tensor made = expert_of(at::index_select(x, 0, tokens), gate_up[expert], down[expert], activation == "gelu").contiguous();
    for (const auto i : c10::irange(own.size()))
      kernels().add_scaled[kind(x)](address(made) + i * size * made.element_size(), shares.const_data_ptr<float>()[own[i]],
                                    total.mutable_data_ptr<float>() + own[i] / each * size, size);
  }
  return total.to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(dlinfer, CPU, m) {
  m.impl("gelu_and_mul", TORCH_FN(gelu_and_mul));
  m.impl("dynamic_quant", TORCH_FN(dynamic_quant));
  m.impl("rms_norm_w8a8", TORCH_FN(rms_norm_w8a8));
  m.impl("add_rms_norm_w8a8", TORCH_FN(add_rms_norm_w8a8));
  m.impl("linear_w8a8", TORCH_FN(linear_w8a8));
  m.impl("weight_quant_matmul", TORCH_FN(weight_quant_matmul));
  m.impl("moe_gating", TORCH_FN(moe_gating));
  m.impl("fused_moe", TORCH_FN(fused_moe));
}

}  // namespace dlinfer
