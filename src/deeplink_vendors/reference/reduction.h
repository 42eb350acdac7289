/* SPDX-License-Identifier: Apache-2.0 */
// Reductions of the reference chip: in a wider type, in the order of the ranks, rounded once.
#pragma once

#include <diopi_runtime.h>
#include <dipu_runtime.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace reference {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widened(Brain value) {
  return bits_to_float(static_cast<uint32_t>(value.bits) << 16);
}
inline void narrow(float value, Brain& to) {
  const uint32_t bits = float_to_bits(value);
  to.bits = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float widened(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // inf, nan
  if (rest >= 0x400u) return bits_to_float(sign | ((rest << 13) + (112u << 23)));
  const float small = static_cast<float>(rest) * 0x1p-24f;  // subnormal, or zero
  return sign != 0 ? -small : small;
}
inline void narrow(float value, Half& to) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t made = 0;
  if (value != value) {
    made = 0x7e00u;
  } else if (rest >= 0x47800000u) {  // beyond the largest exponent
    made = 0x7c00u;
  } else if (rest >= 0x38800000u) {  // rounding up to infinity is correct here
    made = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  } else {  // subnormal: the addition rounds it
    made = float_to_bits(bits_to_float(rest) + 0.5f) - float_to_bits(0.5f);
  }
  to.bits = static_cast<uint16_t>(sign | made);
}
inline double widened(float value) {
  return value;
}
inline double widened(double value) {
  return value;
}
inline std::complex<double> widened(std::complex<float> value) {
  return value;
}
inline std::complex<double> widened(std::complex<double> value) {
  return value;
}
inline void narrow(double value, float& to) {
  to = static_cast<float>(value);
}
inline void narrow(std::complex<double> value, std::complex<float>& to) {
  to = {static_cast<float>(value.real()), static_cast<float>(value.imag())};
}
// integers in 64 bits; a value that is too large wraps around when it is narrowed
template <typename T>
  requires std::is_integral_v<T>
inline auto widened(T value) {
  if constexpr (std::is_same_v<T, bool>) return value;
  else if constexpr (std::is_signed_v<T>) return static_cast<int64_t>(value);
  else return static_cast<uint64_t>(value);
}
template <typename From, typename T>
inline void narrow(From value, T& to) {
  to = static_cast<T>(value);
}

template <typename T>
inline T combined(T a, T b, int32_t how) {
  if constexpr (std::is_same_v<T, bool>) {
    if (how == DIPU_PRODUCT || how == DIPU_MIN || how == DIPU_BIT_AND) return a && b;
    return how == DIPU_BIT_XOR ? a != b : a || b;
  } else if constexpr (std::is_integral_v<T>) {
    using U = uint64_t;  // its overflow is defined
    switch (how) {
      case DIPU_PRODUCT: return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      case DIPU_MIN: return std::min(a, b);
      case DIPU_MAX: return std::max(a, b);
      case DIPU_BIT_AND: return a & b;
      case DIPU_BIT_OR: return a | b;
      case DIPU_BIT_XOR: return a ^ b;
      default: return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    switch (how) {
      case DIPU_PRODUCT: return a * b;
      case DIPU_MIN: return b < a || b != b ? b : a;
      case DIPU_MAX: return b > a || b != b ? b : a;
      default: return a + b;
    }
  } else {
    return how == DIPU_PRODUCT ? a * b : a + b;
  }
}
template <typename T>
inline T averaged(T total, int size) {
  if constexpr (std::is_same_v<T, bool>) return total;
  else if constexpr (std::is_integral_v<T>) return total / static_cast<T>(size);
  else return total / static_cast<decltype(std::abs(T{}))>(size);
}

// Whether a type has a meaning under a reduction.
template <typename T>
constexpr bool reducible(int32_t how) {
  using Wide = decltype(widened(T{}));
  const bool bits = how == DIPU_BIT_AND || how == DIPU_BIT_OR || how == DIPU_BIT_XOR;
  if constexpr (std::is_integral_v<Wide>) return true;
  else if constexpr (std::is_floating_point_v<Wide>) return !bits;
  else return !bits && how != DIPU_MIN && how != DIPU_MAX;
}

// Reduces `count` elements of each source into `out`, which may be one of them.
template <typename T>
bool reduce(const std::vector<const char*>& sources, char* out, size_t count, int32_t how) {
  using Wide = decltype(widened(T{}));
  if (!reducible<T>(how)) return false;
  constexpr size_t kTile = 256;
  std::vector<unsigned char> room(kTile * sizeof(Wide));
  auto* total = reinterpret_cast<Wide*>(room.data());
  for (size_t start = 0; start < count; start += kTile) {
    const size_t length = std::min(kTile, count - start);
    for (size_t r = 0; r < sources.size(); r++) {
      const T* from = reinterpret_cast<const T*>(sources[r]) + start;
      if (r == 0) {
        for (size_t i = 0; i < length; i++) total[i] = widened(from[i]);
      } else {
        for (size_t i = 0; i < length; i++) total[i] = combined<Wide>(total[i], widened(from[i]), how);
      }
    }
    T* to = reinterpret_cast<T*>(out) + start;
    for (size_t i = 0; i < length; i++) {
      narrow(how == DIPU_AVERAGE ? averaged<Wide>(total[i], static_cast<int>(sources.size())) : total[i], to[i]);
    }
  }
  return true;
}

using Reduce = bool (*)(const std::vector<const char*>&, char*, size_t, int32_t);
struct Type {
  size_t bytes;
  Reduce reduce;  // null: the type can only be moved
};

// By the number of diopiDtype_t; 0 bytes: there is no such type.
inline Type type_of(int32_t dtype) {
  switch (dtype) {
    case diopi_dtype_int8: return {1, reduce<int8_t>};
    case diopi_dtype_uint8: return {1, reduce<uint8_t>};
    case diopi_dtype_bool: return {1, reduce<bool>};
    case diopi_dtype_int16: return {2, reduce<int16_t>};
    case diopi_dtype_uint16: return {2, reduce<uint16_t>};
    case diopi_dtype_int32: return {4, reduce<int32_t>};
    case diopi_dtype_uint32: return {4, reduce<uint32_t>};
    case diopi_dtype_int64: return {8, reduce<int64_t>};
    case diopi_dtype_uint64: return {8, reduce<uint64_t>};
    case diopi_dtype_float16: return {2, reduce<Half>};
    case diopi_dtype_bfloat16: return {2, reduce<Brain>};
    case diopi_dtype_float32: return {4, reduce<float>};
    case diopi_dtype_float64: return {8, reduce<double>};
    case diopi_dtype_complex64: return {8, reduce<std::complex<float>>};
    case diopi_dtype_complex128: return {16, reduce<std::complex<double>>};
    case diopi_dtype_complex32: return {4, nullptr};
    case diopi_dtype_float8_e4m3fn:
    case diopi_dtype_float8_e5m2: return {1, nullptr};
    default: return {0, nullptr};
  }
}

}  // namespace reference
