// Statistics and hash of values in host memory, chunk by chunk, each read once from memory.
#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "hash.h"
#include "simd.h"

namespace op_tools {

constexpr size_t kChunk = 2048;  // words that are hashed and measured while they are in the cache

static_assert(kKeys == kBlock);

const uint64_t* hash_keys() {
  static const uint64_t* const made = [] {
    auto* all = static_cast<uint64_t*>(std::aligned_alloc(64, 2 * kBlock * sizeof(uint64_t)));
    for (size_t i = 0; i < kBlock; i++) all[i] = avalanche((i + 1) * kP1) | 1;
    for (size_t i = 0; i < kBlock; i++) all[kBlock + i] = all[i] >> 32;
    return all;
  }();
  return made;
}

static void sums_plain(Lanes& lanes, const uint8_t* data, const uint64_t* key, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    lanes.words[i % 8] += word * key[i];
    lanes.upper[i % 8] += (word >> 32) * key[i];
  }
}

static void add_sums(Lanes& lanes, const uint8_t* data, const uint64_t* key, size_t words) {
  size_t steps = 0;
#if defined(__x86_64__)
  if (level() != Level::plain) steps = words / 8;
  if (level() >= Level::avx512) sums_avx512(lanes, data, key, steps);
  if (level() == Level::avx2) sums_avx2(lanes, data, key, steps);
#endif
  sums_plain(lanes, data + 64 * steps, key + 8 * steps, words - 8 * steps);
}

static Sums total(const Lanes& lanes) {
  Sums found;
  for (int lane = 0; lane < 8; lane++) found.words += lanes.words[lane], found.upper += lanes.upper[lane];
  return found;
}

Sums hash_sums(const uint8_t* data, const uint64_t* key, size_t words) {
  Lanes lanes;
  add_sums(lanes, data, key, words);
  return total(lanes);
}

uint64_t hash_bytes(const uint8_t* data, size_t size) {
  Hash hash(size);
  const size_t words = size / 8;
  for (size_t start = 0; start < words; start += kBlock) {
    hash.block(hash_sums(data + 8 * start, hash_keys(), std::min(kBlock, words - start)));
  }
  return hash.end(data + 8 * words, size % 8);
}

// The numbers of float32, and of what is widened to it. Words of the same bytes are counted along.
class FloatNumbers {
 public:
  FloatNumbers() {
    std::fill_n(found_.low, kLanes, std::numeric_limits<float>::max());
    std::fill_n(found_.high, kLanes, std::numeric_limits<float>::lowest());
  }

  void add(const float* data, size_t count) {
    Lanes none;
    pass<false>(none, data, nullptr, count);
  }

  void add(Lanes& lanes, const float* data, const uint64_t* key, size_t words) {
    pass<true>(lanes, data, key, 2 * words);
  }

  Measured result(size_t count) const {
    Measured made;
    made.nonfinite = found_.nonfinite;
    const size_t finite = count - static_cast<size_t>(found_.nonfinite);
    if (finite == 0) return made;
    double sum = 0, square = 0;
    for (int lane = 0; lane < 8; lane++) sum += found_.sum[lane], square += found_.square[lane];
    made.numbers = true;
    made.low = *std::min_element(found_.low, found_.low + kLanes);
    made.high = *std::max_element(found_.high, found_.high + kLanes);
    made.mean = sum / static_cast<double>(finite);
    made.norm = std::sqrt(square);
    return made;
  }

 private:
  template <bool hashed>
  void pass(Lanes& lanes, const float* data, const uint64_t* key, size_t count) {
    size_t steps = 0;
#if defined(__x86_64__)
    if (level() != Level::plain) steps = count / kLanes;
    if (level() >= Level::avx512) {
      if (some_ && hashed) sums_avx512(lanes, reinterpret_cast<const uint8_t*>(data), key, steps);
      if (hashed && !some_ && level() == Level::ifma) some_ = !finite_ifma(found_, lanes, data, key, steps);
      else some_ = some_ || !finite_avx512<hashed>(found_, lanes, data, key, steps);
      if (some_) some_avx512(found_, data, steps);
    } else if (level() == Level::avx2) {
      if (some_ && hashed) sums_avx2(lanes, reinterpret_cast<const uint8_t*>(data), key, steps);
      some_ = some_ || !finite_avx2<hashed>(found_, lanes, data, key, steps);
      if (some_) some_avx2(found_, data, steps);
    }
#endif
    const float* rest = data + kLanes * steps;
    if constexpr (hashed) sums_plain(lanes, reinterpret_cast<const uint8_t*>(rest), key + 8 * steps, count / 2 - 8 * steps);
    for (size_t i = 0; i < count - kLanes * steps; i++) one(rest[i], i % 8);
  }

