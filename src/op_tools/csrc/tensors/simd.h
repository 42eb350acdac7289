// Vector code for float32 and for words, for the processor that it runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace op_tools {

constexpr size_t kLanes = 16;  // floats of a step
constexpr size_t kKeys = 16384;  // of the hash
constexpr size_t kAhead = 4096;  // bytes: what the processor does not fetch by itself in time

// What a pass over floats finds, lane by lane.
struct Floats {
  alignas(64) float low[kLanes], high[kLanes];
  alignas(64) double sum[8] = {}, square[8] = {};
  int64_t nonfinite = 0;
};

// Sums of products of words and of their upper halves, lane by lane.
struct Lanes {
  alignas(64) uint64_t words[8] = {}, upper[8] = {};
};

enum class Level { plain, avx2, avx512, ifma };

inline Level level() {
#if defined(__x86_64__)
  static const Level found = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
      return __builtin_cpu_supports("avx512ifma") ? Level::ifma : Level::avx512;
    }
    const bool whole = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    return whole ? Level::avx2 : Level::plain;
  }();
  return found;
#else
  return Level::plain;
#endif
}

#if defined(__x86_64__)
#define OP_TOOLS_AVX512 __attribute__((target("avx512f,avx512dq")))
#define OP_TOOLS_IFMA __attribute__((target("avx512f,avx512dq,avx512ifma")))
#define OP_TOOLS_AVX2 __attribute__((target("avx2,fma,f16c")))

OP_TOOLS_AVX512 inline void sums_avx512(Lanes& lanes, const uint8_t* data, const uint64_t* key, size_t steps) {
  __m512i words = _mm512_load_si512(lanes.words), upper = _mm512_load_si512(lanes.upper);
  for (size_t i = 0; i < steps; i++) {
    _mm_prefetch(data + 64 * i + kAhead, _MM_HINT_T0);
    const __m512i word = _mm512_loadu_si512(data + 64 * i), k = _mm512_loadu_si512(key + 8 * i);
    words = _mm512_add_epi64(words, _mm512_mullo_epi64(word, k));
    upper = _mm512_add_epi64(upper, _mm512_mullo_epi64(_mm512_srli_epi64(word, 32), k));
  }
  _mm512_store_si512(lanes.words, words);
  _mm512_store_si512(lanes.upper, upper);
}

// Sums of products from four partial ones, which take fewer steps than whole products do. The upper
// halves of the keys lie behind the keys.
struct Partial {
  __m512i ll, hl, lh, hh;
};

OP_TOOLS_IFMA inline void multiply_ifma(Partial& sum, __m512i word, const uint64_t* key) {
  const __m512i k = _mm512_loadu_si512(key), k_high = _mm512_loadu_si512(key + kKeys), high = _mm512_srli_epi64(word, 32);
  sum.ll = _mm512_add_epi64(sum.ll, _mm512_mul_epu32(word, k));
  sum.hl = _mm512_add_epi64(sum.hl, _mm512_mul_epu32(high, k));
  sum.lh = _mm512_madd52lo_epu64(sum.lh, word, k_high);  // of these two, 32 bits count
  sum.hh = _mm512_madd52lo_epu64(sum.hh, high, k_high);
}

OP_TOOLS_IFMA inline void keep_ifma(Lanes& lanes, const Partial& sum) {
  const __m512i words = _mm512_add_epi64(sum.ll, _mm512_slli_epi64(_mm512_add_epi64(sum.hl, sum.lh), 32));
  const __m512i upper = _mm512_add_epi64(sum.hl, _mm512_slli_epi64(sum.hh, 32));
  _mm512_store_si512(lanes.words, _mm512_add_epi64(_mm512_load_si512(lanes.words), words));
  _mm512_store_si512(lanes.upper, _mm512_add_epi64(_mm512_load_si512(lanes.upper), upper));
}

// The numbers of a pass.
struct Pass {
  __m512 low, high;
  __m512d sum[2], square[2];
};

OP_TOOLS_AVX512 inline Pass begun_avx512(const Floats& out) {
  const __m512d zero = _mm512_setzero_pd();
  return {_mm512_load_ps(out.low), _mm512_load_ps(out.high), {zero, zero}, {zero, zero}};
}

OP_TOOLS_AVX512 inline void add_avx512(Pass& pass, __m512 value, const float* at) {
  pass.low = _mm512_min_ps(value, pass.low);
  pass.high = _mm512_max_ps(value, pass.high);
  const __m512d first = _mm512_cvtps_pd(_mm256_loadu_ps(at)), second = _mm512_cvtps_pd(_mm256_loadu_ps(at + 8));
  pass.sum[0] = _mm512_add_pd(pass.sum[0], first);
  pass.sum[1] = _mm512_add_pd(pass.sum[1], second);
  pass.square[0] = _mm512_fmadd_pd(first, first, pass.square[0]);
  pass.square[1] = _mm512_fmadd_pd(second, second, pass.square[1]);
}

