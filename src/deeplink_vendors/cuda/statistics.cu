// SPDX-License-Identifier: Apache-2.0
// Statistics of pieces of memory, one piece for each block of threads: see statistics.py in this folder.
//
// A piece is at most one block of the hash of op_tools/tensors/statistics_reference.py: 16384 words
// of 8 bytes. The bytes after the last whole word count as a word that is padded with zeros.
//
// Floating-point values are read in chunks of several times 16 bytes by each thread, if 16 bytes are
// contiguous. A chunk of finite values of half precision is reduced in float32, and added to the
// sums in float64; any other chunk is read value by value, as are the other types.

typedef unsigned long long word_t;
typedef long long whole_t;

const whole_t kHashOnly = 16, kGaps = 32, kNoHash = 64, kDims = 8;
const whole_t kPiece = 8 * 16384;  // bytes
const int kFirst = 8;   // bits of the kind before the number of the first element
const int kLoads = 4;   // of 16 bytes, in a chunk
const int kWords = 2 * kLoads;
const int kMostWarps = 32;

struct Row {  // of the table
  word_t address;
  whole_t bytes, kind;
};

struct Given {  // a few contiguous tensors; the table is read where there are none
  whole_t count;
  Row tensors[16];
  whole_t first_row[17];  // of each tensor
};

struct Gaps {  // the layout of non-contiguous values; the innermost dimension first
  word_t address;
  whole_t dims;
  whole_t sizes_strides[2 * kDims];
};
const int kGapsWords = sizeof(Gaps) / sizeof(whole_t);

struct Result {
  word_t sum, upper;  // of the hash
  word_t low, high;  // the bits of a double, or an integer
  double total, squares;
  whole_t finite, nans;
};

__device__ word_t key_of(unsigned int place) {
  word_t state = (place + 1) * 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return (state ^ (state >> 31)) | 1;
}

__device__ word_t bits_of(double value) { return (word_t)__double_as_longlong(value); }
__device__ word_t bits_of(whole_t value) { return (word_t)value; }
__device__ double double_of(word_t bits) { return __longlong_as_double((whole_t)bits); }

template <typename Value>
struct Bounds;
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

// The values that a thread has read.
template <typename Value>
struct Fields {
  word_t sum = 0, upper = 0;
  Value low = Bounds<Value>::most(), high = Bounds<Value>::least();
  double total = 0, squares = 0;
  unsigned int finite = 0, nans = 0;

  __device__ void hash(word_t word, unsigned int place) {
    const word_t key = key_of(place);
    sum += word * key;
    upper += (word >> 32) * key;
  }
  __device__ void bound(Value least, Value most) {
    low = least < low ? least : low;
    high = most > high ? most : high;
  }
};

// Decoding of an element's bits; the order of the kinds is that of op_tools/tensors/statistics.py.
// `Chunk` reduces finite values of several words; void: it has none.
struct Float32 {
  typedef unsigned int Bits;
  typedef double Value;
  static __device__ bool finite(Bits bits) { return (bits & 0x7f800000u) != 0x7f800000u; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
  static __device__ double value(Bits bits) { return (double)__int_as_float((int)bits); }

  struct Chunk {
    unsigned int top = 0;  // the largest magnitude
    float low = 3.402823466e38f, high = -3.402823466e38f;
    double total = 0, squares = 0;

    __device__ void add(unsigned int bits) {
      top = max(top, bits & 0x7fffffffu);
      const float value = __int_as_float((int)bits);
      low = fminf(low, value);
      high = fmaxf(high, value);
      total += (double)value;
      squares += (double)value * (double)value;
    }
    __device__ bool good() const { return top < 0x7f800000u; }
    __device__ void bound(Fields<double>& fields) const { fields.bound((double)low, (double)high); }
  };
};

struct Float64 {
  typedef word_t Bits;
  typedef double Value;
  typedef void Chunk;
  static __device__ bool finite(Bits bits) { return (bits & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull; }
  static __device__ double value(Bits bits) { return double_of(bits); }
};

// Two values of half precision in 32 bits.
template <typename Half>
struct HalfChunk {
  unsigned int top = 0, low = Half::kMost, high = Half::kMost | 0x80008000u;
  float total = 0, squares = 0;

