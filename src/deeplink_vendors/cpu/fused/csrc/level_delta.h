/* SPDX-License-Identifier: Apache-2.0 */
// The gated delta rule and its convolution, compiled for each level; a part of level.h.

// One token for N vectors of columns of a state [size, value_size]: the error of what the state holds for the
// key is written to it, and the result is read from it. The columns of a part stay in the first-level cache.
template <int N>
inline void delta_columns(float* state, int64_t row, const float* q, const float* k, const float* v, float decay,
                          float beta, float* out, int64_t size) {
  F held[N] = {}, result[N] = {}, error[N];
  for (int64_t i = 0; i < size; i++)
    for (int n = 0; n < N; n++) held[n] += load(state + i * row + n * W) * k[i];
  for (int n = 0; n < N; n++) error[n] = (load(v + n * W) - held[n] * decay) * beta;
  for (int64_t i = 0; i < size; i++)
    for (int n = 0; n < N; n++) {
      const F now = load(state + i * row + n * W) * decay + error[n] * k[i];
      store(state + i * row + n * W, now);
      result[n] += now * q[i];
    }
  for (int n = 0; n < N; n++) store(out + n * W, result[n]);
}

inline void delta_column(float* state, int64_t row, const float* q, const float* k, float v, float decay, float beta,
                         float* out, int64_t size) {
  float held = 0, result = 0;
  for (int64_t i = 0; i < size; i++) held += state[i * row] * k[i];
  const float error = (v - held * decay) * beta;
  for (int64_t i = 0; i < size; i++) {
    state[i * row] = state[i * row] * decay + error * k[i];
    result += state[i * row] * q[i];
  }
  *out = result;
}

template <class T>
inline void delta_vector(const T* from, float* to, int64_t size, float scale, bool normalise) {
  float squares = 0;
  for (int64_t i = 0; i < size; i++) {
    to[i] = one(from + i);
    squares += to[i] * to[i];
  }
  if (normalise) scale *= 1.f / __builtin_sqrtf(squares + 1e-6f);
  for (int64_t i = 0; i < size; i++) to[i] *= scale;
}

template <class T>
void delta(const Delta& call) {
  float *q = call.room, *k = q + call.size, *v = k + call.size, *out = v + call.value_size;
  for (int64_t t = 0; t < call.tokens; t++) {
    delta_vector((const T*)call.q + t * call.q_token, q, call.size, call.scale, call.normalise);
    delta_vector((const T*)call.k + t * call.k_token, k, call.size, 1.f, call.normalise);
    for (int64_t j = 0; j < call.value_size; j++) v[j] = one((const T*)call.v + t * call.v_token + j);
    const float decay = exponential(call.decay[t * call.gate_token]), beta = call.beta[t * call.gate_token];
    int64_t j = 0;
    for (; j + 4 * W <= call.value_size; j += 4 * W)
      delta_columns<4>(call.state + j, call.value_size, q, k, v + j, decay, beta, out + j, call.size);
    for (; j + W <= call.value_size; j += W)
      delta_columns<1>(call.state + j, call.value_size, q, k, v + j, decay, beta, out + j, call.size);
    for (; j < call.value_size; j++) delta_column(call.state + j, call.value_size, q, k, v[j], decay, beta, out + j, call.size);
    for (int64_t d = 0; d < call.value_size; d++) put((T*)call.out + t * call.out_token + d, out[d]);
  }
}

// W channels, or fewer, of a causal convolution over the tokens of a sequence.
template <class T>
inline void conv_channels(const Conv& call, int64_t first, int64_t count) {
  const auto gather = [&](const T* from, int64_t stride) {
    float values[W] = {};
    for (int64_t c = 0; c < count; c++) values[c] = one(from + c * stride);
    return load(values);
  };
  F weight[kTaps], window[kTaps] = {};
  const int64_t taps = call.width;
  for (int64_t j = 0; j < taps; j++) weight[j] = gather((const T*)call.weight + first * taps + j, taps);
  const F bias = call.bias ? gather((const T*)call.bias + first, 1) : F{};
  T* state = call.state ? (T*)call.state + first * call.state_channel : nullptr;
  if (state && !call.fresh)
    for (int64_t j = 1; j < taps; j++) window[j] = gather(state + call.length - taps + j, call.state_channel);
  for (int64_t t = 0; t < call.tokens; t++) {
    const T* x = (const T*)call.x + t * call.x_token + first;
    for (int64_t j = 1; j < taps; j++) window[j - 1] = window[j];
    window[taps - 1] = count == W ? load(x) : gather(x, 1);
    F sum = bias;
    for (int64_t j = 0; j < taps; j++) sum += window[j] * weight[j];
    if (call.silu) sum = silu(sum);
    T* out = (T*)call.out + t * call.out_token + first;
    if (count == W) {
      store(out, sum);
    } else {
      for (int64_t c = 0; c < count; c++) put(out + c, sum[c]);
    }
  }
  if (!state) return;
  for (int64_t c = 0; c < count; c++) {
    T* own = state + c * call.state_channel;
    for (int64_t j = 0; j < call.length; j++) {
      const int64_t at = call.tokens - call.length + j;  // the token of this place; negative: it was in the state
      if (at >= 0) {
        own[j] = ((const T*)call.x)[at * call.x_token + first + c];
      } else if (call.fresh) {
        put(own + j, 0.f);
      } else {
        own[j] = own[j + call.tokens];
      }
    }
  }
}

template <class T>
void conv(const Conv& call) {
  for (int64_t c = call.from; c < call.to; c += W) conv_channels<T>(call, c, call.to - c < W ? call.to - c : W);
}
