// SPDX-License-Identifier: Apache-2.0
// The token-wise ops, on the dispatch key of the CPU, and the Python bindings.
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <cstring>

#include "tensors.h"

namespace dlinfer {

std::atomic<bool> bypassed{false};
PyObject* refused = nullptr;

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels& found = [&]() -> const Kernels& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      return avx512_kernels();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2_kernels() : plain_kernels();
  }();
  return found;
#else
  return plain_kernels();
#endif
}

void norm(const Tensor& x, const Tensor* residual, Tensor* total, const Tensor& weight, Tensor& y, double eps) {
  const Rows in(x), more(residual ? *residual : x);
  const Tensor w = weight.contiguous();
  const int64_t step = in.size * x.element_size();
  const auto kernel = kernels().rms_norm[kind(x)];
  at::parallel_for(0, in.count, grain(in.size), [&](int64_t begin, int64_t end) {
    for (const auto row : c10::irange(begin, end))
      kernel(address(in.held) + row * in.stride, residual ? address(more.held) + row * more.stride : nullptr,
             total ? address(*total) + row * step : nullptr, address(w), address(y) + row * step, in.size, eps);
  });
}

std::string not_norm(const Tensor& x, const Tensor& weight) {
  if (x.dim() == 0 || weight.dim() != 1 || weight.size(0) != x.size(-1)) return "its kernel requires a weight of the last dimension's size";
  return "";
}

namespace {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (bypassed) return otherwise<Tensor>("rms_norm", "", x, weight, eps);
  std::string why = mixed({&x, &weight});
  if (why.empty()) why = not_norm(x, weight);
  if (!why.empty()) return otherwise<Tensor>("rms_norm", why, x, weight, eps);
  Tensor y = empty_as(x);
  norm(x, nullptr, nullptr, weight, y, eps);
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  using Both = std::tuple<Tensor, Tensor>;
  if (bypassed) return otherwise<Both>("add_rms_norm", "", x, residual, weight, eps);
  std::string why = mixed({&x, &residual, &weight});
  if (why.empty()) why = not_norm(x, weight);
  if (why.empty() && x.sizes() != residual.sizes()) why = "its kernel does not expand the residual";
  if (!why.empty()) return otherwise<Both>("add_rms_norm", why, x, residual, weight, eps);
  Tensor y = empty_as(x), total = empty_as(x);
  norm(x, &residual, &total, weight, y, eps);
  return {y, total};
}

Tensor silu_and_mul(const Tensor& x) {
  if (bypassed) return otherwise<Tensor>("silu_and_mul", "", x);
  std::string why = wrong_type(x);
  if (why.empty() && (x.dim() == 0 || x.size(-1) % 2)) why = "its kernel requires two halves";
  if (!why.empty()) return otherwise<Tensor>("silu_and_mul", why, x);
  const Rows in(x);
  const int64_t half = in.size / 2, bytes = half * x.element_size(), part = 1024, parts = (half + part - 1) / part;
  auto sizes = x.sizes().vec();
  sizes.back() = half;
  Tensor y = at::empty(sizes, x.options());
  const auto kernel = kernels().silu_and_mul[kind(x)];
  at::parallel_for(0, in.count * parts, grain(std::min(half, part)), [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end)) {
      const int64_t row = i / parts, first = i % parts * part, from = first * x.element_size();
      const char* gate = address(in.held) + row * in.stride + from;
      kernel(gate, gate + bytes, address(y) + row * bytes + from, std::min(part, half - first));
    }
  });
  return y;
}

std::string not_rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin) {
  std::string why = mixed({&q, &k});
  if (why.empty()) why = mixed({&cos, &sin});
  if (!why.empty()) return why;
  if (kind(cos) != kind(q) && kind(q) != 1) return "its kernel requires cos and sin of the queries' type, or of float32";
  if (q.dim() != 3 || k.dim() != 3 || cos.dim() != 2 || cos.sizes() != sin.sizes()) return "its kernel requires [tokens, heads, size] and [tokens, turned]";
  const bool same = cos.size(0) == q.size(0) && k.size(0) == q.size(0) && k.size(2) == q.size(2);
  return same && cos.size(1) % 2 == 0 && cos.size(1) <= q.size(2) ? "" : "its kernel does not expand its arguments";
}

