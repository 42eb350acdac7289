/* SPDX-License-Identifier: Apache-2.0 */
// Products with weights as [in, out] in memory, compiled for each level; a part of level.h.

// Reading whole rows of many columns gets twice the memory bandwidth of reading a few columns at a time. The
// sums of all columns stay in the first-level cache, which is large enough for few rows of x only; with more
// rows arithmetic dominates.

constexpr int kLines = 8;  // rows of w for each read and write of a sum

// Adds to `held` [M, room] the products of K numbers of M rows of x with whole lines of K rows of w; x is
// [numbers, M].
template <class T, int M, int K>
void line_block(const float* x, const T* w, int64_t w_row, const T* next, int64_t width, float* held, int64_t room, bool first) {
  constexpr int C = 64 / sizeof(T) / W;  // vectors of a line
  for (int64_t n = 0; n < width; n += C * W) {
    for (int k = 0; k < K; k++) __builtin_prefetch(next + k * w_row + n, 0, 2);
    for (int c = 0; c < C; c++) {
      F weight[K];
      for (int k = 0; k < K; k++) weight[k] = load(w + k * w_row + n + c * W);
      for (int m = 0; m < M; m++) {
        float* place = held + m * room + n + c * W;
        F total = weight[0] * x[m];
        for (int k = 1; k < K; k++) total += weight[k] * x[k * M + m];
        store(place, first ? total : load(place) + total);
      }
    }
  }
}

// The columns from `from` on, in whole lines; returns the first column that was not processed.
template <class T, int M>
int64_t column_lines(const float* x, const T* w, int64_t w_row, const T* bias, T* y, int64_t rows, int64_t from, int64_t to,
                     int64_t inner, int64_t outer) {
  constexpr int64_t room = panel(M, sizeof(T)), line = 64 / sizeof(T);
  const int64_t width = (to - from) / line * line, whole = inner / kLines * kLines;
  if (!width) return from;
  alignas(64) float held[room * M];
  for (int64_t g = 0; g < rows; g += M) {
    const float* mine = x + g * inner;
    const T* here = w + from;
    for (int64_t k = 0; k < whole; k += kLines, here += kLines * w_row) {
      // then the next panel's columns follow, else usually the next weight
      const bool ends = k + kLines >= whole && to < outer;
      line_block<T, M, kLines>(mine + k * M, here, w_row, ends ? w + to : here + kLines * w_row, width, held, room, k == 0);
    }
    for (int64_t k = whole; k < inner; k++, here += w_row)
      line_block<T, M, 1>(mine + k * M, here, w_row, here + w_row, width, held, room, k == 0);
    for (int64_t row = g; row < rows && row < g + M; row++)
      for (int64_t n = 0; n < width; n += W) {
        const F total = load(held + (row - g) * room + n);
        store(y + row * outer + from + n, bias ? total + load(bias + from + n) : total);
      }
  }
  return from + width;
}

constexpr int64_t kDeep = 32;  // numbers of x at a time: limits the number of open pages and the length of sums
constexpr int64_t kFar = 2;  // blocks of columns that are prefetched

// Adds to `held` [M, C * W] the products of some numbers of M rows of x with C vectors of columns; x is [numbers, M].
template <class T, int M, int C>
__attribute__((noinline)) void column_block(const float* x, const T* w, int64_t w_row, const T* next, int64_t numbers, float* held,
                                            bool first) {
  F sums[M][C] = {};
  for (int64_t k = 0; k < numbers; k++, w += w_row, next += w_row) {
    F weight[C];
    for (int c = 0; c < C; c++) {
      if (c * W * sizeof(T) % 64 == 0) __builtin_prefetch(next + c * W, 0, 2);
      weight[c] = load(w + c * W);
    }
    for (int m = 0; m < M; m++)
      for (int c = 0; c < C; c++) sums[m][c] += weight[c] * x[k * M + m];
  }
  for (int m = 0; m < M; m++)
    for (int c = 0; c < C; c++) {
      float* place = held + (m * C + c) * W;
      store(place, first ? sums[m][c] : load(place) + sums[m][c]);
    }
}

// One column for all rows: the columns that fill no vector.
template <class T, int M>
void last_column(const float* x, const T* w, int64_t w_row, T* y, float added, int64_t rows, int64_t inner, int64_t outer) {
  for (int64_t row = 0; row < rows; row++) {
    const float* from = x + row / M * M * inner + row % M;
    float total = 0;
    for (int64_t k = 0; k < inner; k++) total += one(w + k * w_row) * from[k * M];
    put(y + row * outer, total + added);
  }
}

// The columns from `from` on, in blocks of C vectors; returns the first column that was not processed.
template <class T, int M, int C>
int64_t column_blocks(const float* x, const T* w, int64_t w_row, const T* bias, T* y, int64_t rows, int64_t from, int64_t to,
                      int64_t inner, int64_t outer) {
  constexpr int64_t B = C * W;
  const int64_t blocks = (to - from) / B, groups = (rows + M - 1) / M;
  alignas(64) float held[kPanel * kMost];
  for (int64_t k = 0; k < inner; k += kDeep) {
    const int64_t numbers = inner - k < kDeep ? inner - k : kDeep;
    for (int64_t block = 0; block < blocks; block++) {
      const T* here = w + k * w_row + from + block * B;
      const T* next = block + kFar < blocks ? here + kFar * B : k + kDeep < inner ? here + kDeep * w_row + (kFar - blocks) * B : here;
      for (int64_t g = 0; g < groups; g++)
        column_block<T, M, C>(x + (g * inner + k) * M, here, w_row, next, numbers, held + (block * groups + g) * M * B, k == 0);
    }
  }
  for (int64_t row = 0; row < rows; row++)
    for (int64_t block = 0; block < blocks; block++)
      for (int c = 0; c < C; c++) {
        const int64_t n = from + block * B + c * W;
        const F total = load(held + ((block * groups + row / M) * M + row % M) * B + c * W);
        store(y + row * outer + n, bias ? total + load(bias + n) : total);
      }
  return from + blocks * B;
}

template <class T, int M>
void columns_of(const float* x, const T* w, int64_t w_row, const T* bias, T* y, int64_t rows, int64_t from, int64_t to,
                int64_t inner, int64_t outer) {
  if constexpr (panel(M, sizeof(T)) > kPanel) {
    from = column_lines<T, M>(x, w, w_row, bias, y, rows, from, to, inner, outer);
  } else {
    constexpr int C = WIDTH == 16 ? (M < 8 ? 4 : M < 16 ? 2 : 1) : 2;
    from = column_blocks<T, M, C>(x, w, w_row, bias, y, rows, from, to, inner, outer);
  }
  from = column_blocks<T, M, 1>(x, w, w_row, bias, y, rows, from, to, inner, outer);
  for (; from < to; from++)
    last_column<T, M>(x, w + from, w_row, y + from, bias ? one(bias + from) : 0.f, rows, inner, outer);
}

template <class T>
void columns(const float* x, const void* w, int64_t w_row, const void* bias, void* y, int64_t rows, int64_t together, int64_t from,
             int64_t to, int64_t inner, int64_t outer) {
  const auto run = [&](auto count) {
    columns_of<T, decltype(count)::value>(x, (const T*)w, w_row, (const T*)bias, (T*)y, rows, from, to, inner, outer);
  };
  if (together == 1) return run(Count<1>{});
  if (together == 2) return run(Count<2>{});
#if WIDTH == 16
  if (together == 16) return run(Count<16>{});
  if (together == 12) return run(Count<12>{});
  if (together == 8) return run(Count<8>{});
#endif
  run(Count<4>{});
}
