// SPDX-License-Identifier: Apache-2.0
// The gated delta rule and its causal convolution, on the dispatch key of the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tensors.h"

namespace dlinfer {
namespace {

// A sequence: its tokens, and the slot of its state.
struct Sequence {
  int64_t begin, end, slot;
  bool fresh;
};

std::vector<Sequence> sequences(const char* op, const Tensor& slots, const Tensor* cu_q, const Maybe& fresh, int64_t tokens, int64_t places) {
  const Whole where(slots), bounds(cu_q ? *cu_q : slots);
  const Tensor starts = fresh ? fresh->contiguous() : Tensor();
  std::vector<Sequence> found(slots.numel());
  for (const auto row : c10::irange(slots.numel())) {
    const bool begins = fresh && starts.const_data_ptr<bool>()[row];
    found[row] = {cu_q ? bounds[row] : row, cu_q ? bounds[row + 1] : row + 1, where[row], begins};
    const auto& one = found[row];
    TORCH_CHECK_INDEX(one.begin >= 0 && one.begin <= one.end && one.end <= tokens, op, ": the bounds of sequence ", row, " are not in order");
    TORCH_CHECK_INDEX(one.slot < places, op, ": slot ", one.slot, " of row ", row, " is beyond the state, which has ", places);
  }
  return found;
}

// Whether every token belongs to a sequence.
bool covered(const std::vector<Sequence>& all, int64_t tokens) { return !all.empty() && all.front().begin == 0 && all.back().end == tokens; }

std::string not_rows(const Tensor& slots, const Tensor* cu_q, const Maybe& fresh, int64_t tokens) {
  if (slots.dim() != 1 || (cu_q ? cu_q->numel() != slots.numel() + 1 : slots.numel() != tokens)) return "its kernel requires a slot for each row";
  return !fresh || (fresh->scalar_type() == at::kBool && fresh->numel() == slots.numel()) ? "" : "its kernel requires `fresh` as bools";
}

std::string not_conv(const Tensor& x, const Tensor& weight, const Maybe& bias, const Tensor& state, c10::string_view activation) {
  std::string why = mixed({&x, &weight, &state});
  if (why.empty() && bias) why = mixed({&x, &*bias});
  if (!why.empty()) return why;
  if (x.dim() != 2 || weight.dim() != 2 || state.dim() != 3 || weight.size(0) != x.size(1) || state.size(1) != x.size(1))
    return "its kernel requires [tokens, channels], [channels, width] and [slots, channels, length]";
  if (weight.size(1) > kTaps || weight.size(1) < 1 || state.size(2) < weight.size(1) - 1 || (state.size(2) > 1 && state.stride(2) != 1))
    return "its kernel has no convolution of this width";
  return activation == "silu" || activation.empty() ? "" : "its kernel has silu and no activation";
}

Tensor convolved(const char* op, const Tensor& x, const Tensor& weight, const Maybe& bias, const Tensor& state, const Tensor& slots,
                 const Tensor* cu_q, const Maybe& fresh, bool silu) {
  const Tensor in = dense(x), taps = weight.contiguous(), added = bias ? bias->contiguous() : Tensor();
  const auto all = sequences(op, slots, cu_q, fresh, x.size(0), state.size(0));
  Tensor out = covered(all, x.size(0)) ? at::empty(x.sizes(), x.options()) : at::zeros(x.sizes(), x.options());
  const int64_t channels = x.size(1), part = 64, parts = (channels + part - 1) / part, item = x.element_size();
  char* memory = static_cast<char*>(state.mutable_data_ptr());
  at::parallel_for(0, int64_t(all.size()) * parts, 4, [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end)) {
      const Sequence& one = all[i / parts];
      Conv call{};
      call.x = address(in) + one.begin * in.stride(0) * item;
      call.x_token = in.stride(0);
      call.weight = address(taps);
      call.width = weight.size(1);
      call.bias = bias ? address(added) : nullptr;
      call.state = one.slot < 0 ? nullptr : memory + one.slot * state.stride(0) * item;
      call.state_channel = state.stride(1);
      call.length = state.size(2);
      call.fresh = one.fresh;
      call.silu = silu;
      call.out = address(out) + one.begin * channels * item;
      call.out_token = channels;
      call.tokens = one.end - one.begin;
      call.from = i % parts * part;
      call.to = std::min(channels, call.from + part);
      kernels().conv[kind(x)](call);
    }
  });
  return out;
}

Tensor causal_conv1d_prefill(const Tensor& x, const Tensor& weight, const Maybe& bias, const Tensor& state, const Tensor& slots,
                             const Tensor& cu_q, const Maybe& fresh, c10::string_view activation) {
  const char* name = "causal_conv1d_prefill";
  std::string why = bypassed ? "" : not_conv(x, weight, bias, state, activation);
  if (!bypassed && why.empty()) why = not_rows(slots, &cu_q, fresh, x.size(0));
  if (bypassed || !why.empty())
    return otherwise<Tensor>(name, why, x, weight, bias, state, slots, cu_q, fresh, std::string(activation));
  return convolved(name, x, weight, bias, state, slots, &cu_q, fresh, !activation.empty());
}

