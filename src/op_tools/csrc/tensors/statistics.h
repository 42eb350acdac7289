// Statistics and hash of values that lie side by side in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace op_tools {

// The order is that of the table in op_tools/tensors/statistics.py.
enum class Kind : int { float32, float64, bfloat16, float16, int64, int32, int16, int8, uint8 };

struct Measured {
  uint64_t hash = 0;
  bool numbers = false;  // whether min, max, mean and norm are set: there is a finite value
  bool whole = false;    // of integers: min and max are exact
  double low = 0, high = 0, mean = 0, norm = 0;
  int64_t whole_low = 0, whole_high = 0, nonfinite = 0, nans = 0;
};

inline size_t width_of(Kind kind) {
  static constexpr size_t widths[] = {4, 8, 2, 2, 8, 4, 2, 1, 1};
  return widths[static_cast<int>(kind)];
}
Measured measure(const uint8_t* data, size_t count, Kind kind, bool hash_only);
Measured repeated(Measured found, int64_t times);  // of values that each occur `times` times

// Values of half precision as float32; `half`: float16, else bfloat16.
void widen(float* to, const uint16_t* from, size_t count, bool half);

}  // namespace op_tools
