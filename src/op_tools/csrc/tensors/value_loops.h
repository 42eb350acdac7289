/* SPDX-License-Identifier: Apache-2.0 */
// Loops over values in host memory, compiled for several kinds of processors.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hash.h"
#include "statistics.h"

namespace op_tools {

constexpr size_t kFloats = 16;  // in the longest vector

struct Differences {
  double square = 0, left = 0, right = 0, largest = 0;
  int64_t differing = 0;
};

template <typename T>
int64_t bits_of(T value) {
  if constexpr (std::is_integral_v<T>) return value;
  else return std::bit_cast<int64_t>(static_cast<double>(value));
}

namespace plain {
constexpr size_t kBytes = 16;
#include "value_loops_body.h"
}  // namespace plain
#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
constexpr size_t kBytes = 32;
#include "value_loops_body.h"
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,f16c")
namespace avx512 {
constexpr size_t kBytes = 64;
#include "value_loops_body.h"
}  // namespace avx512
#pragma GCC pop_options

inline int vector_bits() {
  static const int found = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c"))
      return 0;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    return wide ? 512 : 256;
  }();
  return found;
}
// Calls a loop of the namespace for this processor.
#define OP_TOOLS_LOOP(...)                      \
  (vector_bits() == 512   ? avx512::__VA_ARGS__ \
   : vector_bits() == 256 ? avx2::__VA_ARGS__   \
                          : plain::__VA_ARGS__)
#else
#define OP_TOOLS_LOOP(...) plain::__VA_ARGS__
#endif

}  // namespace op_tools
