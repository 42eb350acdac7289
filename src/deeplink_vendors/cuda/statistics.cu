// SPDX-License-Identifier: Apache-2.0
// Pieces of memory reduced, one by each block of threads: see statistics.py beside this file.
//
// A piece is at most one block of the hash of op_tools/tensors/statistics.py: 16384 words of 8 bytes, whose
// bytes behind the last whole word count as a word that is filled up with zeros.

typedef unsigned long long word_t;
typedef long long whole_t;

const whole_t kHashOnly = 16, kGaps = 32, kDims = 8;
const int kFirst = 8;  // bits of the kind before the number of the first element

struct Row {  // of the table
  word_t address;
  whole_t bytes, kind;
};

struct Gaps {  // values that do not lie one after the other; the innermost dimension first
  word_t address;
  whole_t dims;
  whole_t sizes_strides[2 * kDims];
};
const int kGapsWords = sizeof(Gaps) / sizeof(whole_t);

struct Found {
  word_t sum, upper;  // of the hash
  word_t low, high;   // the bits of a double, or whole
  double total, squares;
  whole_t finite, nans;
};

__device__ word_t key_of(word_t place) {
  word_t state = (place + 1) * 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return (state ^ (state >> 31)) | 1;
}

// How the bits of an element are read; the order of the kinds is that of op_tools/tensors/statistics.py.
struct Float32 {
  typedef unsigned int Bits;
  typedef double Value;
  static __device__ bool finite(Bits bits) { return (bits & 0x7f800000u) != 0x7f800000u; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
  static __device__ double value(Bits bits) { return (double)__int_as_float((int)bits); }
};

struct Float64 {
  typedef word_t Bits;
  typedef double Value;
  static __device__ bool finite(Bits bits) { return (bits & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull; }
  static __device__ double value(Bits bits) { return __longlong_as_double((whole_t)bits); }
};

struct BFloat16 {
  typedef unsigned short Bits;
  typedef double Value;
  static __device__ bool finite(Bits bits) { return (bits & 0x7f80) != 0x7f80; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fff) > 0x7f80; }
  static __device__ double value(Bits bits) { return (double)__int_as_float((int)((unsigned int)bits << 16)); }
};

struct Float16 {
  typedef unsigned short Bits;
  typedef double Value;
  static __device__ bool finite(Bits bits) { return (bits & 0x7c00) != 0x7c00; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fff) > 0x7c00; }
  static __device__ double value(Bits bits) {
    // as if its exponent were float32's, which is 112 off; exact, of subnormals too
    const float scaled = __int_as_float((int)((unsigned int)(bits & 0x7fff) << 13)) * 5.192296858534828e33f;
    return (double)(bits & 0x8000 ? -scaled : scaled);
  }
};

template <typename Unsigned, typename Signed>
struct Whole {
  typedef Unsigned Bits;
  typedef whole_t Value;
  static __device__ bool finite(Bits) { return true; }
  static __device__ bool nan(Bits) { return false; }
  static __device__ whole_t value(Bits bits) { return (whole_t)(Signed)bits; }
};

__device__ word_t bits_of(double value) { return (word_t)__double_as_longlong(value); }
__device__ word_t bits_of(whole_t value) { return (word_t)value; }
__device__ double double_of(word_t bits) { return __longlong_as_double((whole_t)bits); }

template <typename Value>
struct Bounds {
  static __device__ Value of(word_t bits);
};
template <>
struct Bounds<double> {
  static __device__ double of(word_t bits) { return double_of(bits); }
  static __device__ double least() { return double_of(0xffefffffffffffffull); }
  static __device__ double most() { return double_of(0x7fefffffffffffffull); }
};
template <>
struct Bounds<whole_t> {
  static __device__ whole_t of(word_t bits) { return (whole_t)bits; }
  static __device__ whole_t least() { return (whole_t)0x8000000000000000ull; }
  static __device__ whole_t most() { return 0x7fffffffffffffffll; }
};

template <typename Bits>
struct Values {
  const Bits* data;
  const Gaps* gaps;  // null: there are none
  whole_t first;

  __device__ Values(const Row& row, const Gaps* gaps)
      : data((const Bits*)(gaps ? gaps->address : row.address)), gaps(gaps), first(row.kind >> kFirst) {}

  __device__ Bits at(whole_t place) const {
    if (!gaps) return data[place];
    word_t rest = (word_t)(first + place);
    whole_t offset = 0;
    for (whole_t dim = 0; dim < gaps->dims; dim++) {
      const word_t size = (word_t)gaps->sizes_strides[2 * dim];
      const bool small = ((rest | size) >> 32) == 0;  // a division by half the bits is much faster
      const word_t next = small ? (unsigned int)rest / (unsigned int)size : rest / size;
      offset += (whole_t)(rest - next * size) * gaps->sizes_strides[2 * dim + 1];
      rest = next;
    }
    return data[offset];
  }

