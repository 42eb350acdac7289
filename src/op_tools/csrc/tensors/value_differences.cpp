// SPDX-License-Identifier: Apache-2.0
// The differences between two rows of values in host memory.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "value_loops.h"

namespace py = pybind11;

namespace op_tools {

constexpr size_t kSome =
    1024;  // values whose squares are summed in float32 before they are in float64

// What two rows of values differ by. The sums are over pairs of which both are finite.
struct Compared {
  int64_t differing = 0;  // by their bits, but that all nan are alike
  int64_t apart = 0;   // of which one is finite and the other is not, or infinities of both signs
  double largest = 0;  // difference
  double square = 0;   // sum of squares of differences
  double left = 0, right = 0;  // sums of squares

  void one(double a, double b) {
    if (a == b) {
      if (std::isfinite(a)) left += a * a, right += b * b;
      return;
    }
    if (std::isnan(a) && std::isnan(b)) return;
    differing++;
    if (!std::isfinite(a) || !std::isfinite(b)) {
      apart++;
      return;
    }
    const double off = std::abs(a - b);
    largest = std::max(largest, off);
    square += off * off, left += a * a, right += b * b;
  }
};

static bool ordinary(double sum) { return sum > 1e-30 && sum < 1e30; }

static void floats(Compared& found, const float* a, const float* b, size_t count) {
  size_t done = count / kFloats * kFloats;
  Differences made;
  OP_TOOLS_LOOP(differences(made, a, b, done));
  if (ordinary(made.left) && ordinary(made.right) && made.square < 1e30) {
    found.square += made.square, found.left += made.left, found.right += made.right;
    found.largest = std::max(found.largest, made.largest);
    found.differing += made.differing;
  } else {
    done = 0;  // what is not finite, huge or tiny: one by one
  }
  for (size_t i = done; i < count; i++) found.one(a[i], b[i]);
}

template <typename T>
static void others(Compared& found, const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if constexpr (std::is_integral_v<T>) {
      if (a[i] == b[i]) continue;
    }
    found.one(static_cast<double>(a[i]), static_cast<double>(b[i]));
  }
}

static void halves(Compared& found, const uint16_t* a, const uint16_t* b, size_t count, bool half) {
  alignas(64) float left[kSome], right[kSome];
  widen(left, a, count, half);
  widen(right, b, count, half);
  floats(found, left, right, count);
}

template <typename Each>
static Compared by_pieces(size_t count, Each each) {
  Compared found;
  for (size_t at = 0; at < count; at += kSome) each(found, at, std::min(kSome, count - at));
  return found;
}

static Compared compared(const uint8_t* a, const uint8_t* b, size_t count, Kind kind) {
  const auto of = [&](auto zero) {
    using T = decltype(zero);
    const T *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
    return by_pieces(count, [&](Compared& found, size_t at, size_t some) {
      if constexpr (std::is_same_v<T, float>) floats(found, x + at, y + at, some);
      else if constexpr (std::is_same_v<T, uint16_t>)
        halves(found, x + at, y + at, some, kind == Kind::float16);
      else others(found, x + at, y + at, some);
    });
  };
  switch (kind) {
    case Kind::float32: return of(float{});
    case Kind::float64: return of(double{});
    case Kind::bfloat16:
    case Kind::float16: return of(uint16_t{});
    case Kind::int64: return of(int64_t{});
    case Kind::int32: return of(int32_t{});
    case Kind::int16: return of(int16_t{});
    case Kind::int8: return of(int8_t{});
    default: return of(uint8_t{});
  }
}

void bind_value_differences(py::module_& m) {
  m.def(
      "compare",
      [](uintptr_t a, uintptr_t b, size_t count, int kind) {
        Compared found;
        {
          py::gil_scoped_release release;
          found = compared(reinterpret_cast<const uint8_t*>(a), reinterpret_cast<const uint8_t*>(b),
                           count, static_cast<Kind>(kind));
        }
        return py::make_tuple(found.differing, found.apart, found.largest, std::sqrt(found.square),
                              std::sqrt(found.left), std::sqrt(found.right));
      },
      "differing, apart, largest difference, norms of the difference and of both");
}

}  // namespace op_tools
