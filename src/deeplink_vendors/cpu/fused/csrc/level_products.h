/* SPDX-License-Identifier: Apache-2.0 */
// The kernels of quantised values and of gelu, compiled for each level; a part of level.h.

// gelu by the complement of erf, whose relative error is 1.2e-7 everywhere (Numerical Recipes' polynomial).
inline F gelu(F x) {
  const F far = x < 0 ? -x : x, z = far * 0.70710678f, t = 1.f / (1.f + 0.5f * z);
  F p = t * 0.17087277f - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  const F half = 0.5f * t * exponential(-z * z - 1.26551223f + t * p);
  const F share = x < 0 ? half : 1.f - half;
  return share == 0 ? x * 0.f : x * share;
}

inline F gelu_tanh(F x) {
  const F u = 1.5957691f * (x + 0.044715f * x * x * x);
  const F e = exponential(u < 0 ? u : -u), share = 1.f / (e + 1.f);
  return x * (u < 0 ? e * share : share);
}

template <class T>
void gelu_and_mul(const void* gate_, const void* up_, void* out_, int64_t n, bool tanh) {
  const T *gate = (const T*)gate_, *up = (const T*)up_;
  T* out = (T*)out_;
  const auto act = [&](F v) { return tanh ? gelu_tanh(v) : gelu(v); };
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, act(load(gate + i)) * load(up + i));
  for (; i < n; i++) put(out + i, act(all(one(gate + i)))[0] * one(up + i));
}

// Converts a row to int8; returns its scale.
template <class T>
float quantise(const void* x_, int8_t* out, int64_t n) {
  const T* x = (const T*)x_;
  F tops = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F v = load(x + i);
    tops = larger(v < 0 ? -v : v, tops);
  }
  float top = 0;
  for (int lane = 0; lane < W; lane++) top = tops[lane] > top ? tops[lane] : top;
  for (; i < n; i++) {
    const float v = __builtin_fabsf(one(x + i));
    top = v > top ? v : top;
  }
  const float scale = top / 127.f, divisor = scale == 0.f ? 1.f : scale;
  const auto whole = [&](F v) {
    v = v / divisor;
    v = v < -127.f ? all(-127.f) : v;
    v = v > 127.f ? all(127.f) : v;
    return (I)(v + 12582912.f) - 0x4b400000;  // adding 1.5 * 2^23 rounds to an integer
  };
  typedef int8_t B __attribute__((vector_size(W)));
  for (i = 0; i + W <= n; i += W) {
    const B bytes = __builtin_convertvector(whole(load(x + i)), B);
    __builtin_memcpy(out + i, &bytes, sizeof bytes);
  }
  for (; i < n; i++) out[i] = int8_t(whole(all(one(x + i)))[0]);
  return scale;
}

typedef int16_t S __attribute__((vector_size(W * 4)));

inline S wide(const int8_t* p) {
  typedef int8_t B __attribute__((vector_size(W * 2)));
  B bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, S);
}
// sums[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]
inline I products(I sums, S a, S b) {
#if WIDTH == 16
  return sums + (I)__builtin_ia32_pmaddwd512_mask((S)a, (S)b, I{}, -1);
#elif WIDTH == 8
  return sums + (I)__builtin_ia32_pmaddwd256(a, b);
#else
  for (int i = 0; i < W; i++) sums[i] += int32_t(a[2 * i]) * b[2 * i] + int32_t(a[2 * i + 1]) * b[2 * i + 1];
  return sums;
#endif
}

// out[m, n] = a[m] . b[n], exact, for R rows of b from n on
template <int M, int R>
inline void whole_products(const int8_t* a, const int8_t* b, int64_t b_row, int32_t* out, int64_t n, int64_t inner, int64_t outer) {
  I sums[R][M] = {};
  int64_t k = 0;
  for (; k + 2 * W <= inner; k += 2 * W) {
    S right[R];
    for (int r = 0; r < R; r++) right[r] = wide(b + (n + r) * b_row + k);
    for (int m = 0; m < M; m++) {
      const S left = wide(a + m * inner + k);
      for (int r = 0; r < R; r++) sums[r][m] = products(sums[r][m], left, right[r]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int m = 0; m < M; m++) {
      int32_t total = 0;
      for (int lane = 0; lane < W; lane++) total += sums[r][m][lane];
      for (int64_t rest = k; rest < inner; rest++) total += int32_t(a[m * inner + rest]) * b[(n + r) * b_row + rest];
      out[m * outer + n + r] = total;
    }
}

// The products of rows of a with the rows of b from `from` to `to`.
inline void int8_products(const int8_t* a, const int8_t* b, int64_t b_row, int32_t* out, int64_t rows, int64_t from,
                          int64_t to, int64_t inner, int64_t outer) {
  int64_t m = 0;
  const auto part = [&](auto count) {
    constexpr int M = decltype(count)::value;
    for (; m + M <= rows; m += M) {
      int64_t n = from;
      for (; n + 2 <= to; n += 2) whole_products<M, 2>(a + m * inner, b, b_row, out + m * outer, n, inner, outer);
      for (; n < to; n++) whole_products<M, 1>(a + m * inner, b, b_row, out + m * outer, n, inner, outer);
    }
  };
  part(Count<4>{});
  part(Count<1>{});
}

// The numbers of a row of quantised weights, by their storage: W from an even index on, and one.
inline F numbers(Count<int(Packing::whole)>, const uint8_t* w, int64_t i) {
  typedef int8_t B __attribute__((vector_size(W)));
  typedef int16_t Double __attribute__((vector_size(W * 2)));
  B bytes;
  __builtin_memcpy(&bytes, w + i, sizeof bytes);
  // in steps, because only those are vectorised
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, Double), I), F);
}
inline float number(Count<int(Packing::whole)>, const uint8_t* w, int64_t i) { return float(int8_t(w[i])); }

