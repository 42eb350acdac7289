// How far pieces of results are from references in float64, one by each block of threads: see
// differences.py beside this file. Each element is read once.

typedef unsigned long long word_t;
typedef long long whole_t;

struct Row {  // of the table
  word_t mine, theirs;
  whole_t count;
  whole_t kind;              // of the result: that of op_tools/statistics.py
  double relative, smallest;  // a step of the type that counts, as a part of a power of two and at least
  double half;               // of a step: what is larger is not rounded correctly
};

struct Found {  // the order is that of `Figures` in op_tools/device_figures.py
  double maxima[5], sums[5];
};

__device__ float float_of(unsigned int bits) { return __int_as_float((int)bits); }

struct Float32 {
  typedef unsigned int Bits;
  static __device__ double value(Bits bits) { return (double)float_of(bits); }
  static __device__ double rounded(double value) { return (double)(float)value; }
};

struct BFloat16 {
  typedef unsigned short Bits;
  static __device__ double value(Bits bits) { return (double)float_of((unsigned int)bits << 16); }
  static __device__ double rounded(double given) {  // through float32, as torch does
    const float value = (float)given;
    if (value != value) return given;
    const unsigned int bits = (unsigned int)__float_as_int(value);
    return (double)float_of((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  }
};

struct Float16 {
  typedef unsigned short Bits;
  static __device__ double value(Bits bits) {
    if ((bits & 0x7c00) == 0x7c00) return (double)float_of((unsigned int)(bits & 0x8000) << 16 | 0x7f800000u | (unsigned int)(bits & 0x3ff) << 13);
    // as if its exponent were float32's, which is 112 off; exact, of subnormals too
    const float scaled = float_of((unsigned int)(bits & 0x7fff) << 13) * 5.192296858534828e33f;
    return (double)(bits & 0x8000 ? -scaled : scaled);
  }
  static __device__ double rounded(double given) {  // through float32, as torch does
    const double value = (double)(float)given;
    if (value != value) return given;
    const double size = value < 0 ? -value : value;
    if (size >= 65520.0) return value < 0 ? -double_infinity() : double_infinity();
    // the step of its power of two; adding so large a number rounds to whole steps, half to even
    const word_t power = (word_t)__double_as_longlong(size) & 0x7ff0000000000000ull;
    double step = __longlong_as_double((whole_t)power) * 0.0009765625;
    step = step < 5.9604644775390625e-08 ? 5.9604644775390625e-08 : step;
    const double large = step * 6755399441055744.0, made = (size + large) - large;
    return value < 0 ? -made : made;
  }
  static __device__ double double_infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
};

__device__ double size_of(double value) { return __longlong_as_double(__double_as_longlong(value) & 0x7fffffffffffffffll); }
__device__ double greater(double a, double b) { return !(b <= a) && a == a ? b : a; }  // a nan stays

template <typename Kind>
__device__ void add(Found& found, const Row& row, whole_t place) {
  const double r = ((const double*)row.theirs)[place], y = Kind::value(((const typename Kind::Bits*)row.mine)[place]);
  const double error = y == r ? 0.0 : y - r;  // infinite alike is no error
  double step = __longlong_as_double(__double_as_longlong(r) & 0x7ff0000000000000ll) * row.relative;
  step = step < row.smallest ? row.smallest : step;
  const double scaled = error / step, rounded = Kind::rounded(r);
  const double gap = y == rounded ? 0.0 : size_of(y - rounded);
  const double maxima[5] = {size_of(scaled), size_of(error), gap, gap / (size_of(y) + 1e-6), gap - 1.1920928955078125e-07 * size_of(rounded)};
  const double sums[5] = {scaled * scaled, error * error, r * r, y * y, size_of(scaled) > row.half ? 1.0 : 0.0};
  for (int i = 0; i < 5; i++) found.maxima[i] = greater(found.maxima[i], maxima[i]), found.sums[i] += sums[i];
}

__device__ void merge(Found& to, const Found& from) {
  for (int i = 0; i < 5; i++) to.maxima[i] = greater(to.maxima[i], from.maxima[i]), to.sums[i] += from.sums[i];
}

template <typename Kind>
__device__ void measure(Found* shared, const Row& row) {
  Found own = {};
#pragma unroll 2
  for (whole_t place = threadIdx.x; place < row.count; place += blockDim.x) add<Kind>(own, row, place);
  shared[threadIdx.x] = own;
  for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) merge(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
}

extern "C" __global__ void measure_pieces(const Row* table, Found* results) {
  __shared__ Found shared[256];
  const Row row = table[blockIdx.x];
  switch (row.kind) {
    case 0: measure<Float32>(shared, row); break;
    case 2: measure<BFloat16>(shared, row); break;
    default: measure<Float16>(shared, row);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = shared[0];
}
