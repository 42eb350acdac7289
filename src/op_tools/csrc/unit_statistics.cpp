// Statistics and hash of a tensor in host memory, block by block, each read once from memory.
// The hash is that of op_tools/statistics.py, word for word; see there for its definition.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace py = pybind11;

namespace op_tools {

constexpr uint64_t kP1 = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kP2 = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kP3 = 0x94D049BB133111EBull;
constexpr size_t kBlock = 16384;  // words
constexpr size_t kChunk = 2048;   // elements that are widened at once

static uint64_t avalanche(uint64_t value) {
  value = (value ^ (value >> 30)) * kP2;
  value = (value ^ (value >> 27)) * kP3;
  return value ^ (value >> 31);
}

static const uint64_t* keys() {
  static const std::vector<uint64_t> made = [] {
    std::vector<uint64_t> all(kBlock);
    for (size_t i = 0; i < kBlock; i++) all[i] = avalanche((i + 1) * kP1) | 1;
    return all;
  }();
  return made.data();
}

struct Sums {
  uint64_t words, upper;
};

static Sums sums_plain(const uint8_t* data, const uint64_t* key, size_t count) {
  uint64_t a = 0, b = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    a += word * key[i];
    b += (word >> 32) * key[i];
  }
  return {a, b};
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t total(const __m256i& lanes) {
  uint64_t each[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(each), lanes);
  return each[0] + each[1] + each[2] + each[3];
}

// 64-bit products from 32-bit ones: the four partial sums are put together at the end.
__attribute__((target("avx2"))) static Sums sums_avx2(const uint8_t* data, const uint64_t* key, size_t count) {
  __m256i ll = _mm256_setzero_si256(), hl = ll, lh = ll, hh = ll;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 8 * i));
    __m256i k = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key + i));
    __m256i word_high = _mm256_srli_epi64(word, 32), k_high = _mm256_srli_epi64(k, 32);
    ll = _mm256_add_epi64(ll, _mm256_mul_epu32(word, k));
    hl = _mm256_add_epi64(hl, _mm256_mul_epu32(word_high, k));
    lh = _mm256_add_epi64(lh, _mm256_mul_epu32(word, k_high));
    hh = _mm256_add_epi64(hh, _mm256_mul_epu32(word_high, k_high));
  }
  uint64_t low_high = total(hl);
  Sums found{total(ll) + ((low_high + total(lh)) << 32), low_high + (total(hh) << 32)};
  Sums rest = sums_plain(data + 8 * i, key + i, count - i);
  return {found.words + rest.words, found.upper + rest.upper};
}
#endif

static bool has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

static Sums sums(const uint8_t* data, const uint64_t* key, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return sums_avx2(data, key, count);
#endif
  return sums_plain(data, key, count);
}

class Hash {
 public:
  explicit Hash(size_t size) : mixed_(size * kP1 + kP2) {}

  void block(const uint8_t* data, size_t words) {
    Sums found = sums(data, keys(), words);
    mixed_ = (mixed_ ^ found.words) * kP1 + ((found.upper << 29) | (found.upper >> 35));
    mixed_ ^= mixed_ >> 32;
  }

  uint64_t end(const uint8_t* tail, size_t size) {
    if (size) {
      uint8_t word[8] = {};
      std::memcpy(word, tail, size);
      block(word, 1);
    }
    return avalanche(mixed_);
  }

 private:
  uint64_t mixed_;
};

static uint64_t hash_bytes(const uint8_t* data, size_t size) {
  Hash hash(size);
  size_t words = size / 8;
  for (size_t start = 0; start < words; start += kBlock) {
    hash.block(data + 8 * start, std::min(kBlock, words - start));
  }
  return hash.end(data + 8 * words, size % 8);
}

// The numbers. Eight lanes each, so that the compiler can use vectors without changing sums' order.
constexpr size_t kLanes = 8;

template <typename T>
struct Numbers {
  T low[kLanes], high[kLanes];
  double sum[kLanes] = {}, square[kLanes] = {};
  int64_t nonfinite = 0, count = 0;

  Numbers() {
    std::fill_n(low, kLanes, std::numeric_limits<T>::max());
    std::fill_n(high, kLanes, std::numeric_limits<T>::lowest());
  }

