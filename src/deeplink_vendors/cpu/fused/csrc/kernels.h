/* SPDX-License-Identifier: Apache-2.0 */
// The kernels as functions over memory: a table of them for each level of vector instructions.
#pragma once

#include <cstdint>

namespace dlinfer {

struct bf16 {
  uint16_t bits;
};

// The heads of one query that share a head of keys and values, over a part of the keys.
struct Attend {
  const void* q;  // [group, size], `q_head` elements from head to head
  const void *k, *v;  // of this head
  int64_t q_head, k_block, k_token, v_block, v_token;  // strides, in elements
  const void* table;  // block of each part; null: everything is one block
  bool wide_table;  // of int64, not int32
  int64_t block;  // keys in a block
  int64_t from, to;  // the visible keys
  int64_t last;  // the key at the query's own position, for distances
  int64_t group, size, value_size;
  float scale, softcap;
  const float* slopes;  // [group], or null
  float* queries;  // buffer for [group, size]
  float *out, *largest, *total;  // [group, value_size] before division by total, [group], [group]
};

// The tokens of a sequence in one head of the gated delta rule.
struct Delta {
  const void *q, *k, *v;  // of this head, `…_token` elements from token to token
  int64_t q_token, k_token, v_token;
  const float *decay, *beta;  // `gate_token` from token to token
  int64_t gate_token;
  float* state;  // [size, value_size]
  void* out;
  int64_t out_token, tokens, size, value_size;
  float scale;
  bool normalise;
  float* room;  // for 2 * (size + value_size) numbers
};

constexpr int64_t kTaps = 8;  // maximum width of a convolution

// The tokens of a sequence in some channels of a causal convolution.
struct Conv {
  const void* x;  // [tokens, channels]
  int64_t x_token;
  const void *weight, *bias;  // [channels, width]; [channels] or null
  int64_t width;
  void* state;  // the last inputs [channels, length], or null: zeros, which are not kept
  int64_t state_channel, length;
  bool fresh, silu;  // fresh: the state counts as zeros
  void* out;
  int64_t out_token, tokens, from, to;
};

// The storage of quantised weights.
enum class Packing { whole, nibbles, float8 };

constexpr int64_t kPanel = 256, kMost = 32;  // maximum columns, and maximum rows of x, of one call of `columns`
// The columns of a call for so many rows: with few rows, as many as the first-level cache holds sums for;
// fewer for bfloat16, which is converted to float for each row.
constexpr int64_t panel(int64_t together, int64_t bytes) { return together > bytes ? kPanel : 4096 / together; }

// Indexed by type: 0 is float, 1 is bfloat16; 2 is bfloat16 with float cos and sin.
struct Kernels {
  const char* name;
  // y = norm of x; with a residual, sum = x + residual and y its norm
  void (*rms_norm[2])(const void* x, const void* residual, void* sum, const void* w, void* y, int64_t n, float eps);
  void (*silu_and_mul[2])(const void* gate, const void* up, void* out, int64_t n);
  void (*rotary[3])(const void* x, const void* cos, const void* sin, void* y, int64_t heads, int64_t head_stride,
                    int64_t size, int64_t turned, bool interleaved);
  void (*attend[2])(const Attend& call);
  // the result of one head from the parts of its keys, which are `heads` heads apart
  // `sink`: the score of a key whose value is zero, or null
  void (*merge[2])(float* out, const float* largest, const float* total, int64_t parts, int64_t heads,
                   int64_t value_size, const float* sink, void* result);
  // products of few rows of x [rows, inner] with the rows of w, each of which is read once: y [rows, outer]
  void (*linear[2])(const float* x, const void* w, int64_t w_row, const void* bias, void* y, int64_t rows, int64_t from,
                    int64_t to, int64_t inner, int64_t outer);
  // products with w as [inner, outer], rows `w_row` apart: the columns from..to, at most `panel`, each part of
  // which is read once; x is [groups, inner, together], the rows of a group adjacent
  void (*columns[2])(const float* x, const void* w, int64_t w_row, const void* bias, void* y, int64_t rows, int64_t together,
                     int64_t from, int64_t to, int64_t inner, int64_t outer);
  // rows that `columns` processes together, and maximum for which it is faster than torch's product
  int64_t group, most;
  void (*gelu_and_mul[2])(const void* gate, const void* up, void* out, int64_t n, bool tanh);
  float (*quantise[2])(const void* x, int8_t* out, int64_t n);  // returns the scale
  // products of rows of a with rows of b, exact: out [rows, outer]
  void (*int8_products)(const int8_t* a, const int8_t* b, int64_t b_row, int32_t* out, int64_t rows, int64_t from, int64_t to,
                        int64_t inner, int64_t outer);
  // a row of weights in 8 or 4 bits: (w + offset) * scale, by groups; 2 is bfloat16 with float scales
  void (*restore[3])(const void* weight, Packing stored, const void* scale, const void* offset, int64_t group, void* out, int64_t n);
  void (*add_scaled[2])(const void* x, float share, float* out, int64_t n);  // out += share * x
  void (*delta[2])(const Delta& call);
  void (*conv[2])(const Conv& call);
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& kernels();  // of this processor

}  // namespace dlinfer
