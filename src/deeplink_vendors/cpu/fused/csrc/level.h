/* SPDX-License-Identifier: Apache-2.0 */
// The kernels, compiled for each level: LEVEL is its name, WIDTH the number of floats in a vector.
// Nothing of the standard library is used here: the linker could merge its templates, compiled for one
// level, into the code of another.
#include "kernels.h"

namespace dlinfer {
namespace LEVEL {
namespace {

constexpr int W = WIDTH;
typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef uint32_t U __attribute__((vector_size(W * 4)));
typedef uint16_t H __attribute__((vector_size(W * 2)));

template <int N>
struct Count {
  static constexpr int value = N;
};

constexpr float kInfinity = __builtin_inff();
constexpr int kTile = 64;  // keys whose scores are buffered

inline F load(const float* p) {
  F v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline F load(const bf16* p) {
  H h;
  __builtin_memcpy(&h, p, sizeof h);
  return (F)(__builtin_convertvector(h, U) << 16);
}
inline void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
inline void store(bf16* p, F v) {
  const U u = (U)v;
  const U rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const H h = __builtin_convertvector(v != v ? U{} + 0x7fc0 : rounded, H);
  __builtin_memcpy(p, &h, sizeof h);
}
inline float one(const float* p) { return *p; }
inline float one(const bf16* p) {
  const uint32_t u = uint32_t(p->bits) << 16;
  float v;
  __builtin_memcpy(&v, &u, 4);
  return v;
}
inline void put(float* p, float v) { *p = v; }
inline void put(bf16* p, float v) {
  uint32_t u;
  __builtin_memcpy(&u, &v, 4);
  p->bits = v != v ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
// A value after rounding to its storage type.
inline F rounded(const float*, F v) { return v; }
inline F rounded(const bf16*, F v) {
  const U u = (U)v;
  return v != v ? v : (F)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}
inline float rounded(const float*, float v) { return v; }
inline float rounded(const bf16*, float v) {
  bf16 room;
  put(&room, v);
  return one(&room);
}

inline F all(float v) { return F{} + v; }
inline F larger(F a, F b) { return a > b ? a : b; }

inline float sum(F v) {
#if WIDTH == 16
  typedef float F8 __attribute__((vector_size(32)));
  const F8 eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif WIDTH == 8
  const F eight = v;
#endif
  typedef float F4 __attribute__((vector_size(16)));
#if WIDTH == 4
  const F4 four = v;
#else
  const F4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#endif
  const F4 two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
  return two[0] + two[1];
}

// e to the x within 2 steps of float; 0 and infinity beyond the range, NaN for NaN.
inline F exponential(F x) {
  x = x < all(-104.f) ? all(-104.f) : x;
  x = x > all(104.f) ? all(104.f) : x;
  const F shifted = x * 1.44269504f + 12582912.f;  // adding 1.5 * 2^23 rounds to an integer
  const F whole = shifted - 12582912.f;
  const F r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
#if WIDTH == 16
  // times 2 to the integer, in the current rounding mode
  return __builtin_ia32_scalefps512_mask(p, whole, p, -1, 4);
#else
  // in two steps: the power itself may not be a normal number
  const I n = (I)shifted - 0x4b400000, half = n >> 1;
  return p * (F)((half + 127) << 23) * (F)((n - half + 127) << 23);
#endif
}
inline float exponential(float x) { return exponential(all(x))[0]; }

template <class T>
void rms_norm(const void* x_, const void* residual_, void* sum_, const void* w_, void* y_, int64_t n, float eps) {
  const T *x = (const T*)x_, *residual = (const T*)residual_, *w = (const T*)w_;
  T *total = (T*)sum_, *y = (T*)y_;
  F square[4] = {};
  float rest = 0;
  int64_t i = 0;
  if (residual) {
    for (; i + W <= n; i += W) {
      const F v = rounded(total, load(x + i) + load(residual + i));
      store(total + i, v);
      square[0] += v * v;
    }
    for (; i < n; i++) {
      const float v = rounded(total, one(x + i) + one(residual + i));
      put(total + i, v);
      rest += v * v;
    }
    x = total;
  } else {
    for (; i + 4 * W <= n; i += 4 * W)
      for (int part = 0; part < 4; part++) {
        const F v = load(x + i + part * W);
        square[part] += v * v;
      }
    for (; i + W <= n; i += W) {
      const F v = load(x + i);
      square[0] += v * v;
    }
    for (; i < n; i++) rest += one(x + i) * one(x + i);
  }
  const float squares = sum((square[0] + square[1]) + (square[2] + square[3])) + rest;
  const float inverse = 1.f / __builtin_sqrtf(squares / float(n) + eps);
  for (i = 0; i + W <= n; i += W) store(y + i, rounded(y, load(x + i) * inverse) * load(w + i));
  for (; i < n; i++) put(y + i, rounded(y, one(x + i) * inverse) * one(w + i));
}

// 1 / x for x from 1 to 2
inline F inverse(F x) {
#if WIDTH == 16
  // a division costs as much as all other operations
  const F near = __builtin_ia32_rcp14ps512_mask(x, F{}, -1);
  return near * (2.f - x * near);
#else
  return 1.f / x;
#endif
}

template <class V>
inline V silu(V v) {
  if constexpr (sizeof(V) == sizeof(float)) {
    return silu(all(v))[0];
  } else {
    const F e = exponential(v < 0 ? v : -v), share = inverse(e + 1.f);  // of numbers that never overflow
    return v * (v < 0 ? e * share : share);
  }
}

template <class T>
void silu_and_mul(const void* gate_, const void* up_, void* out_, int64_t n) {
  const T *gate = (const T*)gate_, *up = (const T*)up_;
  T* out = (T*)out_;
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, silu(load(gate + i)) * load(up + i));
  for (; i < n; i++) put(out + i, silu(one(gate + i)) * one(up + i));
}

template <class T, class C>
void rotary(const void* x_, const void* cos_, const void* sin_, void* y_, int64_t heads, int64_t head_stride,
            int64_t size, int64_t turned, bool interleaved) {
  const C *c = (const C*)cos_, *s = (const C*)sin_;
  const int64_t half = turned / 2;
  for (int64_t head = 0; head < heads; head++) {
    const T* x = (const T*)x_ + head * head_stride;
    T* y = (T*)y_ + head * size;
    if (interleaved) {
      for (int64_t i = 0; i < turned; i += 2) {
        const float a = one(x + i), b = one(x + i + 1);
        put(y + i, a * one(c + i) - b * one(s + i));
        put(y + i + 1, b * one(c + i + 1) + a * one(s + i + 1));
      }
    } else {
      int64_t i = 0;
      for (; i + W <= half; i += W) {
        const F a = load(x + i), b = load(x + i + half);
        store(y + i, a * load(c + i) - b * load(s + i));
        store(y + i + half, b * load(c + i + half) + a * load(s + i + half));
      }
      for (; i < half; i++) {
        const float a = one(x + i), b = one(x + i + half);
        put(y + i, a * one(c + i) - b * one(s + i));
        put(y + i + half, b * one(c + i + half) + a * one(s + i + half));
      }
    }
    for (int64_t i = turned; i < size; i++) y[i] = x[i];
  }
}

#include "level_attention.h"

template <class T>
__attribute__((noinline)) float rest_of_row(const float* x, const T* w, int64_t n) {
  float total = 0;
  for (int64_t k = 0; k < n; k++) total += one(w + k) * x[k];
  return total;
}

// y[n] = x . w[n] + bias[n] for one row of x, R rows of w at a time. Memory bandwidth is the limit, so later
// rows are prefetched into the second-level cache; the hardware prefetcher stops at a page. A separate
// function, so that all addresses fit in registers.
template <class T, int R>
__attribute__((noinline)) int64_t one_row(const float* x, const T* w, int64_t w_row, const T* bias, T* y, int64_t from, int64_t to,
                                          int64_t inner) {
  const int64_t whole = inner / W * W;
  int64_t n = from;
  for (; n + R <= to; n += R) {
    const T *here = w + n * w_row, *next = here + 2 * R * w_row;
    F sums[R] = {};
    for (int64_t k = 0; k < whole; k += W) {
      const F value = load(x + k);
      for (int r = 0; r < R; r++) {
        __builtin_prefetch(next + r * w_row + k, 0, 2);
        sums[r] += load(here + r * w_row + k) * value;
      }
    }
    for (int r = 0; r < R; r++) {
      float total = sum(sums[r]);
      if (whole < inner) total += rest_of_row(x + whole, here + r * w_row + whole, inner - whole);
      put(y + n + r, total + (bias ? one(bias + n + r) : 0.f));
    }
  }
  return n;
}

// Number of rows of w per M rows of x: enough sums to hide the latency of an addition.
template <int M>
constexpr int together() {
  return M == 1 ? 8 : WIDTH == 16 ? (M < 4 ? 4 : M < 16 ? 2 : 1) : (M < 8 ? 8 / M : 1);
}

// y[m, n] = x[m] . w[n] + bias[n] for M rows of x and the rows of w from `from` on, R at a time.
// `ahead`: prefetches the rows after them; with several rows of x the hardware prefetcher fails.
template <class T, int M>
void linear_rows(const float* x, const T* w, int64_t w_row, const T* bias, T* y, int64_t from, int64_t to, int64_t inner,
                 int64_t outer, bool ahead) {
  constexpr int R = together<M>();
  const auto block = [&](int64_t n, auto rows, auto fetched) {
    constexpr int count = decltype(rows)::value;
    F sums[count][M] = {};
    int64_t k = 0;
    for (; k + W <= inner; k += W) {
      F weight[count];
      for (int r = 0; r < count; r++) {
        if constexpr (decltype(fetched)::value) __builtin_prefetch(w + (n + r + count) * w_row + k);
        weight[r] = load(w + (n + r) * w_row + k);
      }
      for (int m = 0; m < M; m++) {
        const F value = load(x + m * inner + k);
        for (int r = 0; r < count; r++) sums[r][m] += weight[r] * value;
      }
    }
    for (int r = 0; r < count; r++)
      for (int m = 0; m < M; m++) {
        float total = sum(sums[r][m]);
        for (int64_t rest = k; rest < inner; rest++) total += one(w + (n + r) * w_row + rest) * x[m * inner + rest];
        put(y + m * outer + n + r, total + (bias ? one(bias + n + r) : 0.f));
      }
  };
  int64_t n = from;
  if (M > 1 && ahead) {
    for (; n + R <= to; n += R) block(n, Count<R>{}, Count<1>{});
  } else {
    for (; n + R <= to; n += R) block(n, Count<R>{}, Count<0>{});
  }
  for (; n < to; n++) block(n, Count<1>{}, Count<0>{});
}

constexpr int64_t kNear = 768;  // maximum length of rows of which sixteen stay in the cache

template <class T>
void linear(const float* x, const void* w_, int64_t w_row, const void* bias, void* y_, int64_t rows, int64_t from,
            int64_t to, int64_t inner, int64_t outer) {
  const T* w = (const T*)w_;
  T* y = (T*)y_;
  if (rows == 1) {
    const int64_t done = one_row<T, 4>(x, w, w_row, (const T*)bias, y, from, to, inner);
    one_row<T, 1>(x, w, w_row, (const T*)bias, y, done, to, inner);
    return;
  }
  const int64_t step = rows > 8 ? 2 : 8;  // rows of w that stay in the cache for all rows of x
  for (int64_t n = from; n < to; n += step) {
    const int64_t last = n + step < to ? n + step : to;
    int64_t m = 0;
    const auto part = [&](auto count) {
      constexpr int M = decltype(count)::value;
      for (; m + M <= rows; m += M)
        linear_rows<T, M>(x + m * inner, w, w_row, (const T*)bias, y + m * outer, n, last, inner, outer, m == 0);
    };
#if WIDTH == 16
    if (inner <= kNear) part(Count<16>{});
#endif
    part(Count<8>{});
    part(Count<4>{});
    part(Count<2>{});
    part(Count<1>{});
  }
}

#include "level_columns.h"
#include "level_products.h"
#include "level_delta.h"

}  // namespace

const Kernels table = {
    LEVEL_NAME,
    {rms_norm<float>, rms_norm<bf16>},
    {silu_and_mul<float>, silu_and_mul<bf16>},
    {rotary<float, float>, rotary<bf16, bf16>, rotary<bf16, float>},
    {attend<float>, attend<bf16>},
    {merge<float>, merge<bf16>},
    {linear<float>, linear<bf16>},
    {columns<float>, columns<bf16>},
    WIDTH == 16 ? 16 : 4,
    WIDTH == 16 ? kMost : 16,
    {gelu_and_mul<float>, gelu_and_mul<bf16>},
    {quantise<float>, quantise<bf16>},
    int8_products,
    {restore<float, float>, restore<bf16, bf16>, restore<bf16, float>},
    {add_scaled<float>, add_scaled<bf16>},
    {delta<float>, delta<bf16>},
    {conv<float>, conv<bf16>},
};

}  // namespace LEVEL
}  // namespace dlinfer
