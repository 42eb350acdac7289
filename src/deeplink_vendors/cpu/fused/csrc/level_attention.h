/* SPDX-License-Identifier: Apache-2.0 */
// Attention, compiled for each level; a part of level.h.

// scores[g][j] = q[g] . k[j] for G queries and KEYS keys at a time
template <class T, int G, int KEYS>
inline void scores(const float* q, const T* k, int64_t token, int64_t size, float (*out)[kTile], int64_t j) {
  F sums[G][KEYS] = {};
  int64_t d = 0;
  for (; d + W <= size; d += W) {
    F key[KEYS];
    for (int n = 0; n < KEYS; n++) key[n] = load(k + n * token + d);
    for (int g = 0; g < G; g++) {
      const F query = load(q + g * size + d);
      for (int n = 0; n < KEYS; n++) sums[g][n] += query * key[n];
    }
  }
  for (int g = 0; g < G; g++)
    for (int n = 0; n < KEYS; n++) {
      float total = sum(sums[g][n]);
      for (int64_t rest = d; rest < size; rest++) total += q[g * size + rest] * one(k + n * token + rest);
      out[g][j + n] = total;
    }
}

// out[g] += weights[g][j] * v[j] for VECTORS vectors of the values' size
template <class T, int G, int VECTORS>
inline void values(float (*weights)[kTile], const T* v, int64_t token, int64_t count, float* out, int64_t stride) {
  F sums[G][VECTORS];
  for (int g = 0; g < G; g++)
    for (int n = 0; n < VECTORS; n++) sums[g][n] = load(out + g * stride + n * W);
  for (int64_t j = 0; j < count; j++) {
    F value[VECTORS];
    for (int n = 0; n < VECTORS; n++) value[n] = load(v + j * token + n * W);
    for (int g = 0; g < G; g++)
      for (int n = 0; n < VECTORS; n++) sums[g][n] += weights[g][j] * value[n];
  }
  for (int g = 0; g < G; g++)
    for (int n = 0; n < VECTORS; n++) store(out + g * stride + n * W, sums[g][n]);
}

// Replaces scores by their exponentials, and rescales the previous sums to match.
inline void softmax(float* s, int64_t count, float& largest, float& total, float* out, int64_t value_size) {
  float top = largest;
  for (int64_t j = 0; j < count; j++) top = s[j] > top ? s[j] : top;
  for (int64_t j = count; j % W; j++) s[j] = -kInfinity;
  const float shrink = top == largest ? 1.f : exponential(largest - top);
  largest = top;
  F sums = {};
  for (int64_t j = 0; j < count; j += W) {
    const F e = exponential(load(s + j) - top);
    store(s + j, e);
    sums += e;
  }
  total = total * shrink + sum(sums);
  if (shrink == 1.f) return;
  int64_t d = 0;
  for (; d + W <= value_size; d += W) store(out + d, load(out + d) * shrink);
  for (; d < value_size; d++) out[d] *= shrink;
}

inline void shape_scores(const Attend& call, float* s, int64_t from, int64_t count, int64_t head) {
  if (call.softcap != 0.f) {
    for (int64_t j = 0; j < count; j++) s[j] = call.softcap * __builtin_tanhf(s[j] / call.softcap);
  }
  if (call.slopes) {
    for (int64_t j = 0; j < count; j++) {
      const int64_t far = call.last - (from + j);
      s[j] -= call.slopes[head] * float(far < 0 ? -far : far);
    }
  }
}

template <class T, int G>
void attend_heads(const Attend& call, int64_t first) {
  const float* q = call.queries + first * call.size;
  float* out = call.out + first * call.value_size;
  float *largest = call.largest + first, *total = call.total + first;
  alignas(64) float s[G][kTile];
  constexpr int KEYS = WIDTH == 16 ? 16 / (G > 2 ? G : 2) : (G < 4 ? 2 : 1);
  constexpr int VECTORS = WIDTH == 16 ? (G < 8 ? 4 : 2) : (G < 8 ? 2 : 1);
  for (int g = 0; g < G; g++) largest[g] = -kInfinity, total[g] = 0;
  __builtin_memset(out, 0, sizeof(float) * G * call.value_size);
  for (int64_t at = call.from; at < call.to;) {
    const int64_t number = at / call.block, inside = at - number * call.block;
    int64_t count = call.block - inside;
    count = count < call.to - at ? count : call.to - at;
    count = count < kTile ? count : kTile;
    int64_t block = 0;
    if (call.table) block = call.wide_table ? ((const int64_t*)call.table)[number] : ((const int32_t*)call.table)[number];
    const T* k = (const T*)call.k + block * call.k_block + inside * call.k_token;
    const T* v = (const T*)call.v + block * call.v_block + inside * call.v_token;
    int64_t j = 0;
    for (; j + KEYS <= count; j += KEYS) scores<T, G, KEYS>(q, k + j * call.k_token, call.k_token, call.size, s, j);
    for (; j < count; j++) scores<T, G, 1>(q, k + j * call.k_token, call.k_token, call.size, s, j);
    for (int g = 0; g < G; g++) {
      shape_scores(call, s[g], at, count, first + g);
      softmax(s[g], count, largest[g], total[g], out + g * call.value_size, call.value_size);
    }
    int64_t d = 0;
    for (; d + VECTORS * W <= call.value_size; d += VECTORS * W)
      values<T, G, VECTORS>(s, v + d, call.v_token, count, out + d, call.value_size);
    for (; d + W <= call.value_size; d += W) values<T, G, 1>(s, v + d, call.v_token, count, out + d, call.value_size);
    for (; d < call.value_size; d++)
      for (int g = 0; g < G; g++)
        for (int64_t n = 0; n < count; n++) out[g * call.value_size + d] += s[g][n] * one(v + n * call.v_token + d);
    at += count;
  }
}

template <class T>
void attend(const Attend& call) {
  for (int64_t g = 0; g < call.group; g++) {
    const T* q = (const T*)call.q + g * call.q_head;
    for (int64_t d = 0; d < call.size; d++) call.queries[g * call.size + d] = one(q + d) * call.scale;
  }
  int64_t head = 0;
  for (; head + 8 <= call.group; head += 8) attend_heads<T, 8>(call, head);
  for (; head + 4 <= call.group; head += 4) attend_heads<T, 4>(call, head);
  for (; head + 2 <= call.group; head += 2) attend_heads<T, 2>(call, head);
  for (; head < call.group; head++) attend_heads<T, 1>(call, head);
}

// Accumulates into the first part's buffer, then into the result.
template <class T>
void merge(float* out, const float* largest, const float* total, int64_t parts, int64_t heads, int64_t value_size,
           const float* sink, void* result_) {
  T* result = (T*)result_;
  float top = sink ? *sink : -kInfinity, whole = 0;
  for (int64_t p = 0; p < parts; p++) top = largest[p * heads] > top ? largest[p * heads] : top;
  if (sink) whole = exponential(*sink - top);
  for (int64_t p = 0; p < parts; p++)
    if (total[p * heads] != 0) whole += total[p * heads] * exponential(largest[p * heads] - top);
  for (int64_t p = 0; p < parts; p++) {
    const float share = total[p * heads] == 0 ? 0.f : exponential(largest[p * heads] - top) / whole;
    const float* part = out + p * heads * value_size;
    int64_t d = 0;
    for (; d + W <= value_size; d += W) store(out + d, p ? load(out + d) + load(part + d) * share : load(out + d) * share);
    for (; d < value_size; d++) out[d] = p ? out[d] + part[d] * share : out[d] * share;
  }
  for (int64_t d = 0; d < value_size; d++) put(result + d, out[d]);
}