std::tuple<Tensor, Tensor> rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool interleaved) {
  using Both = std::tuple<Tensor, Tensor>;
  if (bypassed) return otherwise<Both>("rotary", "", q, k, cos, sin, interleaved);
  const std::string why = not_rotary(q, k, cos, sin);
  if (!why.empty()) return otherwise<Both>("rotary", why, q, k, cos, sin, interleaved);
  const Tensor from[2] = {dense(q), dense(k)}, c = cos.contiguous(), s = sin.contiguous();
  Tensor to[2] = {empty_as(q), empty_as(k)};
  const int64_t tokens = q.size(0), size = q.size(2), turned = c.size(1), angle = turned * c.element_size(), item = q.element_size();
  const auto kernel = kernels().rotary[kind(q) != kind(c) ? 2 : kind(q)];
  at::parallel_for(0, tokens, grain((q.size(1) + k.size(1)) * size), [&](int64_t begin, int64_t end) {
    for (const auto t : c10::irange(begin, end))
      for (const int which : {0, 1}) {
        const Tensor &x = from[which], &y = to[which];
        kernel(address(x) + t * x.stride(0) * item, address(c) + t * angle, address(s) + t * angle,
               address(y) + t * y.size(1) * size * item, x.size(1), x.stride(1), size, turned, interleaved);
      }
  });
  return {to[0], to[1]};
}

void fill(const Tensor& rows, const Tensor& cache, const Whole& slots) {
  const int64_t block = cache.size(1), places = cache.size(0) * block, heads = rows.size(1), size = rows.size(2), item = rows.element_size();
  const Tensor from = dense(rows);
  char* memory = static_cast<char*>(cache.mutable_data_ptr());
  const bool together = (cache.stride(2) == size && from.stride(1) == size) || heads == 1;
  at::parallel_for(0, rows.size(0), grain(heads * size), [&](int64_t begin, int64_t end) {
    for (const auto t : c10::irange(begin, end)) {
      const int64_t slot = slots[t];
      if (slot < 0) continue;
      TORCH_CHECK_INDEX(slot < places, "fill_kv_cache: slot ", slot, " of token ", t, " is beyond the cache, which has ", places);
      char* to = memory + (slot / block * cache.stride(0) + slot % block * cache.stride(1)) * item;
      const char* x = address(from) + t * from.stride(0) * item;
      if (together) {
        std::memcpy(to, x, heads * size * item);
      } else {
        for (const auto h : c10::irange(heads)) std::memcpy(to + h * cache.stride(2) * item, x + h * from.stride(1) * item, size * item);
      }
    }
  });
}

constexpr int64_t kFew = 16;  // rows up to which reading the weights determines the time of a product

bool is_product(const Tensor& x, const Tensor& weight, const Maybe& bias) {
  if (x.dim() == 0 || weight.dim() != 2 || !x.size(-1) || x.size(-1) != weight.size(1)) return false;
  if (!mixed({&x, &weight}).empty() || x.numel() == 0) return false;
  return !bias || (bias->dim() == 1 && bias->size(0) == weight.size(0) && bias->scalar_type() == x.scalar_type());
}

Tensor result_of(const Tensor& x, int64_t outer) {
  auto sizes = x.sizes().vec();
  sizes.back() = outer;
  return at::empty(sizes, x.options());
}

// Groups of rows, in each group the rows adjacent: [groups, inner, together]; the last group is padded with 0.
Tensor side_by_side(const Tensor& x, int64_t rows, int64_t inner, int64_t together) {
  const Tensor in = x.contiguous().to(at::kFloat);
  if (together == 1) return in;
  const int64_t groups = (rows + together - 1) / together;
  Tensor out = at::empty({groups, inner, together}, in.options());
  const float* from = in.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (const auto g : c10::irange(groups))
    for (const auto k : c10::irange(inner))
      for (const auto m : c10::irange(together)) {
        const int64_t row = g * together + m;
        *to++ = row < rows ? from[row * inner + k] : 0.f;
      }
  return out;
}

Tensor by_rows(const Tensor& x, const Tensor& weight, const Maybe& bias, int64_t rows) {
  const Tensor in = x.contiguous().to(at::kFloat), added = bias ? bias->contiguous() : Tensor();
  const int64_t inner = weight.size(1), outer = weight.size(0), steps = (outer + kTogether - 1) / kTogether;
  Tensor y = result_of(x, outer);
  const auto kernel = kernels().linear[kind(x)];
  at::parallel_for(0, steps, grain(kTogether * inner), [&](int64_t begin, int64_t end) {
    for (const auto step : c10::irange(begin, end))
      kernel(in.const_data_ptr<float>(), address(weight), weight.stride(0), bias ? address(added) : nullptr, address(y), rows,
             step * kTogether, std::min(outer, (step + 1) * kTogether), inner, outer);
  });
  return y;
}