// False: one of the values was not finite (their squares, which cannot overflow, tell).
OP_TOOLS_AVX512 inline bool kept_avx512(Floats& out, const Pass& pass) {
  const __m512d squares = _mm512_add_pd(pass.square[0], pass.square[1]);
  if (!(_mm512_reduce_add_pd(squares) < __builtin_inf())) return false;
  _mm512_store_ps(out.low, pass.low);
  _mm512_store_ps(out.high, pass.high);
  _mm512_store_pd(out.sum, _mm512_add_pd(_mm512_load_pd(out.sum), _mm512_add_pd(pass.sum[0], pass.sum[1])));
  _mm512_store_pd(out.square, _mm512_add_pd(_mm512_load_pd(out.square), squares));
  return true;
}

// A pass over floats, and over the same bytes as words where `key` is given. False: one of them is
// not finite, and only the words were counted.
template <bool hashed>
OP_TOOLS_AVX512 inline bool finite_avx512(Floats& out, Lanes& lanes, const float* data, const uint64_t* key, size_t steps) {
  __m512i words = _mm512_load_si512(lanes.words), upper = _mm512_load_si512(lanes.upper);
  Pass pass = begun_avx512(out);
  for (size_t i = 0; i < steps; i++) {
    const float* at = data + kLanes * i;
    _mm_prefetch(reinterpret_cast<const char*>(at) + kAhead, _MM_HINT_T0);
    const __m512 value = _mm512_loadu_ps(at);
    if constexpr (hashed) {
      const __m512i word = _mm512_castps_si512(value), k = _mm512_loadu_si512(key + 8 * i);
      words = _mm512_add_epi64(words, _mm512_mullo_epi64(word, k));
      upper = _mm512_add_epi64(upper, _mm512_mullo_epi64(_mm512_srli_epi64(word, 32), k));
    }
    add_avx512(pass, value, at);
  }
  _mm512_store_si512(lanes.words, words);
  _mm512_store_si512(lanes.upper, upper);
  return kept_avx512(out, pass);
}

OP_TOOLS_IFMA inline bool finite_ifma(Floats& out, Lanes& lanes, const float* data, const uint64_t* key, size_t steps) {
  const __m512i zero = _mm512_setzero_si512();
  Partial words{zero, zero, zero, zero};
  Pass pass = begun_avx512(out);
  for (size_t i = 0; i < steps; i++) {
    const float* at = data + kLanes * i;
    _mm_prefetch(reinterpret_cast<const char*>(at) + kAhead, _MM_HINT_T0);
    const __m512 value = _mm512_loadu_ps(at);
    multiply_ifma(words, _mm512_castps_si512(value), key + 8 * i);
    add_avx512(pass, value, at);
  }
  keep_ifma(lanes, words);
  return kept_avx512(out, pass);
}

// The same over the finite ones.
OP_TOOLS_AVX512 inline void some_avx512(Floats& out, const float* data, size_t steps) {
  const __m512 most = _mm512_set1_ps(__FLT_MAX__);
  __m512 low = _mm512_load_ps(out.low), high = _mm512_load_ps(out.high);
  __m512d sum = _mm512_load_pd(out.sum), square = _mm512_load_pd(out.square);
  for (size_t i = 0; i < steps; i++) {
    const __m512 value = _mm512_loadu_ps(data + kLanes * i);
    const __mmask16 good = _mm512_cmp_ps_mask(_mm512_abs_ps(value), most, _CMP_LE_OQ);
    out.nonfinite += kLanes - static_cast<size_t>(__builtin_popcount(good));
    low = _mm512_mask_min_ps(low, good, value, low);
    high = _mm512_mask_max_ps(high, good, value, high);
    const __m512 kept = _mm512_maskz_mov_ps(good, value);
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(kept));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(kept, 1));
    sum = _mm512_add_pd(sum, _mm512_add_pd(first, second));
    square = _mm512_fmadd_pd(second, second, _mm512_fmadd_pd(first, first, square));
  }
  _mm512_store_ps(out.low, low);
  _mm512_store_ps(out.high, high);
  _mm512_store_pd(out.sum, sum);
  _mm512_store_pd(out.square, square);
}

// 64-bit products from 32-bit ones: the four partial sums are put together at the end.
struct Products {
  __m256i ll, hl, lh, hh;
};

OP_TOOLS_AVX2 inline void multiply_avx2(Products& sum, __m256i word, const uint64_t* key) {
  const __m256i k = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key)), k_high = _mm256_srli_epi64(k, 32);
  const __m256i high = _mm256_shuffle_epi32(word, 0xF5);
  sum.ll = _mm256_add_epi64(sum.ll, _mm256_mul_epu32(word, k));
  sum.hl = _mm256_add_epi64(sum.hl, _mm256_mul_epu32(high, k));
  sum.lh = _mm256_add_epi64(sum.lh, _mm256_mul_epu32(word, k_high));
  sum.hh = _mm256_add_epi64(sum.hh, _mm256_mul_epu32(high, k_high));
}