  inline __attribute__((always_inline)) void add(size_t lane, T value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    double wide = static_cast<double>(value);
    sum[lane] += wide;
    square[lane] += wide * wide;
  }
};

template <typename T>
inline __attribute__((always_inline)) void measure_body(Numbers<T>& out, const T* data, size_t count) {
  out.count += count;
  if constexpr (std::is_floating_point_v<T>) {
    uint64_t bad = 0;
    for (size_t i = 0; i < count; i++) bad += !(std::fabs(data[i]) <= std::numeric_limits<T>::max());
    if (bad) {
      out.nonfinite += bad;
      for (size_t i = 0; i < count; i++) {
        if (std::isfinite(data[i])) out.add(i % kLanes, data[i]);
      }
      return;
    }
  }
  size_t i = 0;
  Numbers<T> own = out;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; lane++) own.add(lane, data[i + lane]);
  }
  for (; i < count; i++) own.add(i % kLanes, data[i]);
  out = own;
}

#if defined(__x86_64__)
// A chunk of finite float32; false, and nothing done, when one of them is not finite.
__attribute__((target("avx2,fma"))) static bool measure_finite(Numbers<float>& out, const float* data, size_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps(std::numeric_limits<float>::max());
  __m256 low = _mm256_loadu_ps(out.low), high = _mm256_loadu_ps(out.high), bad = _mm256_setzero_ps();
  __m256d sum[4], square[4];
  for (int i = 0; i < 4; i++) sum[i] = square[i] = _mm256_setzero_pd();
  auto vectors = count / 16;
  for (size_t i = 0; i < vectors; i++) {
    for (int half = 0; half < 2; half++) {
      __m256 value = _mm256_loadu_ps(data + 16 * i + 8 * half);
      low = _mm256_min_ps(value, low);
      high = _mm256_max_ps(value, high);
      bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_andnot_ps(sign, value), most, _CMP_NLE_UQ));
      __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
      __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
      sum[2 * half] = _mm256_add_pd(sum[2 * half], first);
      sum[2 * half + 1] = _mm256_add_pd(sum[2 * half + 1], second);
      square[2 * half] = _mm256_fmadd_pd(first, first, square[2 * half]);
      square[2 * half + 1] = _mm256_fmadd_pd(second, second, square[2 * half + 1]);
    }
  }
  for (size_t i = 16 * vectors; i < count; i++) {
    if (!(std::fabs(data[i]) <= std::numeric_limits<float>::max())) return false;
  }
  if (_mm256_movemask_ps(bad)) return false;
  _mm256_storeu_ps(out.low, low);
  _mm256_storeu_ps(out.high, high);
  double lanes[4];
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_pd(lanes, sum[i]);
    for (int lane = 0; lane < 4; lane++) out.sum[lane] += lanes[lane];
    _mm256_storeu_pd(lanes, square[i]);
    for (int lane = 0; lane < 4; lane++) out.square[lane] += lanes[lane];
  }
  for (size_t i = 16 * vectors; i < count; i++) out.add(i % kLanes, data[i]);
  out.count += count;
  return true;
}

__attribute__((target("avx2,f16c"))) static size_t widen_avx2(float* to, const uint16_t* from, size_t count, bool half) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    __m256 wide = half ? _mm256_cvtph_ps(bits)
                       : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    _mm256_storeu_ps(to + i, wide);
  }
  return i;
}
#endif

static bool has_vectors() {
#if defined(__x86_64__)
  static const bool has = has_avx2() && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has;
#else
  return false;
#endif
}

template <typename T>
static void measure(Numbers<T>& out, const T* data, size_t count) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (has_vectors() && measure_finite(out, data, count)) return;
  }
#endif
  measure_body(out, data, count);
}

static float from_bfloat16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static float from_float16(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  float value;
  if (magnitude >= 0x7c00) {  // inf, nan
    uint32_t wide = sign | 0x7f800000 | ((magnitude & 0x3ff) << 13);
    std::memcpy(&value, &wide, 4);
    return value;
  }
  uint32_t wide = magnitude << 13;  // as if its exponent were float32's, which is 112 off
  std::memcpy(&value, &wide, 4);
  value *= 5.192296858534828e33f;  // 2**112, exact for subnormals too
  return sign ? -value : value;
}