Tensor by_columns(const Tensor& x, const Tensor& weight, const Maybe& bias, int64_t rows) {
  const int64_t inner = weight.size(1), outer = weight.size(0), groups = (rows + kernels().group - 1) / kernels().group;
  // as in the kernels
  const int64_t each = (rows + groups - 1) / groups, together = each > 2 ? (each + 3) / 4 * 4 : each;
  const Tensor in = side_by_side(x, rows, inner, together), added = bias ? bias->contiguous() : Tensor();
  const int64_t threads = at::get_num_threads(), share = ((outer + threads - 1) / threads + 15) / 16 * 16;
  const int64_t wide = std::min(panel(together, x.element_size()), std::max<int64_t>(share, 64)), panels = (outer + wide - 1) / wide;
  Tensor y = result_of(x, outer);
  const auto kernel = kernels().columns[kind(x)];
  const int64_t most = kMost / together * together, item = x.element_size();
  at::parallel_for(0, panels, grain(wide * inner), [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end))
      for (int64_t row = 0; row < rows; row += most)
        kernel(in.const_data_ptr<float>() + row * inner, address(weight), weight.stride(1), bias ? address(added) : nullptr,
               address(y) + row * outer * item, std::min(most, rows - row), together, i * wide, std::min(outer, (i + 1) * wide), inner, outer);
  });
  return y;
}

}  // namespace

Tensor product(const Tensor& x, const Tensor& weight, const Maybe& bias, bool any_rows) {
  if (!is_product(x, weight, bias)) return at::linear(x, weight, bias);
  const int64_t rows = x.numel() / x.size(-1);
  if ((any_rows || rows <= kernels().most) && weight.stride(0) == 1 && weight.stride(1) >= weight.size(0)) return by_columns(x, weight, bias, rows);
  if (rows <= kFew && weight.stride(1) == 1 && weight.stride(0) >= weight.size(1)) return by_rows(x, weight, bias, rows);
  return at::linear(x, weight, bias);
}

namespace {

Tensor linear(const Tensor& x, const Tensor& weight, const Maybe& bias, c10::string_view group) {
  if (bypassed || !group.empty())
    return otherwise<Tensor>("linear", bypassed ? "" : "its kernel does not sum over a group", x, weight, bias, std::string(group));
  return product(x, weight, bias);
}

Tensor few_rows(const Tensor& x, const Tensor& weight, bool measured) { return product(x, weight, std::nullopt, measured); }

std::string not_fill(const Tensor& rows, const Tensor& cache, const Tensor& slots, const Maybe& scales) {
  if (scales) return "its kernel does not quantise";
  const std::string why = mixed({&rows, &cache});
  if (!why.empty()) return why;
  if (rows.dim() != 3 || cache.dim() != 4 || slots.dim() != 1) return "its kernel requires [tokens, heads, size], [blocks, places, heads, size] and [tokens]";
  if (cache.size(3) > 1 && cache.stride(3) != 1) return "its kernel requires a cache whose last dimension is dense";
  const bool same = slots.size(0) == rows.size(0) && cache.size(2) == rows.size(1) && cache.size(3) == rows.size(2);
  return same ? "" : "its kernel does not expand its arguments";
}

void fill_kv_cache(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const Tensor& slots,
                   const Maybe& k_scales, const Maybe& v_scales, const Maybe& k_zeros, const Maybe& v_zeros) {
  std::string why;
  if (!bypassed) {
    why = not_fill(k, k_cache, slots, k_scales);
    if (why.empty()) why = not_fill(v, v_cache, slots, v_scales);
  }
  if (bypassed || !why.empty())
    return otherwise<void>("fill_kv_cache", why, k, v, k_cache, v_cache, slots, k_scales, v_scales, k_zeros, v_zeros);
  const Whole places(slots);
  fill(k, k_cache, places);
  fill(v, v_cache, places);
}

}  // namespace

TORCH_LIBRARY_IMPL(dlinfer, CPU, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("add_rms_norm", TORCH_FN(add_rms_norm));
  m.impl("silu_and_mul", TORCH_FN(silu_and_mul));
  m.impl("rotary", TORCH_FN(rotary));
  m.impl("fill_kv_cache", TORCH_FN(fill_kv_cache));
  m.impl("linear", TORCH_FN(linear));
}

TORCH_LIBRARY_IMPL(dicp, CPU, m) { m.impl("few_rows", TORCH_FN(few_rows)); }

}  // namespace dlinfer

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("start", [](pybind11::object call) { dlinfer::refused = call.release().ptr(); }, "set the callable for refused calls");
  m.def("bypass", [](bool on) { dlinfer::bypassed = on; }, "refuse every call, for another vendor's kernels");
  m.def("level", [] { return dlinfer::kernels().name; }, "the vector instructions in use");
  m.def("rms_norm", &dlinfer::rms_norm, "the kernel itself, without torch's dispatch: to measure that");
}