  __device__ void add(unsigned int pair) {
    top = __vmaxu2(top, pair & 0x7fff7fffu);
    float first, second;
    Half::widen(pair, first, second);
    low = Half::lesser(low, pair);
    high = Half::greater(high, pair);
    total += first + second;
    squares = fmaf(first, first, fmaf(second, second, squares));
  }
  // Whether all are finite, and no square was lost in float32.
  __device__ bool good() const {
    if ((top & 0xffffu) >= Half::kInfinite || (top >> 16) >= Half::kInfinite) return false;
    return top == 0 || (squares > 1e-24f && squares < 3e38f);
  }
  __device__ void bound(Fields<double>& fields) const {
    float least, most, other;
    Half::widen(low, least, other);
    least = fminf(least, other);
    Half::widen(high, most, other);
    fields.bound((double)least, (double)fmaxf(most, other));
  }
};

struct BFloat16 {
  typedef unsigned short Bits;
  typedef double Value;
  typedef HalfChunk<BFloat16> Chunk;
  static const unsigned int kMost = 0x7f7f7f7fu, kInfinite = 0x7f80u;
  static __device__ bool finite(Bits bits) { return (bits & 0x7f80) != 0x7f80; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fff) > 0x7f80; }
  static __device__ double value(Bits bits) { return (double)__int_as_float((int)((unsigned int)bits << 16)); }
  static __device__ void widen(unsigned int pair, float& first, float& second) {
    first = __int_as_float((int)(pair << 16));
    second = __int_as_float((int)(pair & 0xffff0000u));
  }
  static __device__ unsigned int lesser(unsigned int one, unsigned int other) {
#if __CUDA_ARCH__ >= 800
    unsigned int made;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(one), "r"(other));
    return made;
#else
    return by_parts<false>(one, other);
#endif
  }
  static __device__ unsigned int greater(unsigned int one, unsigned int other) {
#if __CUDA_ARCH__ >= 800
    unsigned int made;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(one), "r"(other));
    return made;
#else
    return by_parts<true>(one, other);
#endif
  }
  template <bool kGreater>
  static __device__ unsigned int by_parts(unsigned int one, unsigned int other) {
    float a, b, c, d;
    widen(one, a, b);
    widen(other, c, d);
    const float first = kGreater ? fmaxf(a, c) : fminf(a, c), second = kGreater ? fmaxf(b, d) : fminf(b, d);
    return ((unsigned int)__float_as_int(first) >> 16) | ((unsigned int)__float_as_int(second) & 0xffff0000u);
  }
};

struct Float16 {
  typedef unsigned short Bits;
  typedef double Value;
  typedef HalfChunk<Float16> Chunk;
  static const unsigned int kMost = 0x7bff7bffu, kInfinite = 0x7c00u;
  static __device__ bool finite(Bits bits) { return (bits & 0x7c00) != 0x7c00; }
  static __device__ bool nan(Bits bits) { return (bits & 0x7fff) > 0x7c00; }
  static __device__ double value(Bits bits) {
    return (double)wide(bits);
  }
  static __device__ void widen(unsigned int pair, float& first, float& second) {
#if __CUDA_ARCH__ >= 530
    asm("{.reg .f16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;}"
        : "=f"(first), "=f"(second)
        : "r"(pair));
#else
    first = wide(pair & 0xffffu);
    second = wide(pair >> 16);
#endif
  }
  static __device__ float wide(unsigned int bits) {
    // as if its exponent were float32's, which is 112 off; exact, also for subnormals
    const float scaled = __int_as_float((int)((bits & 0x7fff) << 13)) * 5.192296858534828e33f;
    return bits & 0x8000 ? -scaled : scaled;
  }
  static __device__ unsigned int lesser(unsigned int one, unsigned int other) {
    return greater(one ^ 0x80008000u, other ^ 0x80008000u) ^ 0x80008000u;
  }
  static __device__ unsigned int greater(unsigned int one, unsigned int other) {
#if __CUDA_ARCH__ >= 800
    unsigned int made;
    asm("max.f16x2 %0, %1, %2;" : "=r"(made) : "r"(one), "r"(other));
    return made;
#else
    float a, b, c, d;
    widen(one, a, b);
    widen(other, c, d);
    return (a < c ? other & 0xffffu : one & 0xffffu) | (b < d ? other & 0xffff0000u : one & 0xffff0000u);
#endif
  }
};