  void one(float value, size_t lane) {
    if (!std::isfinite(value)) {
      found_.nonfinite++;
      return;
    }
    found_.low[lane] = std::min(found_.low[lane], value);
    found_.high[lane] = std::max(found_.high[lane], value);
    const double wide = value;
    found_.sum[lane] += wide;
    found_.square[lane] += wide * wide;
  }

  Floats found_;
  bool some_ = false;  // not all are finite: the quick pass is not tried any more
};

// The numbers of the other types. Eight lanes, so that the compiler may use vectors.
template <typename T>
class Numbers {
 public:
  Numbers() {
    std::fill_n(low_, 8, std::numeric_limits<T>::max());
    std::fill_n(high_, 8, std::numeric_limits<T>::lowest());
  }

  void add(const T* data, size_t count) {
    for (size_t i = 0; i + 8 <= count; i += 8) {
      for (size_t lane = 0; lane < 8; lane++) one(data[i + lane], lane);
    }
    for (size_t i = count - count % 8; i < count; i++) one(data[i], i % 8);
  }

  Measured result(size_t count) const {
    Measured made;
    made.nonfinite = nonfinite_;
    const size_t finite = count - static_cast<size_t>(nonfinite_);
    if (finite == 0) return made;
    double sum = 0, square = 0;
    for (int lane = 0; lane < 8; lane++) sum += sum_[lane], square += square_[lane];
    made.numbers = true;
    made.whole = std::is_integral_v<T>;
    const T low = *std::min_element(low_, low_ + 8), high = *std::max_element(high_, high_ + 8);
    made.low = static_cast<double>(low), made.high = static_cast<double>(high);
    if constexpr (std::is_integral_v<T>) made.whole_low = low, made.whole_high = high;
    made.mean = sum / static_cast<double>(finite);
    made.norm = std::sqrt(square);
    return made;
  }

 private:
  inline __attribute__((always_inline)) void one(T value, size_t lane) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(value)) {
        nonfinite_++;
        return;
      }
    }
    low_[lane] = value < low_[lane] ? value : low_[lane];
    high_[lane] = value > high_[lane] ? value : high_[lane];
    const double wide = static_cast<double>(value);
    sum_[lane] += wide;
    square_[lane] += wide * wide;
  }

  T low_[8], high_[8];
  double sum_[8] = {}, square_[8] = {};
  int64_t nonfinite_ = 0;
};

static float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  float value;
  if (magnitude >= 0x7c00) {  // inf, nan
    const uint32_t wide = sign | 0x7f800000 | ((magnitude & 0x3ff) << 13);
    std::memcpy(&value, &wide, 4);
    return value;
  }
  const uint32_t wide = magnitude << 13;  // as if its exponent were float32's, which is 112 off
  std::memcpy(&value, &wide, 4);
  value *= 5.192296858534828e33f;  // 2**112, exact for subnormals too
  return sign ? -value : value;
}

void widen(float* to, const uint16_t* from, size_t count, bool half) {
  size_t i = 0;
#if defined(__x86_64__)
  if (level() != Level::plain) i = widen_avx2(to, from, count, half);
#endif
  for (; i < count; i++) to[i] = half ? from_float16(from[i]) : from_bfloat16(from[i]);
}