inline F numbers(Count<int(Packing::nibbles)>, const uint8_t* w, int64_t i) {
  // a lane holds the word of its 8 numbers, and shifts its own down
#if WIDTH == 4
  const U shifts = {0, 4, 8, 12};
  uint16_t word;
  __builtin_memcpy(&word, w + i / 2, sizeof word);
  const U words = U{} + word;
#elif WIDTH == 8
  const U shifts = {0, 4, 8, 12, 16, 20, 24, 28};
  uint32_t word;
  __builtin_memcpy(&word, w + i / 2, sizeof word);
  const U words = U{} + word;
#else
  const U shifts = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  const I upper = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
  uint32_t word[2];
  __builtin_memcpy(word, w + i / 2, sizeof word);
  const U words = upper ? U{} + word[1] : U{} + word[0];
#endif
  return __builtin_convertvector((I)((words >> shifts) & 15), F);
}
inline float number(Count<int(Packing::nibbles)>, const uint8_t* w, int64_t i) { return float((w[i / 2] >> (i % 2 * 4)) & 15); }

// e4m3: the exponent's bias becomes that of float; without exponent the value is a multiple of 2^-9
inline F float8(U bytes) {
  const U low = bytes & 0x7f, sign = (bytes & 0x80) << 24;
  const F normal = (F)((low << 20) + (120u << 23)), small = __builtin_convertvector((I)low, F) * 0.001953125f;
  const F size = low < 8 ? small : normal;
  return (F)((low == 0x7f ? U{} + 0x7fc00000 : (U)size) | sign);
}
inline F numbers(Count<int(Packing::float8)>, const uint8_t* w, int64_t i) {
  typedef uint8_t B __attribute__((vector_size(W)));
  typedef uint16_t Double __attribute__((vector_size(W * 2)));
  B bytes;
  __builtin_memcpy(&bytes, w + i, sizeof bytes);
  return float8(__builtin_convertvector(__builtin_convertvector(bytes, Double), U));
}
inline float number(Count<int(Packing::float8)>, const uint8_t* w, int64_t i) { return float8(U{} + w[i])[0]; }

template <class T, class S, class Kind>
void restore_groups(Kind stored, const uint8_t* w, const S* scales, const S* offsets, int64_t group, T* out, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += group) {
    const int64_t end = begin + group < n ? begin + group : n;
    const float scale = one(scales + begin / group), offset = offsets ? one(offsets + begin / group) : 0.f;
    int64_t i = begin;
    if (begin % 2 == 0)
      for (; i + W <= end; i += W) store(out + i, (numbers(stored, w, i) + offset) * scale);
    for (; i < end; i++) put(out + i, (number(stored, w, i) + offset) * scale);
  }
}

// Converts a row of weights in 8 or 4 bits to the type T: (w + offset) * scale, by groups.
template <class T, class S>
void restore(const void* weight, Packing stored, const void* scale, const void* offset, int64_t group, void* out, int64_t n) {
  const auto run = [&](auto kind) {
    restore_groups<T, S>(kind, (const uint8_t*)weight, (const S*)scale, (const S*)offset, group, (T*)out, n);
  };
  if (stored == Packing::whole) run(Count<int(Packing::whole)>{});
  if (stored == Packing::nibbles) run(Count<int(Packing::nibbles)>{});
  if (stored == Packing::float8) run(Count<int(Packing::float8)>{});
}

// out += share * x
template <class T>
void add_scaled(const void* x_, float share, float* out, int64_t n) {
  const T* x = (const T*)x_;
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(out + i) + load(x + i) * share);
  for (; i < n; i++) out[i] += one(x + i) * share;
}