template <typename Unsigned, typename Signed>
struct Whole {
  typedef Unsigned Bits;
  typedef whole_t Value;
  typedef void Chunk;
  static __device__ bool finite(Bits) { return true; }
  static __device__ bool nan(Bits) { return false; }
  static __device__ whole_t value(Bits bits) { return (whole_t)(Signed)bits; }
};

template <typename Bits>
struct Values {
  const Bits* data;
  const Gaps* gaps;  // null: the values are contiguous
  whole_t first;

  __device__ Values(const Row& row, const Gaps* gaps)
      : data((const Bits*)(gaps ? gaps->address : row.address)), gaps(gaps), first(row.kind >> kFirst) {}

  // Whether `size` bytes at each multiple of it are contiguous and aligned.
  __device__ bool lie_together(int size) const {
    const whole_t each = size / sizeof(Bits);
    if ((word_t)data % size != 0) return false;
    if (!gaps) return true;
    bool together = gaps->sizes_strides[1] == 1 && gaps->sizes_strides[0] % each == 0 && first % each == 0;
    for (int dim = 1; together && dim < gaps->dims; dim++) together = gaps->sizes_strides[2 * dim + 1] % each == 0;
    return together;
  }

  __device__ ulonglong2 pair_at(unsigned int place) const {
    if (!gaps) return ((const ulonglong2*)data)[place];
    return *(const ulonglong2*)(data + offset_of((whole_t)place * (16 / sizeof(Bits))));
  }

  __device__ whole_t offset_of(whole_t place) const {
    word_t rest = (word_t)(first + place);
    whole_t offset = 0;
#pragma unroll 1
    for (int dim = 0; dim + 1 < gaps->dims; dim++) {
      const word_t size = (word_t)gaps->sizes_strides[2 * dim];
      const bool small = ((rest | size) >> 32) == 0;  // a division by half the bits is much faster
      const word_t next = small ? (unsigned int)rest / (unsigned int)size : rest / size;
      offset += (whole_t)(rest - next * size) * gaps->sizes_strides[2 * dim + 1];
      rest = next;
    }
    return offset + (whole_t)rest * gaps->sizes_strides[2 * gaps->dims - 1];
  }

  // Returns the word at an index: memory may be aligned to an element only.
  __device__ word_t word_at(unsigned int place, whole_t elements, bool together) const {
    const int each = 8 / sizeof(Bits);
    const whole_t from = (whole_t)place * each;
    if (together && from + each <= elements) return *(const word_t*)(data + (gaps ? offset_of(from) : from));
    word_t made = 0;
    for (int i = 0; i < each && from + i < elements; i++)
      made |= (word_t)data[gaps ? offset_of(from + i) : from + i] << (8 * sizeof(Bits) * i % 64);
    return made;
  }
};

