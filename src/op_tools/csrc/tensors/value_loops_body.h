/* SPDX-License-Identifier: Apache-2.0 */
// The loops over values. value_loops.h includes this once for each kind of processor, in a
// namespace of its own, with `kBytes`, the size of the processor's vectors.

template <typename T, size_t size>
struct VectorOf {
  typedef T type __attribute__((vector_size(size)));
};
template <typename T>
using Vector = typename VectorOf<T, kBytes>::type;
constexpr size_t kDoubles = kBytes / sizeof(double);
template <typename T>
using Part =
    typename VectorOf<T, kDoubles * sizeof(T)>::type;  // values that are a vector as doubles

template <typename V, typename T>
static V loaded(const T* from) {
  V made;
  std::memcpy(&made, from, sizeof made);
  return made;
}

// Adds the products of words and keys, and those of the upper halves of the words.
static void add_sums(Sums& to, const uint8_t* data, const uint64_t* key, size_t count) {
  Vector<uint64_t> words{}, upper{};
  size_t i = 0;
  for (; i + kDoubles <= count; i += kDoubles) {
    const auto word = loaded<Vector<uint64_t>>(data + 8 * i),
               factor = loaded<Vector<uint64_t>>(key + i);
    words += word * factor;
    upper += (word >> 32) * factor;
  }
  for (size_t lane = 0; lane < kDoubles; lane++) to.words += words[lane], to.upper += upper[lane];
  for (; i < count; i++) {
    const auto word = loaded<uint64_t>(data + 8 * i);
    to.words += word * key[i], to.upper += (word >> 32) * key[i];
  }
}

// Adds the fields of values that lie side by side. Without `masked` nothing is added if some value
// is not finite, which their squares tell; then `masked` leaves those out.
template <typename T, bool masked = false>
static void add_fields(Measured& to, const T* data, size_t count) {
  constexpr size_t kLanes = kBytes / sizeof(T), kParts = kLanes / kDoubles;
  constexpr bool is_whole = std::is_integral_v<T>;
  constexpr T kMost = std::numeric_limits<T>::max(), kLeast = std::numeric_limits<T>::lowest();
  Vector<T> low = Vector<T>{} + kMost, high = Vector<T>{} + kLeast;
  Vector<double> sum[kParts] = {}, square[kParts] = {};
  decltype(low < high) nonfinite{}, nans{};  // minus their count
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    auto value = loaded<Vector<T>>(data + i);
    auto least = value, most = value;
    if constexpr (masked) {
      const auto bad = (value - value) != 0;
      nonfinite += bad, nans += value != value;
      least = bad ? low : value, most = bad ? high : value;
      value = bad ? Vector<T>{} : value;
    }
    low = least < low ? least : low;
    high = most > high ? most : high;
    for (size_t part = 0; part < kParts; part++) {
      const auto some = loaded<Part<T>>(reinterpret_cast<const T*>(&value) + kDoubles * part);
      const auto wide = __builtin_convertvector(some, Vector<double>);
      sum[part] += wide, square[part] += wide * wide;
    }
  }
  T lowest = kMost, highest = kLeast;
  double total = 0, squares = 0;
  int64_t finite = static_cast<int64_t>(whole), nan_count = 0;
  for (size_t lane = 0; lane < kLanes; lane++) {
    lowest = std::min(lowest, low[lane]), highest = std::max(highest, high[lane]);
    total += sum[lane / kDoubles][lane % kDoubles],
        squares += square[lane / kDoubles][lane % kDoubles];
    finite += nonfinite[lane], nan_count -= nans[lane];
  }
  for (size_t i = whole; i < count; i++) {
    const T value = data[i];
    nan_count += value != value;
    if (masked && value - value != 0) continue;
    lowest = std::min(lowest, value), highest = std::max(highest, value);
    const auto wide = static_cast<double>(value);
    total += wide, squares += wide * wide, finite++;
  }
  if constexpr (!is_whole && !masked)
    if (!(squares < std::numeric_limits<double>::infinity()))
      return add_fields<T, true>(to, data, count);
  int64_t row[kFieldCount];
  row[kLow] = bits_of(lowest), row[kHigh] = bits_of(highest);
  row[kTotal] = bits_of(total), row[kSquares] = bits_of(squares);
  row[kFinite] = finite, row[kNans] = nan_count;
  to.merge(row);
}

static float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16,
                 magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  // as if its exponent were float32's, which is 112 off; exact for subnormals too
  const float scaled = std::bit_cast<float>(magnitude) * 5.192296858534828e33f;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;  // inf, nan
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

static void widen(float* to, const uint16_t* from, size_t count, bool half) {
  if (half)
    for (size_t i = 0; i < count; i++) to[i] = from_float16(from[i]);
  else
    for (size_t i = 0; i < count; i++)
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

// What whole vectors of two rows differ by; sums in float32.
static void differences(Differences& to, const float* a, const float* b, size_t count) {
  constexpr size_t kLanes = kBytes / sizeof(float);
  Vector<float> square{}, left{}, right{}, largest{};
  Vector<int32_t> differing{};
  for (size_t i = 0; i < count; i += kLanes) {
    const auto x = loaded<Vector<float>>(a + i), y = loaded<Vector<float>>(b + i), off = x - y;
    square += off * off, left += x * x, right += y * y;
    const auto size = off < 0 ? -off : off;
    largest = largest < size ? size : largest;
    differing -= x != y;
  }
  for (size_t lane = 0; lane < kLanes; lane++) {
    to.square += square[lane], to.left += left[lane], to.right += right[lane];
    to.largest = std::max(to.largest, static_cast<double>(largest[lane]));
    to.differing += differing[lane];
  }
}