// Calls `each(lanes, bytes, key, words)` for the chunks of whole words, and hashes them block by
// block with what it adds to the lanes.
template <typename Each>
static uint64_t hashed_by_chunks(const uint8_t* data, size_t size, Each each) {
  Hash hash(size);
  const size_t words = size / 8;
  for (size_t start = 0; start < words; start += kBlock) {
    const size_t end = std::min(words, start + kBlock);
    Lanes lanes;
    for (size_t at = start; at < end; at += kChunk) {
      each(lanes, data + 8 * at, hash_keys() + (at - start), std::min(kChunk, end - at));
    }
    hash.block(total(lanes));
  }
  return hash.end(data + 8 * words, size % 8);
}

static Measured measure_floats(const uint8_t* data, size_t count) {
  FloatNumbers found;
  const uint64_t hash = hashed_by_chunks(data, 4 * count, [&](Lanes& lanes, const uint8_t* at, const uint64_t* key, size_t words) {
    found.add(lanes, reinterpret_cast<const float*>(at), key, words);
  });
  if (count % 2) found.add(reinterpret_cast<const float*>(data) + count - 1, 1);
  Measured made = found.result(count);
  made.hash = hash;
  return made;
}

static Measured measure_halves(const uint8_t* data, size_t count, bool half) {
  FloatNumbers found;
  alignas(64) float wide[4 * kChunk];
  const auto add = [&](const uint8_t* at, size_t some) {
    widen(wide, reinterpret_cast<const uint16_t*>(at), some, half);
    found.add(wide, some);
  };
  const uint64_t hash = hashed_by_chunks(data, 2 * count, [&](Lanes& lanes, const uint8_t* at, const uint64_t* key, size_t words) {
    add_sums(lanes, at, key, words);
    add(at, 4 * words);
  });
  add(data + 2 * (count - count % 4), count % 4);
  Measured made = found.result(count);
  made.hash = hash;
  return made;
}

template <typename T>
static Measured measure_others(const uint8_t* data, size_t count) {
  Numbers<T> found;
  constexpr size_t each = 8 / sizeof(T);
  const uint64_t hash = hashed_by_chunks(data, sizeof(T) * count, [&](Lanes& lanes, const uint8_t* at, const uint64_t* key, size_t words) {
    add_sums(lanes, at, key, words);
    found.add(reinterpret_cast<const T*>(at), each * words);
  });
  found.add(reinterpret_cast<const T*>(data) + count - count % each, count % each);
  Measured made = found.result(count);
  made.hash = hash;
  return made;
}

static int64_t count_nans(const uint8_t* data, size_t count, Kind kind) {
  int64_t nans = 0;
  for (size_t i = 0; i < count; i++) {
    if (kind == Kind::float64) nans += std::isnan(reinterpret_cast<const double*>(data)[i]);
    else if (kind == Kind::float32) nans += std::isnan(reinterpret_cast<const float*>(data)[i]);
    else if (const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[i]; kind == Kind::float16) nans += std::isnan(from_float16(bits));
    else nans += std::isnan(from_bfloat16(bits));
  }
  return nans;
}

static Measured measure_numbers(const uint8_t* data, size_t count, Kind kind) {
  switch (kind) {
    case Kind::float32: return measure_floats(data, count);
    case Kind::float64: return measure_others<double>(data, count);
    case Kind::bfloat16: return measure_halves(data, count, false);
    case Kind::float16: return measure_halves(data, count, true);
    case Kind::int64: return measure_others<int64_t>(data, count);
    case Kind::int32: return measure_others<int32_t>(data, count);
    case Kind::int16: return measure_others<int16_t>(data, count);
    case Kind::int8: return measure_others<int8_t>(data, count);
    default: return measure_others<uint8_t>(data, count);
  }
}

Measured measure(const uint8_t* data, size_t count, Kind kind, bool hash_only) {
  Measured made;
  if (hash_only) {
    made.hash = hash_bytes(data, count * width_of(kind));
    return made;
  }
  made = measure_numbers(data, count, kind);
  if (made.nonfinite > 0) made.nans = count_nans(data, count, kind);
  return made;
}

Measured repeated(Measured found, int64_t times) {
  if (times == 1) return found;
  found.hash = avalanche(found.hash + static_cast<uint64_t>(times) * kP1);
  found.norm *= std::sqrt(static_cast<double>(times));
  found.nonfinite *= times;
  found.nans *= times;
  return found;
}

}  // namespace op_tools