// Adds the first `count` values of a word, one by one.
template <typename Kind>
__device__ void add_values(Fields<typename Kind::Value>& fields, word_t word, int count) {
  typedef typename Kind::Bits Bits;
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const Bits bits = (Bits)(word >> (8 * sizeof(Bits) * i % 64));
    if (!Kind::finite(bits)) {
      fields.nans += Kind::nan(bits);
      continue;
    }
    const typename Kind::Value value = Kind::value(bits);
    fields.bound(value, value);
    fields.total += (double)value;
    fields.squares += (double)value * (double)value;
    fields.finite++;
  }
}

// Processes all whole chunks of every thread; returns their number of words.
template <typename Kind, typename Chunk>
struct Chunks {
  static __device__ unsigned int add(Fields<double>& fields, const Values<typename Kind::Bits>& values, whole_t bytes,
                                     bool hashes, bool numbers) {
    const unsigned int threads = blockDim.x, count = (unsigned int)(bytes / 8) / (kWords * threads);
    if (!values.lie_together(16)) return 0;
    const int each = 8 / sizeof(typename Kind::Bits);
    for (unsigned int at = 0; at < count; at++) {
      const unsigned int from = at * kLoads * threads + threadIdx.x;
      ulonglong2 words[kLoads];
#pragma unroll
      for (int load = 0; load < kLoads; load++) words[load] = values.pair_at(from + load * threads);
      Chunk chunk;
#pragma unroll
      for (int load = 0; load < kLoads; load++) {
        const word_t first = words[load].x, second = words[load].y;
        if (hashes) {
          const unsigned int place = 2 * (from + load * threads);
          fields.hash(first, place);
          fields.hash(second, place + 1);
        }
        if (numbers) {
          chunk.add((unsigned int)first);
          chunk.add((unsigned int)(first >> 32));
          chunk.add((unsigned int)second);
          chunk.add((unsigned int)(second >> 32));
        }
      }
      if (!numbers) continue;
      if (chunk.good()) {
        chunk.bound(fields);
        fields.total += (double)chunk.total;
        fields.squares += (double)chunk.squares;
        fields.finite += kWords * each;
        continue;
      }
#pragma unroll 1
      for (int word = 0; word < kWords; word++) {  // read again: keeping them would cost registers
        const ulonglong2 pair = values.pair_at(from + word / 2 * threads);
        add_values<Kind>(fields, word % 2 ? pair.y : pair.x, each);
      }
    }
    return count * kWords * threads;
  }
};
template <typename Kind>
struct Chunks<Kind, void> {
  static __device__ unsigned int add(Fields<typename Kind::Value>&, const Values<typename Kind::Bits>&, whole_t, bool,
                                     bool) {
    return 0;
  }
};

template <typename Value>
__device__ void merge(Result& to, const Result& from) {
  to.sum += from.sum, to.upper += from.upper;
  to.total += from.total, to.squares += from.squares;
  to.finite += from.finite, to.nans += from.nans;
  if (Bounds<Value>::of(from.low) < Bounds<Value>::of(to.low)) to.low = from.low;
  if (Bounds<Value>::of(from.high) > Bounds<Value>::of(to.high)) to.high = from.high;
}

// Merges the results of the first `count` lanes of a warp, a power of two, into that of lane 0.
template <typename Value>
__device__ void merge_lanes(Result& result, unsigned int count) {
  const unsigned int all = 0xffffffffu;
  for (unsigned int half = count / 2; half > 0; half /= 2) {
    Result other;
    other.sum = __shfl_down_sync(all, result.sum, half);
    other.upper = __shfl_down_sync(all, result.upper, half);
    other.low = __shfl_down_sync(all, result.low, half);
    other.high = __shfl_down_sync(all, result.high, half);
    other.total = __shfl_down_sync(all, result.total, half);
    other.squares = __shfl_down_sync(all, result.squares, half);
    other.finite = __shfl_down_sync(all, result.finite, half);
    other.nans = __shfl_down_sync(all, result.nans, half);
    merge<Value>(result, other);
  }
}