static void widen(float* to, const uint16_t* from, size_t count, bool half) {
  size_t i = 0;
#if defined(__x86_64__)
  if (has_vectors()) i = widen_avx2(to, from, count, half);
#endif
  for (; i < count; i++) to[i] = half ? from_float16(from[i]) : from_bfloat16(from[i]);
}

// One block is hashed and measured while it is in the cache.
template <typename T, typename From>
static py::tuple run(const uint8_t* data, size_t count, bool half = false) {
  Numbers<T> found;
  uint64_t hashed;
  {
    py::gil_scoped_release release;
    size_t size = count * sizeof(From), words = size / 8, per_block = kBlock * 8 / sizeof(From);
    Hash hash(size);
    std::vector<T> chunk(std::is_same_v<T, From> ? 0 : kChunk);
    for (size_t start = 0, block = 0; start < count; start += per_block, block++) {
      size_t here = std::min(per_block, count - start);
      size_t full = std::min(kBlock, words - std::min(words, block * kBlock));
      if (full) hash.block(data + start * sizeof(From), full);
      const From* from = reinterpret_cast<const From*>(data) + start;
      for (size_t at = 0; at < here; at += kChunk) {
        size_t some = std::min(kChunk, here - at);
        if constexpr (std::is_same_v<T, From>) {
          measure<T>(found, from + at, some);
        } else {
          widen(chunk.data(), from + at, some, half);
          measure<T>(found, chunk.data(), some);
        }
      }
    }
    hashed = hash.end(data + 8 * words, size % 8);
  }
  if (found.count == found.nonfinite) {
    return py::make_tuple(hashed, py::none(), py::none(), py::none(), py::none(), found.nonfinite);
  }
  double sum = 0, square = 0;
  for (size_t lane = 0; lane < kLanes; lane++) sum += found.sum[lane], square += found.square[lane];
  T low = *std::min_element(found.low, found.low + kLanes);
  T high = *std::max_element(found.high, found.high + kLanes);
  double mean = sum / static_cast<double>(found.count - found.nonfinite);
  if constexpr (std::is_floating_point_v<T>) {
    return py::make_tuple(hashed, double(low), double(high), mean, std::sqrt(square), found.nonfinite);
  } else {
    return py::make_tuple(hashed, int64_t(low), int64_t(high), mean, std::sqrt(square), found.nonfinite);
  }
}

static py::tuple measure_kind(uintptr_t address, size_t count, int kind, bool hash_only) {
  static const size_t widths[] = {4, 8, 2, 2, 8, 4, 2, 1, 1};
  const uint8_t* data = reinterpret_cast<const uint8_t*>(address);
  if (hash_only) {
    py::gil_scoped_release release;
    uint64_t hashed = hash_bytes(data, count * widths[kind]);
    py::gil_scoped_acquire acquire;
    return py::make_tuple(hashed);
  }
  switch (kind) {
    case 0: return run<float, float>(data, count);
    case 1: return run<double, double>(data, count);
    case 2: return run<float, uint16_t>(data, count);
    case 3: return run<float, uint16_t>(data, count, true);
    case 4: return run<int64_t, int64_t>(data, count);
    case 5: return run<int32_t, int32_t>(data, count);
    case 6: return run<int16_t, int16_t>(data, count);
    case 7: return run<int8_t, int8_t>(data, count);
    default: return run<uint8_t, uint8_t>(data, count);
  }
}

static uint64_t hash_address(uintptr_t address, size_t size) {
  py::gil_scoped_release release;
  return hash_bytes(reinterpret_cast<const uint8_t*>(address), size);
}

}  // namespace op_tools

namespace op_tools {
void bind_kernels(pybind11::module_& m);  // unit_kernels.cpp
void bind_timing(pybind11::module_& m);   // unit_timing.cpp
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  op_tools::bind_kernels(m);
  op_tools::bind_timing(m);
  m.def("measure", &op_tools::measure_kind, "hash, min, max, mean, norm, nonfinite of host memory");
  m.def("hash", &op_tools::hash_address, "the hash of so many bytes at an address");
}
