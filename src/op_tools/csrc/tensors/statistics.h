/* SPDX-License-Identifier: Apache-2.0 */
// What is computed of a tensor's values. The two tables here are followed by the kernels of
// devices, by lines of JSON and by Python; op_tools/tensors/statistics_reference.py has the same
// two.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace op_tools {

// The order is that of NATIVE in op_tools/tensors/statistics.py.
enum class Kind : int { float32, float64, bfloat16, float16, int64, int32, int16, int8, uint8 };

inline size_t width_of(Kind kind) {
  static constexpr size_t widths[] = {4, 8, 2, 2, 8, 4, 2, 1, 1};
  return widths[static_cast<int>(kind)];
}

// What is read of values, in the order of a row of a device's results (behind the two sums of the
// hash). Low and high are int64 of integers, else double, as are the totals; the last one is a
// count.
enum Field : size_t { kLow, kHigh, kTotal, kSquares, kFinite, kNans, kFieldCount };
enum class Merge { least, most, total, count };
constexpr Merge kMerges[] = {Merge::least, Merge::most,  Merge::total,
                             Merge::total, Merge::count, Merge::count};
static_assert(std::size(kMerges) == kFieldCount);

// The fields of one tensor, and its hash.
struct Measured {
  explicit Measured(bool whole = false) : whole(whole) {
    if (whole)
      fields[kLow] = std::numeric_limits<int64_t>::max(),
      fields[kHigh] = std::numeric_limits<int64_t>::min();
    else
      set(kLow, std::numeric_limits<double>::max()),
          set(kHigh, std::numeric_limits<double>::lowest());
  }

  double real(size_t field) const { return std::bit_cast<double>(fields[field]); }
  void set(size_t field, double value) { fields[field] = std::bit_cast<int64_t>(value); }
  void merge(const int64_t* row);
  int64_t nonfinite() const { return times * (values - fields[kFinite]); }

  uint64_t hash = 0;
  int64_t values = 0, times = 1;  // how many there are, and how often each occurs in the tensor
  bool whole;                     // integers: low and high are exact
  std::array<int64_t, kFieldCount> fields{};
};

struct Number {
  enum { none, whole, real } kind = none;
  int64_t exact = 0;
  double value = 0;

  Number() = default;
  Number(int64_t exact) : kind(whole), exact(exact) {}
  Number(double value) : kind(real), value(value) {}
};

// A number in a line, made of the fields of a tensor.
struct Statistic {
  const char* name;
  Number (*of)(const Measured&);
  bool always = true;  // false: only in the lines of calls with NaN or Inf
};

inline Number bound_of(const Measured& found, Field field) {
  if (found.fields[kFinite] == 0) return {};
  return found.whole ? Number(found.fields[field]) : Number(found.real(field));
}

constexpr Statistic kStatistics[] = {
    {"min", [](const Measured& found) { return bound_of(found, kLow); }},
    {"max", [](const Measured& found) { return bound_of(found, kHigh); }},
    {"mean",
     [](const Measured& found) {
       const auto finite = static_cast<double>(found.fields[kFinite]);
       return finite > 0 ? Number(found.real(kTotal) / finite) : Number();
     }},
    {"norm",
     [](const Measured& found) {
       const double squares = found.real(kSquares) * static_cast<double>(found.times);
       return found.fields[kFinite] > 0 ? Number(std::sqrt(squares)) : Number();
     }},
    {"nonfinite", [](const Measured& found) { return Number(found.nonfinite()); }},
    {"nans", [](const Measured& found) { return Number(found.times * found.fields[kNans]); },
     false},
};

// What is read of tensors.
enum class Reads : int { everything, hash, fields };

// Values that lie side by side in host memory, each of which occurs `times` times in the tensor.
Measured measure(const uint8_t* data, size_t count, Kind kind, Reads reads, int64_t times = 1);
uint64_t hash_of_repeated(uint64_t hash, int64_t times);

// Values of half precision as float32; `half`: float16, else bfloat16.
void widen(float* to, const uint16_t* from, size_t count, bool half);

}  // namespace op_tools