  // The word at a place: memory may lie on the boundary of an element alone.
  __device__ word_t word_at(whole_t place, whole_t elements, bool aligned) const {
    const int each = 8 / sizeof(Bits);
    const whole_t from = place * each;
    if (aligned && from + each <= elements) return ((const word_t*)data)[place];
    word_t made = 0;
    for (int i = 0; i < each && from + i < elements; i++) made |= (word_t)at(from + i) << (8 * sizeof(Bits) * i);
    return made;
  }
};

template <typename Kind>
__device__ void add(Found& found, const Row& row, const Gaps* gaps, bool numbers) {
  typedef typename Kind::Bits Bits;
  typedef typename Kind::Value Value;
  const Values<Bits> values(row, gaps);
  const whole_t elements = row.bytes / (whole_t)sizeof(Bits), words = (row.bytes + 7) / 8;
  const int each = 8 / sizeof(Bits);
  const bool aligned = !gaps && row.address % 8 == 0;
  Value low = Bounds<Value>::most(), high = Bounds<Value>::least();
  double total = 0, squares = 0;
  word_t sum = 0, upper = 0;
  whole_t finite = 0, nans = 0;
#pragma unroll 1
  for (whole_t place = threadIdx.x; place < words; place += blockDim.x) {
    const word_t word = values.word_at(place, elements, aligned), key = key_of((word_t)place);
    sum += word * key;
    upper += (word >> 32) * key;
    if (!numbers) continue;
    for (int i = 0; i < each; i++) {
      if (place * each + i >= elements) break;
      const Bits bits = (Bits)(word >> (8 * sizeof(Bits) * i % 64));
      if (!Kind::finite(bits)) {
        nans += Kind::nan(bits);
        continue;
      }
      const Value value = Kind::value(bits);
      low = value < low ? value : low;
      high = value > high ? value : high;
      total += (double)value;
      squares += (double)value * (double)value;
      finite++;
    }
  }
  found = {sum, upper, bits_of(low), bits_of(high), total, squares, finite, nans};
}

template <typename Value>
__device__ void merge(Found& to, const Found& from) {
  to.sum += from.sum, to.upper += from.upper;
  to.total += from.total, to.squares += from.squares;
  to.finite += from.finite, to.nans += from.nans;
  if (Bounds<Value>::of(from.low) < Bounds<Value>::of(to.low)) to.low = from.low;
  if (Bounds<Value>::of(from.high) > Bounds<Value>::of(to.high)) to.high = from.high;
}

template <typename Kind>
__device__ void reduce(Found* shared, const Row& row, const Gaps* gaps, bool numbers) {
  add<Kind>(shared[threadIdx.x], row, gaps, numbers);
  for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) merge<typename Kind::Value>(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
}

extern "C" __global__ void reduce_pieces(const Row* table, Found* results) {
  __shared__ Found shared[256];
  __shared__ Gaps described;
  const Row row = table[blockIdx.x];
  const bool numbers = !(row.kind & kHashOnly);
  const Gaps* gaps = row.kind & kGaps ? &described : 0;
  if (gaps) {  // the host's memory is far
    for (int i = threadIdx.x; i < kGapsWords; i += blockDim.x) ((whole_t*)&described)[i] = ((const whole_t*)row.address)[i];
    __syncthreads();
  }
  switch (row.kind % 16) {
    case 0: reduce<Float32>(shared, row, gaps, numbers); break;
    case 1: reduce<Float64>(shared, row, gaps, numbers); break;
    case 2: reduce<BFloat16>(shared, row, gaps, numbers); break;
    case 3: reduce<Float16>(shared, row, gaps, numbers); break;
    case 4: reduce<Whole<word_t, whole_t>>(shared, row, gaps, numbers); break;
    case 5: reduce<Whole<unsigned int, int>>(shared, row, gaps, numbers); break;
    case 6: reduce<Whole<unsigned short, short>>(shared, row, gaps, numbers); break;
    case 7: reduce<Whole<unsigned char, signed char>>(shared, row, gaps, numbers); break;
    default: reduce<Whole<unsigned char, unsigned char>>(shared, row, gaps, numbers);
  }
  if (threadIdx.x > 0) return;
  Found& found = results[blockIdx.x];
  const whole_t nans = shared[0].nans;
  shared[0].nans = Bounds<whole_t>::least();  // not yet: the host may look for it
  found = shared[0];
  __threadfence_system();
  *(volatile whole_t*)&found.nans = nans;
}