// The result is in thread 0.
template <typename Kind>
__device__ Result reduce(Result* of_warps, const Row& row, const Gaps* gaps) {
  typedef typename Kind::Value Value;
  typedef typename Kind::Bits Bits;
  const bool hashes = !(row.kind & kNoHash), numbers = !(row.kind & kHashOnly);
  const int each = 8 / sizeof(Bits);
  const whole_t elements = row.bytes / (whole_t)sizeof(Bits);
  const unsigned int words = (unsigned int)((row.bytes + 7) / 8);
  Fields<Value> fields;
  const Values<Bits> values(row, gaps);
  const unsigned int done = Chunks<Kind, typename Kind::Chunk>::add(fields, values, row.bytes, hashes, numbers);
  const bool together = values.lie_together(8);
#pragma unroll 1
  for (unsigned int place = done + threadIdx.x; place < words; place += blockDim.x) {
    const word_t word = values.word_at(place, elements, together);
    if (hashes) fields.hash(word, place);
    const whole_t left = elements - (whole_t)place * each;
    if (numbers) add_values<Kind>(fields, word, left < each ? (int)left : each);
  }
  Result result = {fields.sum,   fields.upper,   bits_of(fields.low),    bits_of(fields.high),
                   fields.total, fields.squares, (whole_t)fields.finite, (whole_t)fields.nans};
  merge_lanes<Value>(result, 32);
  const unsigned int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) of_warps[warp] = result;
  __syncthreads();
  if (warp > 0) return result;
  result = of_warps[threadIdx.x % warps];
  merge_lanes<Value>(result, warps);
  return result;
}

// The row of a piece of a contiguous tensor.
__device__ Row row_of(const Given& given, whole_t number) {
  int tensor = 0;
  while (tensor + 1 < given.count && given.first_row[tensor + 1] <= number) tensor++;
  Row row = given.tensors[tensor];
  const whole_t whole = row.bytes / 8 * 8, at = (number - given.first_row[tensor]) * kPiece;
  row.address += at < whole ? at : whole;
  row.bytes = at < whole ? (whole - at < kPiece ? whole - at : kPiece) : row.bytes - whole;
  return row;
}

// The number of threads is a multiple of 32, and a power of two.
extern "C" __global__ void __launch_bounds__(256, 4)
    reduce_pieces(const Row* table, Result* results, const Given given) {
  __shared__ Result of_warps[kMostWarps];
  __shared__ Gaps layout;
  __shared__ Row shared_row;
  if (given.count > 0 && threadIdx.x == 0) shared_row = row_of(given, blockIdx.x);
  if (given.count == 0 && threadIdx.x < 3)
    ((whole_t*)&shared_row)[threadIdx.x] = ((const whole_t*)(table + blockIdx.x))[threadIdx.x];
  __syncthreads();
  const Row row = shared_row;
  const Gaps* gaps = row.kind & kGaps ? &layout : 0;
  if (gaps) {  // the host's memory is slow
    for (int i = threadIdx.x; i < kGapsWords; i += blockDim.x) ((whole_t*)&layout)[i] = ((const whole_t*)row.address)[i];
    __syncthreads();
  }
  Result result;
  switch (row.kind % 16) {
    case 0: result = reduce<Float32>(of_warps, row, gaps); break;
    case 1: result = reduce<Float64>(of_warps, row, gaps); break;
    case 2: result = reduce<BFloat16>(of_warps, row, gaps); break;
    case 3: result = reduce<Float16>(of_warps, row, gaps); break;
    case 4: result = reduce<Whole<word_t, whole_t>>(of_warps, row, gaps); break;
    case 5: result = reduce<Whole<unsigned int, int>>(of_warps, row, gaps); break;
    case 6: result = reduce<Whole<unsigned short, short>>(of_warps, row, gaps); break;
    case 7: result = reduce<Whole<unsigned char, signed char>>(of_warps, row, gaps); break;
    default: result = reduce<Whole<unsigned char, unsigned char>>(of_warps, row, gaps);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = result;
}