Tensor causal_conv1d_decode(const Tensor& x, const Tensor& weight, const Maybe& bias, const Tensor& state, const Tensor& slots,
                            c10::string_view activation) {
  const char* name = "causal_conv1d_decode";
  std::string why = bypassed ? "" : not_conv(x, weight, bias, state, activation);
  if (!bypassed && why.empty()) why = not_rows(slots, nullptr, std::nullopt, x.size(0));
  if (bypassed || !why.empty()) return otherwise<Tensor>(name, why, x, weight, bias, state, slots, std::string(activation));
  return convolved(name, x, weight, bias, state, slots, nullptr, std::nullopt, !activation.empty());
}

std::string not_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta, const Tensor& state) {
  const std::string why = mixed({&q, &k, &v});
  if (!why.empty()) return why;
  if (state.scalar_type() != at::kFloat) return "its kernel requires a state of float32";
  if (q.dim() != 3 || v.dim() != 3 || q.sizes() != k.sizes() || v.size(0) != q.size(0) || !q.size(1) || v.size(1) % q.size(1))
    return "its kernel requires [tokens, heads, size], and value heads that heads divide";
  if (decay.sizes() != v.sizes().slice(0, 2) || beta.sizes() != decay.sizes()) return "its kernel does not expand decay and beta";
  const bool fits = state.dim() == 4 && state.size(1) == v.size(1) && state.size(2) == q.size(2) && state.size(3) == v.size(2);
  const bool plain = fits && state.stride(3) == 1 && state.stride(2) == state.size(3);
  return plain ? "" : "its kernel requires a state [slots, value heads, size, value size], dense in the last two";
}

Tensor ruled(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta, const Tensor& state,
             const Tensor& slots, const Tensor* cu_q, double scale, const Maybe& fresh, bool normalise) {
  const Tensor queries = dense(q), keys = dense(k), values = dense(v);
  const Tensor decays = decay.to(at::kFloat).contiguous(), betas = beta.to(at::kFloat).contiguous();
  const auto all = sequences(op, slots, cu_q, fresh, q.size(0), state.size(0));
  const int64_t heads = v.size(1), each = heads / q.size(1), size = q.size(2), value_size = v.size(2), item = q.element_size();
  Tensor out = covered(all, q.size(0)) ? at::empty(v.sizes(), v.options()) : at::zeros(v.sizes(), v.options());
  float* memory = state.mutable_data_ptr<float>();
  at::parallel_for(0, int64_t(all.size()) * heads, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> room(new float[2 * (size + value_size) + size * value_size]);
    float* empty = room.get() + 2 * (size + value_size);
    for (const auto i : c10::irange(begin, end)) {
      const Sequence& one = all[i / heads];
      const int64_t head = i % heads;
      Delta call{};
      call.q = address(queries) + (one.begin * queries.stride(0) + head / each * queries.stride(1)) * item;
      call.k = address(keys) + (one.begin * keys.stride(0) + head / each * keys.stride(1)) * item;
      call.v = address(values) + (one.begin * values.stride(0) + head * values.stride(1)) * item;
      call.q_token = queries.stride(0);
      call.k_token = keys.stride(0);
      call.v_token = values.stride(0);
      call.decay = decays.const_data_ptr<float>() + one.begin * heads + head;
      call.beta = betas.const_data_ptr<float>() + one.begin * heads + head;
      call.gate_token = heads;
      call.state = one.slot < 0 ? empty : memory + one.slot * state.stride(0) + head * state.stride(1);
      if (one.slot < 0 || one.fresh) std::fill(call.state, call.state + size * value_size, 0.f);
      call.out = address(out) + (one.begin * heads + head) * value_size * item;
      call.out_token = heads * value_size;
      call.tokens = one.end - one.begin;
      call.size = size;
      call.value_size = value_size;
      call.scale = scale;
      call.normalise = normalise;
      call.room = room.get();
      kernels().delta[kind(q)](call);
    }
  });
  return out;
}

Tensor gated_delta_decode(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta, const Tensor& state,
                          const Tensor& slots, double scale, bool normalise) {
  const char* name = "gated_delta_decode";
  std::string why = bypassed ? "" : not_delta(q, k, v, decay, beta, state);
  if (!bypassed && why.empty()) why = not_rows(slots, nullptr, std::nullopt, q.size(0));
  if (bypassed || !why.empty()) return otherwise<Tensor>(name, why, q, k, v, decay, beta, state, slots, scale, normalise);
  return ruled(name, q, k, v, decay, beta, state, slots, nullptr, scale, std::nullopt, normalise);
}

Tensor gated_delta_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta, const Tensor& state,
                           const Tensor& slots, const Tensor& cu_q, double scale, const Maybe& fresh, bool normalise) {
  const char* name = "gated_delta_prefill";
  std::string why = bypassed ? "" : not_delta(q, k, v, decay, beta, state);
  if (!bypassed && why.empty()) why = not_rows(slots, &cu_q, fresh, q.size(0));
  if (bypassed || !why.empty())
    return otherwise<Tensor>(name, why, q, k, v, decay, beta, state, slots, cu_q, scale, fresh, normalise);
  return ruled(name, q, k, v, decay, beta, state, slots, &cu_q, scale, fresh, normalise);
}

}  // namespace

TORCH_LIBRARY_IMPL(dlinfer, CPU, m) {
  m.impl("causal_conv1d_prefill", TORCH_FN(causal_conv1d_prefill));
  m.impl("causal_conv1d_decode", TORCH_FN(causal_conv1d_decode));
  m.impl("gated_delta_prefill", TORCH_FN(gated_delta_prefill));
  m.impl("gated_delta_decode", TORCH_FN(gated_delta_decode));
}

}  // namespace dlinfer