OP_TOOLS_AVX2 inline void keep_avx2(Lanes& lanes, const Products& sum) {
  auto* words = reinterpret_cast<__m256i*>(lanes.words);
  auto* upper = reinterpret_cast<__m256i*>(lanes.upper);
  const __m256i cross = _mm256_slli_epi64(_mm256_add_epi64(sum.hl, sum.lh), 32);
  _mm256_store_si256(words, _mm256_add_epi64(_mm256_load_si256(words), _mm256_add_epi64(sum.ll, cross)));
  const __m256i more = _mm256_add_epi64(sum.hl, _mm256_slli_epi64(sum.hh, 32));
  _mm256_store_si256(upper, _mm256_add_epi64(_mm256_load_si256(upper), more));
}

OP_TOOLS_AVX2 inline void sums_avx2(Lanes& lanes, const uint8_t* data, const uint64_t* key, size_t steps) {
  Products sum{_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t i = 0; i < 2 * steps; i++) {
    multiply_avx2(sum, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 32 * i)), key + 4 * i);
  }
  keep_avx2(lanes, sum);
}

template <bool hashed>
OP_TOOLS_AVX2 inline bool finite_avx2(Floats& out, Lanes& lanes, const float* data, const uint64_t* key, size_t steps) {
  Products products{_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  __m256 low = _mm256_load_ps(out.low), high = _mm256_load_ps(out.high);
  __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()}, square[2] = {sum[0], sum[0]};
  for (size_t i = 0; i < 2 * steps; i++) {
    const float* at = data + 8 * i;
    _mm_prefetch(reinterpret_cast<const char*>(at) + kAhead, _MM_HINT_T0);
    const __m256 value = _mm256_loadu_ps(at);
    if constexpr (hashed) multiply_avx2(products, _mm256_castps_si256(value), key + 4 * i);
    low = _mm256_min_ps(value, low);
    high = _mm256_max_ps(value, high);
    const __m256d first = _mm256_cvtps_pd(_mm_loadu_ps(at)), second = _mm256_cvtps_pd(_mm_loadu_ps(at + 4));
    sum[0] = _mm256_add_pd(sum[0], first);
    sum[1] = _mm256_add_pd(sum[1], second);
    square[0] = _mm256_fmadd_pd(first, first, square[0]);
    square[1] = _mm256_fmadd_pd(second, second, square[1]);
  }
  if constexpr (hashed) keep_avx2(lanes, products);
  alignas(32) double squares[4];
  _mm256_store_pd(squares, _mm256_add_pd(square[0], square[1]));
  if (!(squares[0] + squares[1] + squares[2] + squares[3] < __builtin_inf())) return false;
  _mm256_store_ps(out.low, low);
  _mm256_store_ps(out.high, high);
  _mm256_store_pd(out.sum, _mm256_add_pd(_mm256_load_pd(out.sum), _mm256_add_pd(sum[0], sum[1])));
  _mm256_store_pd(out.square, _mm256_add_pd(_mm256_load_pd(out.square), _mm256_load_pd(squares)));
  return true;
}

OP_TOOLS_AVX2 inline void some_avx2(Floats& out, const float* data, size_t steps) {
  const __m256 most = _mm256_set1_ps(__FLT_MAX__), sign = _mm256_set1_ps(-0.0f);
  __m256 low = _mm256_load_ps(out.low), high = _mm256_load_ps(out.high);
  __m256d sum = _mm256_load_pd(out.sum), square = _mm256_load_pd(out.square);
  for (size_t i = 0; i < 2 * steps; i++) {
    const __m256 value = _mm256_loadu_ps(data + 8 * i);
    const __m256 good = _mm256_cmp_ps(_mm256_andnot_ps(sign, value), most, _CMP_LE_OQ);
    out.nonfinite += 8 - static_cast<size_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(good))));
    low = _mm256_min_ps(_mm256_blendv_ps(low, value, good), low);
    high = _mm256_max_ps(_mm256_blendv_ps(high, value, good), high);
    const __m256 kept = _mm256_and_ps(value, good);
    const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(kept));
    const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(kept, 1));
    sum = _mm256_add_pd(sum, _mm256_add_pd(first, second));
    square = _mm256_fmadd_pd(second, second, _mm256_fmadd_pd(first, first, square));
  }
  _mm256_store_ps(out.low, low);
  _mm256_store_ps(out.high, high);
  _mm256_store_pd(out.sum, sum);
  _mm256_store_pd(out.square, square);
}

OP_TOOLS_AVX2 inline size_t widen_avx2(float* to, const uint16_t* from, size_t count, bool half) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m256 wide = half ? _mm256_cvtph_ps(bits)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    _mm256_storeu_ps(to + i, wide);
  }
  return i;
}
#endif

}  // namespace op_tools
