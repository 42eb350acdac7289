/* SPDX-License-Identifier: Apache-2.0 */
/* The operators. Written by `python -m diopi.codegen`; do not edit.
 *
 * Every symbol is weak: a library defines those that it has, and what is missing is null.
 * Results come first and are allocated by the caller, except behind a `diopiTensorHandle_t*`.
 * A parameter marked nullable may be null; no other may.
 */
#ifndef DIOPI_H
#define DIOPI_H

#include "diopi_runtime.h"

#define DIOPI_OPS 548
#define DIOPI_FUNCTIONS 423

#define DIOPI_OP __attribute__((weak, visibility("default")))

/* Of the published runtime, what needs no runtime: the version, sparse tensors, of which there are
 * none in this ABI, and marks for a profiler that does not listen. */
static inline const char* diopiGetVersion(void) { return "diopi ABI 1"; }
static inline diopiError_t diopiIsTensorSparse(diopiConstTensorHandle_t th, bool* is_sparse) {
    (void)th;
    *is_sparse = false;
    return diopiSuccess;
}
static inline diopiError_t diopiGetTensorCrowIndices(diopiConstTensorHandle_t th,
    diopiConstTensorHandle_t* part) {
    (void)th;
    *part = NULL;
    return diopiNoImplement;
}
static inline diopiError_t diopiGetTensorColIndices(diopiConstTensorHandle_t th,
    diopiConstTensorHandle_t* part) {
    (void)th;
    *part = NULL;
    return diopiNoImplement;
}
static inline diopiError_t diopiGetTensorValues(diopiConstTensorHandle_t th,
    diopiConstTensorHandle_t* part) {
    (void)th;
    *part = NULL;
    return diopiNoImplement;
}
static inline diopiError_t diopiRecordStart(const char* record_name, void** record) {
    (void)record_name;
    *record = NULL;
    return diopiSuccess;
}
static inline diopiError_t diopiRecordEnd(void** record) {
    *record = NULL;
    return diopiSuccess;
}

#ifdef __cplusplus
extern "C" {
#endif

/* activation */
DIOPI_OP diopiError_t diopi_relu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_relu6(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_threshold(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* threshold, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_threshold_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    const diopiScalar_t* threshold);
DIOPI_OP diopiError_t diopi_hardtanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* min_val, const diopiScalar_t* max_val);
DIOPI_OP diopiError_t diopi_hardtanh_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    const diopiScalar_t* min_val, const diopiScalar_t* max_val);
DIOPI_OP diopiError_t diopi_hardshrink(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* lambd);
DIOPI_OP diopiError_t diopi_hardshrink_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t input, const diopiScalar_t* lambd);
DIOPI_OP diopiError_t diopi_softshrink(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* lambd);
DIOPI_OP diopiError_t diopi_softshrink_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    const diopiScalar_t* lambd);
DIOPI_OP diopiError_t diopi_hardswish(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_hardswish_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_hardsigmoid(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_hardsigmoid_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_leaky_relu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* negative_slope);
DIOPI_OP diopiError_t diopi_leaky_relu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    const diopiScalar_t* negative_slope, bool self_is_result);
DIOPI_OP diopiError_t diopi_gelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* approximate);
DIOPI_OP diopiError_t diopi_gelu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* approximate);
DIOPI_OP diopiError_t diopi_silu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_silu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_elu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* alpha, const diopiScalar_t* scale,
    const diopiScalar_t* input_scale);
DIOPI_OP diopiError_t diopi_elu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, const diopiScalar_t* alpha, const diopiScalar_t* scale,
    const diopiScalar_t* input_scale, bool is_result, diopiConstTensorHandle_t self_or_result);
DIOPI_OP diopiError_t diopi_softplus(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* beta, const diopiScalar_t* threshold);
DIOPI_OP diopiError_t diopi_softplus_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const diopiScalar_t* beta,
    const diopiScalar_t* threshold);
DIOPI_OP diopiError_t diopi_mish(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_mish_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_glu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_glu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_celu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_selu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log_sigmoid(diopiContextHandle_t ctx, diopiTensorHandle_t output,
    diopiTensorHandle_t buffer, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log_sigmoid_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t buffer);
DIOPI_OP diopiError_t diopi_prelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight);
DIOPI_OP diopiError_t diopi_prelu_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight);
DIOPI_OP diopiError_t diopi_softmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, bool half_to_float);
DIOPI_OP diopiError_t diopi_softmax_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output, int64_t dim,
    diopiDtype_t input_dtype);
DIOPI_OP diopiError_t diopi_log_softmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, bool half_to_float);
DIOPI_OP diopiError_t diopi_log_softmax_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output, int64_t dim,
    diopiDtype_t input_dtype);
DIOPI_OP diopiError_t diopi_safe_softmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, const diopiDtype_t* dtype /*nullable*/);

/* attention */
DIOPI_OP diopiError_t diopi_flash_attention(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
    diopiGeneratorHandle_t gen /*nullable*/, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    double p_dropout, double softmax_scale, bool is_causal, int64_t window_size_left,
    int64_t window_size_right);
DIOPI_OP diopiError_t diopi_flash_attention_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t softmax_lse, double p_dropout, double softmax_scale, bool is_causal,
    int64_t window_size_left, int64_t window_size_right);
DIOPI_OP diopiError_t diopi_flash_attention_var_len(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
    diopiGeneratorHandle_t gen /*nullable*/, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t cum_seq_q,
    diopiConstTensorHandle_t cum_seq_kv, diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    int64_t max_seqlen_q, int64_t max_seqlen_kv, double p_dropout, double softmax_scale,
    bool is_causal, int64_t window_size_left, int64_t window_size_right);
DIOPI_OP diopiError_t diopi_flash_attention_var_len_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t softmax_lse, int64_t max_seqlen_q, int64_t max_seqlen_kv,
    double p_dropout, double softmax_scale, bool is_causal, int64_t window_size_left,
    int64_t window_size_right);
DIOPI_OP diopiError_t diopi_scaled_masked_softmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, double scale,
    bool fixed_triu_mask);
DIOPI_OP diopiError_t diopi_scaled_masked_softmax_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t output, diopiConstTensorHandle_t mask, double scale,
    bool fixed_triu_mask);
DIOPI_OP diopiError_t diopi_rotary_embedding(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x, diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin,
    bool conj, bool interleaved);
DIOPI_OP diopiError_t diopi_rotary_embedding_v2(diopiContextHandle_t ctx, diopiTensorHandle_t query,
    diopiTensorHandle_t key, diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin,
    int64_t dim);

/* attention_dialects */
DIOPI_OP diopiError_t diopi_customized_flash_attention(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t dropout_mask,
    diopiTensorHandle_t softmax_max, diopiTensorHandle_t softmax_sum,
    diopiTensorHandle_t softmax_out, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_mask /*nullable*/, double p_dropout, double softmax_scale,
    bool is_causal, int64_t window_size_left, int64_t window_size_right, int64_t head_num,
    const char* input_layout);
DIOPI_OP diopiError_t diopi_customized_flash_attention_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_out, diopiConstTensorHandle_t attention_mask /*nullable*/,
    diopiConstTensorHandle_t dropout_mask /*nullable*/,
    diopiConstTensorHandle_t softmax_max /*nullable*/,
    diopiConstTensorHandle_t softmax_sum /*nullable*/,
    diopiConstTensorHandle_t softmax_out /*nullable*/, double p_dropout, double softmax_scale,
    bool is_causal, int64_t window_size_left, int64_t window_size_right, int64_t head_num,
    const char* input_layout);
DIOPI_OP diopiError_t diopi_customized_flash_attention_var_len(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t dropout_mask,
    diopiTensorHandle_t softmax_max, diopiTensorHandle_t softmax_sum,
    diopiTensorHandle_t softmax_out, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiSize_t cum_seq_q, diopiSize_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_mask /*nullable*/, int64_t max_seqlen_q,
    int64_t max_seqlen_kv, double p_dropout, double softmax_scale, bool is_causal,
    int64_t window_size_left, int64_t window_size_right);
DIOPI_OP diopiError_t diopi_customized_flash_attention_var_len_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiSize_t cum_seq_q, diopiSize_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t attention_mask /*nullable*/,
    diopiConstTensorHandle_t dropout_mask /*nullable*/,
    diopiConstTensorHandle_t softmax_max /*nullable*/,
    diopiConstTensorHandle_t softmax_sum /*nullable*/,
    diopiConstTensorHandle_t softmax_out /*nullable*/, int64_t max_seqlen_q, int64_t max_seqlen_kv,
    double p_dropout, double softmax_scale, bool is_causal, int64_t window_size_left,
    int64_t window_size_right);
DIOPI_OP diopiError_t diopi_multi_head_attention(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t softmax_lse, diopiTensorHandle_t debug_attn_mask,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    double dropout_p, bool is_causal, bool return_debug_mask, double scale,
    diopiGeneratorHandle_t gen /*nullable*/);
DIOPI_OP diopiError_t diopi_multi_head_attention_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t out, diopiConstTensorHandle_t softmax_lse,
    double dropout_p, bool is_causal, diopiGeneratorHandle_t gen /*nullable*/, double scale);
DIOPI_OP diopiError_t diopi_multi_head_attention_var_len(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiTensorHandle_t softmax_lse, diopiTensorHandle_t debug_attn_mask,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, bool return_debug_mask, double scale,
    diopiGeneratorHandle_t gen /*nullable*/);
DIOPI_OP diopiError_t diopi_multi_head_attention_var_len_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t out, diopiConstTensorHandle_t softmax_lse,
    diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, diopiGeneratorHandle_t gen /*nullable*/,
    double scale);

/* convolution */
DIOPI_OP diopiError_t diopi_convolution(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, bool transposed, diopiSize_t output_padding, int64_t groups);
DIOPI_OP diopiError_t diopi_convolution_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    const diopiSize_t* bias_sizes /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, bool transposed, diopiSize_t output_padding, int64_t groups,
    const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_convolution_backward_overrideable(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool transposed, diopiSize_t output_padding, int64_t groups, const bool* output_mask,
    int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_im2col(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t dilation,
    diopiSize_t padding, diopiSize_t stride);
DIOPI_OP diopiError_t diopi_col2im(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, diopiSize_t kernel_size,
    diopiSize_t dilation, diopiSize_t padding, diopiSize_t stride);

/* creation */
DIOPI_OP diopiError_t diopi_arange(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* start, const diopiScalar_t* end, const diopiScalar_t* step,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_arange_end(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* end, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_linspace(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* start, const diopiScalar_t* end, int64_t steps,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_logspace(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* start, const diopiScalar_t* end, int64_t steps, double base,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_zeros(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_ones(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_full(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size, const diopiScalar_t* fill_value, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_eye(diopiContextHandle_t ctx, diopiTensorHandle_t out, int64_t n,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_zeros_like(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiDtype_t* dtype /*nullable*/,
    const diopiMemoryFormat_t* memory_format /*nullable*/);
DIOPI_OP diopiError_t diopi_ones_like(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiDtype_t* dtype /*nullable*/,
    const diopiMemoryFormat_t* memory_format /*nullable*/);
DIOPI_OP diopiError_t diopi_full_like(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* fill_value,
    const diopiDtype_t* dtype /*nullable*/, const diopiMemoryFormat_t* memory_format /*nullable*/);
DIOPI_OP diopiError_t diopi_new_zeros(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_new_ones(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_new_full(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, const diopiScalar_t* fill_value,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_scalar_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* s, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_item(diopiContextHandle_t ctx, diopiScalar_t* out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_fill(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopi_zero(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_copy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src);
DIOPI_OP diopiError_t diopi_clone(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiMemoryFormat_t* memory_format /*nullable*/);
DIOPI_OP diopiError_t diopi_to_copy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiDtype_t* dtype /*nullable*/,
    const diopiMemoryFormat_t* memory_format /*nullable*/);
DIOPI_OP diopiError_t diopi_tril_indices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    int64_t row, int64_t col, int64_t offset, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_triu_indices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    int64_t row, int64_t col, int64_t offset, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_native_memory_format_cast(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t format);
DIOPI_OP diopiError_t diopi_get_native_memory_format(diopiContextHandle_t ctx, int64_t* out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_tensor_destruction_hook(diopiContextHandle_t ctx, int64_t ptr);

/* elementwise */
DIOPI_OP diopiError_t diopi_ceil(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_floor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_trunc(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_sign(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_abs(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_neg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_positive(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_round(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_round_decimals(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t decimals);
DIOPI_OP diopiError_t diopi_frac(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_sgn(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_signbit(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_copysign(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_eq(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_ne(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_lt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_le(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_gt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_ge(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_isnan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_isinf(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_isposinf(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_isneginf(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_isfinite(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_equal(diopiContextHandle_t ctx, bool* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logical_and(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logical_or(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logical_xor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logical_not(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_bitwise_and(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_bitwise_or(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_bitwise_xor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_bitwise_left_shift(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_bitwise_right_shift(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_bitwise_not(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_maximum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_minimum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_fmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_fmin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_clamp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t min /*nullable*/,
    diopiConstTensorHandle_t max /*nullable*/);
DIOPI_OP diopiError_t diopi_clamp_min(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t min);
DIOPI_OP diopiError_t diopi_clamp_max(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t max);
DIOPI_OP diopiError_t diopi_where(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t condition, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_nan_to_num(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const double* nan /*nullable*/,
    const double* posinf /*nullable*/, const double* neginf /*nullable*/);
DIOPI_OP diopiError_t diopi_heaviside(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t values);
DIOPI_OP diopiError_t diopi_nextafter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_gcd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_lcm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_add(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_sub(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_rsub(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_mul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_div(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
    const char* rounding_mode /*nullable*/);
DIOPI_OP diopiError_t diopi_floor_divide(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_remainder(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_fmod(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_addcmul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
    diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_addcdiv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
    diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_lerp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t end, diopiConstTensorHandle_t weight);
DIOPI_OP diopiError_t diopi_sqrt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_rsqrt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_reciprocal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_square(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_hypot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_deg2rad(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_rad2deg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_sin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_cos(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_tan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_asin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_acos(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_atan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_sinh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_cosh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_tanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_asinh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_acosh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_atanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_exp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_exp2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_expm1(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log10(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_log1p(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_sigmoid(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_erf(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_erfc(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_erfinv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_lgamma(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_digamma(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_i0(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_logit(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const double* eps /*nullable*/);
DIOPI_OP diopiError_t diopi_sinc(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_tanh_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output);
DIOPI_OP diopiError_t diopi_sigmoid_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output);
DIOPI_OP diopiError_t diopi_logit_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    const double* eps /*nullable*/);
DIOPI_OP diopiError_t diopi_pow(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t exponent);
DIOPI_OP diopiError_t diopi_atan2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logaddexp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_logaddexp2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_xlogy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_polar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t abs, diopiConstTensorHandle_t angle);
DIOPI_OP diopiError_t diopi_complex(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t real, diopiConstTensorHandle_t imag);
DIOPI_OP diopiError_t diopi_conj_physical(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_angle(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);

/* fft */
DIOPI_OP diopiError_t diopi_fft_c2c(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, int64_t normalization, bool forward);
DIOPI_OP diopiError_t diopi_fft_r2c(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, int64_t normalization, bool onesided);
DIOPI_OP diopiError_t diopi_fft_c2r(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, int64_t normalization, int64_t last_dim_size);

/* foreach */
DIOPI_OP diopiError_t diopi_foreach_add_scalar(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalar);
DIOPI_OP diopiError_t diopi_foreach_add_list(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiConstTensorHandle_t* other, int64_t other_len, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_foreach_add_scalars(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalars, int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_add_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_foreach_sub_scalar(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalar);
DIOPI_OP diopiError_t diopi_foreach_sub_list(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiConstTensorHandle_t* other, int64_t other_len, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_foreach_sub_scalars(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalars, int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_mul_scalar(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalar);
DIOPI_OP diopiError_t diopi_foreach_mul_list(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiConstTensorHandle_t* other, int64_t other_len);
DIOPI_OP diopiError_t diopi_foreach_mul_scalars(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalars, int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_mul_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_foreach_div_scalar(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalar);
DIOPI_OP diopiError_t diopi_foreach_div_list(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiConstTensorHandle_t* other, int64_t other_len);
DIOPI_OP diopiError_t diopi_foreach_div_scalars(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* scalars, int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_div_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_foreach_addcmul_scalar(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_foreach_addcmul_scalars(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, const diopiScalar_t* scalars,
    int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_addcmul_tensor(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, diopiConstTensorHandle_t scalars);
DIOPI_OP diopiError_t diopi_foreach_addcdiv_scalar(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_foreach_addcdiv_scalars(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, const diopiScalar_t* scalars,
    int64_t scalars_len);
DIOPI_OP diopiError_t diopi_foreach_addcdiv_tensor(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, int64_t out_len, const diopiConstTensorHandle_t* input,
    int64_t input_len, const diopiConstTensorHandle_t* tensor1, int64_t tensor1_len,
    const diopiConstTensorHandle_t* tensor2, int64_t tensor2_len, diopiConstTensorHandle_t scalars);
DIOPI_OP diopiError_t diopi_foreach_neg(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_abs(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_sign(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_sqrt(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_reciprocal(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_exp(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len);
DIOPI_OP diopiError_t diopi_foreach_lerp_scalar(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiConstTensorHandle_t* tensors1, int64_t tensors1_len, const diopiScalar_t* weight);
DIOPI_OP diopiError_t diopi_foreach_norm(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* input, int64_t input_len,
    const diopiScalar_t* ord, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_amp_foreach_non_finite_check_and_unscale(diopiContextHandle_t ctx,
    const diopiTensorHandle_t* input, int64_t input_len, diopiTensorHandle_t found_inf,
    diopiConstTensorHandle_t inv_scale);
DIOPI_OP diopiError_t diopi_amp_update_scale(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t input, diopiTensorHandle_t growth_tracker,
    diopiConstTensorHandle_t found_inf, double scale_growth_factor, double scale_backoff_factor,
    int64_t growth_interval);

/* indexing */
DIOPI_OP diopiError_t diopi_index(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiConstTensorHandle_t* indices, int64_t indices_len);
DIOPI_OP diopiError_t diopi_index_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t zeros_like_input,
    const diopiConstTensorHandle_t* indices, int64_t indices_len);
DIOPI_OP diopiError_t diopi_index_put(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiConstTensorHandle_t* indices, int64_t indices_len,
    diopiConstTensorHandle_t values, bool accumulate, bool unsafe);
DIOPI_OP diopiError_t diopi_index_select(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopi_index_select_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiSize_t self_sizes, int64_t dim,
    diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopi_index_add(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t source, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_index_copy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t source);
DIOPI_OP diopiError_t diopi_index_fill(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopi_index_reduce(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t source, const char* reduce, bool include_self);
DIOPI_OP diopiError_t diopi_gather(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index, bool sparse_grad);
DIOPI_OP diopiError_t diopi_gather_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiConstTensorHandle_t input, int64_t dim,
    diopiConstTensorHandle_t index, bool sparse_grad);
DIOPI_OP diopiError_t diopi_scatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t src, const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopi_scatter_value(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    const diopiScalar_t* value, const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopi_scatter_add(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t src);
DIOPI_OP diopiError_t diopi_scatter_reduce(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t src, const char* reduce, bool include_self);
DIOPI_OP diopiError_t diopi_take(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopi_take_along_dim(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t indices,
    const int64_t* dim /*nullable*/);
DIOPI_OP diopiError_t diopi_put(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t index, diopiConstTensorHandle_t source,
    bool accumulate);
DIOPI_OP diopiError_t diopi_masked_fill(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopi_masked_select(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask);
DIOPI_OP diopiError_t diopi_masked_select_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t mask);
DIOPI_OP diopiError_t diopi_masked_scatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, diopiConstTensorHandle_t source);
DIOPI_OP diopiError_t diopi_nonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_embedding(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t indices, int64_t padding_idx,
    bool scale_grad_by_freq, bool sparse);
DIOPI_OP diopiError_t diopi_embedding_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t indices, int64_t num_weights,
    int64_t padding_idx, bool scale_grad_by_freq);
DIOPI_OP diopiError_t diopi_embedding_bag(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiTensorHandle_t out3,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t indices,
    diopiConstTensorHandle_t offsets, bool scale_grad_by_freq, int64_t mode, bool sparse,
    diopiConstTensorHandle_t per_sample_weights /*nullable*/, bool include_last_offset,
    int64_t padding_idx);
DIOPI_OP diopiError_t diopi_embedding_renorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t indices, double max_norm,
    double norm_type);
DIOPI_OP diopiError_t diopi_one_hot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t num_classes);

/* inference */
DIOPI_OP diopiError_t diopi_apply_penalty(diopiContextHandle_t ctx, diopiTensorHandle_t logits,
    diopiConstTensorHandle_t presence_penalty, diopiConstTensorHandle_t frequency_penalty,
    diopiConstTensorHandle_t p_token_ids, diopiConstTensorHandle_t p_token_counts,
    diopiConstTensorHandle_t p_cumsum_seq_len, int64_t p_max_len_in_batch);
DIOPI_OP diopiError_t diopi_apply_penalty_v2(diopiContextHandle_t ctx, diopiTensorHandle_t logits,
    diopiConstTensorHandle_t presence_penalty, diopiConstTensorHandle_t frequency_penalty,
    diopiConstTensorHandle_t repetition_penalty, diopiConstTensorHandle_t p_token_ids,
    diopiConstTensorHandle_t p_token_counts);
DIOPI_OP diopiError_t diopi_dest_index_copy_kv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t k, diopiConstTensorHandle_t dest_loc);
DIOPI_OP diopiError_t diopi_token_attention_inference(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t b_loc, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int64_t max_input_len);
DIOPI_OP diopiError_t diopi_token_softmax_reduce_v_inference(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t logics, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t b_loc, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int64_t max_input_len, int64_t other_kv_index);
DIOPI_OP diopiError_t diopi_context_attention_inference(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int64_t max_input_len);
DIOPI_OP diopiError_t diopi_paged_attention(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t atten_mask /*nullable*/, diopiSize_t actual_seq_lengths,
    int64_t num_heads, int64_t num_kv_heads, int64_t dim, diopiConstTensorHandle_t block_table,
    int64_t block_size);
DIOPI_OP diopiError_t diopi_prompt_flash_attention(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t query, diopiConstTensorHandle_t key,
    diopiConstTensorHandle_t value, diopiConstTensorHandle_t atten_mask /*nullable*/,
    diopiSize_t actual_seq_lengths, int64_t max_input_len, int64_t num_heads, int64_t num_kv_heads,
    int64_t dim);
DIOPI_OP diopiError_t diopi_matmul_all_reduce(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x1, diopiConstTensorHandle_t x2,
    diopiConstTensorHandle_t bias /*nullable*/, const char* group, const char* reduce_op,
    int64_t comm_turn, int64_t stream_mode);

/* linalg */
DIOPI_OP diopiError_t diopi_cholesky(diopiContextHandle_t ctx, diopiTensorHandle_t L,
    diopiTensorHandle_t info, diopiConstTensorHandle_t input, bool upper, bool check_errors);
DIOPI_OP diopiError_t diopi_cholesky_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t L, bool upper);
DIOPI_OP diopiError_t diopi_triangular_solve(diopiContextHandle_t ctx, diopiTensorHandle_t solution,
    diopiTensorHandle_t cloned_coefficient, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t A, bool upper, bool transpose, bool unitriangular);
DIOPI_OP diopiError_t diopi_triangular_solve_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_b, diopiTensorHandle_t grad_mat, diopiConstTensorHandle_t grad_x,
    diopiConstTensorHandle_t grad_cloned_mat /*nullable*/, diopiConstTensorHandle_t x,
    diopiConstTensorHandle_t b, diopiConstTensorHandle_t mat, bool upper, bool transpose,
    bool unitriangular);
DIOPI_OP diopiError_t diopi_linalg_qr(diopiContextHandle_t ctx, diopiTensorHandle_t Q,
    diopiTensorHandle_t R, diopiConstTensorHandle_t A, const char* mode);
DIOPI_OP diopiError_t diopi_linalg_solve_triangular(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t B, bool upper,
    bool left, bool unitriangular);
DIOPI_OP diopiError_t diopi_linalg_inv_ex(diopiContextHandle_t ctx, diopiTensorHandle_t inverse,
    diopiTensorHandle_t info, diopiConstTensorHandle_t A, bool check_errors);
DIOPI_OP diopiError_t diopi_linalg_lu_factor_ex(diopiContextHandle_t ctx, diopiTensorHandle_t LU,
    diopiTensorHandle_t pivots, diopiTensorHandle_t info, diopiConstTensorHandle_t A, bool pivot,
    bool check_errors);
DIOPI_OP diopiError_t diopi_linalg_solve_ex(diopiContextHandle_t ctx, diopiTensorHandle_t result,
    diopiTensorHandle_t LU, diopiTensorHandle_t pivots, diopiTensorHandle_t info,
    diopiConstTensorHandle_t A, diopiConstTensorHandle_t B, bool left, bool check_errors);
DIOPI_OP diopiError_t diopi_linalg_eigh(diopiContextHandle_t ctx, diopiTensorHandle_t eigenvalues,
    diopiTensorHandle_t eigenvectors, diopiConstTensorHandle_t A, const char* UPLO, bool compute_v);
DIOPI_OP diopiError_t diopi_linalg_slogdet(diopiContextHandle_t ctx, diopiTensorHandle_t sign,
    diopiTensorHandle_t logabsdet, diopiTensorHandle_t LU, diopiTensorHandle_t pivots,
    diopiConstTensorHandle_t A);
DIOPI_OP diopiError_t diopi_linalg_det(diopiContextHandle_t ctx, diopiTensorHandle_t result,
    diopiTensorHandle_t LU, diopiTensorHandle_t pivots, diopiConstTensorHandle_t A);
DIOPI_OP diopiError_t diopi_linalg_svd(diopiContextHandle_t ctx, diopiTensorHandle_t U,
    diopiTensorHandle_t S, diopiTensorHandle_t Vh, diopiConstTensorHandle_t A, bool full_matrices,
    bool compute_uv, const char* driver /*nullable*/);
DIOPI_OP diopiError_t diopi_matrix_exp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);

/* loss */
DIOPI_OP diopiError_t diopi_mse_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_mse_loss_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_smooth_l1_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction,
    double beta);
DIOPI_OP diopiError_t diopi_smooth_l1_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction, double beta);
DIOPI_OP diopiError_t diopi_huber_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction,
    double delta);
DIOPI_OP diopiError_t diopi_huber_loss_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction, double delta);
DIOPI_OP diopiError_t diopi_soft_margin_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_soft_margin_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_binary_cross_entropy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, int64_t reduction);
DIOPI_OP diopiError_t diopi_binary_cross_entropy_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    int64_t reduction);
DIOPI_OP diopiError_t diopi_multi_margin_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, const diopiScalar_t* p,
    const diopiScalar_t* margin, diopiConstTensorHandle_t weight /*nullable*/, int64_t reduction);
DIOPI_OP diopiError_t diopi_multi_margin_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, const diopiScalar_t* p, const diopiScalar_t* margin,
    diopiConstTensorHandle_t weight /*nullable*/, int64_t reduction);
DIOPI_OP diopiError_t diopi_multilabel_margin_loss(diopiContextHandle_t ctx,
    diopiTensorHandle_t output, diopiTensorHandle_t is_target, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_multilabel_margin_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, int64_t reduction, diopiConstTensorHandle_t is_target);
DIOPI_OP diopiError_t diopi_l1_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction);
DIOPI_OP diopiError_t diopi_kl_div(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, int64_t reduction,
    bool log_target);
DIOPI_OP diopiError_t diopi_hinge_embedding_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, double margin,
    int64_t reduction);
DIOPI_OP diopiError_t diopi_margin_ranking_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input1, diopiConstTensorHandle_t input2,
    diopiConstTensorHandle_t target, double margin, int64_t reduction);
DIOPI_OP diopiError_t diopi_cosine_similarity(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x1, diopiConstTensorHandle_t x2, int64_t dim, double eps);
DIOPI_OP diopiError_t diopi_nll_loss(diopiContextHandle_t ctx, diopiTensorHandle_t output,
    diopiTensorHandle_t total_weight, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    int64_t reduction, int64_t ignore_index);
DIOPI_OP diopiError_t diopi_nll_loss_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    int64_t reduction, int64_t ignore_index, diopiConstTensorHandle_t total_weight);
DIOPI_OP diopiError_t diopi_cross_entropy_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, int64_t reduction, int64_t ignore_index,
    double label_smoothing);
DIOPI_OP diopiError_t diopi_cross_entropy_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    int64_t reduction, int64_t ignore_index, double label_smoothing);
DIOPI_OP diopiError_t diopi_binary_cross_entropy_with_logits(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t pos_weight /*nullable*/,
    int64_t reduction);
DIOPI_OP diopiError_t diopi_binary_cross_entropy_with_logits_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t pos_weight /*nullable*/, int64_t reduction);
DIOPI_OP diopiError_t diopi_sigmoid_focal_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t inputs, diopiConstTensorHandle_t targets, double alpha, double gamma,
    int64_t reduction);
DIOPI_OP diopiError_t diopi_sigmoid_focal_loss_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, double gamma, double alpha, int64_t reduction);
DIOPI_OP diopiError_t diopi_ctc_loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t neg_log_likelihood, diopiTensorHandle_t log_alpha,
    diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
    diopiConstTensorHandle_t input_lengths, diopiConstTensorHandle_t target_lengths, int64_t blank,
    int64_t reduction, bool zero_infinity);
DIOPI_OP diopiError_t diopi_ctc_loss_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t log_probs,
    diopiConstTensorHandle_t targets, diopiConstTensorHandle_t input_lengths,
    diopiConstTensorHandle_t target_lengths, diopiConstTensorHandle_t neg_log_likelihood,
    diopiConstTensorHandle_t log_alpha, int64_t blank, int64_t reduction, bool zero_infinity);
DIOPI_OP diopiError_t diopi_ctc_loss_lists(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
    diopiSize_t input_lengths, diopiSize_t target_lengths, int64_t blank, bool zero_infinity);
DIOPI_OP diopiError_t diopi_ctc_loss_lists_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad, diopiConstTensorHandle_t log_probs,
    diopiConstTensorHandle_t targets, diopiSize_t input_lengths, diopiSize_t target_lengths,
    diopiConstTensorHandle_t neg_log_likelihood, diopiConstTensorHandle_t log_alpha, int64_t blank,
    bool zero_infinity);
DIOPI_OP diopiError_t diopi_ctc_loss_forward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
    diopiConstTensorHandle_t input_lengths, diopiConstTensorHandle_t target_lengths, int64_t blank,
    bool zero_infinity);
DIOPI_OP diopiError_t diopi_ctc_loss_forward_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad, diopiConstTensorHandle_t log_probs,
    diopiConstTensorHandle_t targets, diopiConstTensorHandle_t input_lengths,
    diopiConstTensorHandle_t target_lengths, diopiConstTensorHandle_t neg_log_likelihood,
    diopiConstTensorHandle_t log_alpha, int64_t blank, bool zero_infinity);

/* matmul */
DIOPI_OP diopiError_t diopi_mm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2);
DIOPI_OP diopiError_t diopi_bmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2);
DIOPI_OP diopiError_t diopi_matmul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_matmul_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t grad, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t other, const bool* mask, int64_t mask_len);
DIOPI_OP diopiError_t diopi_linear(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/);
DIOPI_OP diopiError_t diopi_linear_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t weight, const bool* output_mask,
    int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_mv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t vec);
DIOPI_OP diopiError_t diopi_dot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor);
DIOPI_OP diopiError_t diopi_vdot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_outer(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t vec2);
DIOPI_OP diopiError_t diopi_addmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat1, diopiConstTensorHandle_t mat2,
    const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_addbmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t batch1,
    diopiConstTensorHandle_t batch2, const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_baddbmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t batch1,
    diopiConstTensorHandle_t batch2, const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_addmv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat, diopiConstTensorHandle_t vec,
    const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_addr(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t vec1, diopiConstTensorHandle_t vec2,
    const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopi_kron(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopi_cross(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, int64_t dim);
DIOPI_OP diopiError_t diopi_scaled_dot_product_attention(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t query, diopiConstTensorHandle_t key,
    diopiConstTensorHandle_t value, diopiConstTensorHandle_t attn_mask /*nullable*/,
    double dropout_p, bool is_causal, const double* scale /*nullable*/, bool enable_gqa);

/* normalization */
DIOPI_OP diopiError_t diopi_batch_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    diopiTensorHandle_t running_mean /*nullable*/, diopiTensorHandle_t running_var /*nullable*/,
    bool training, double momentum, double eps);
DIOPI_OP diopiError_t diopi_batch_norm_legit(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    diopiTensorHandle_t running_mean, diopiTensorHandle_t running_var, bool training,
    double momentum, double eps);
DIOPI_OP diopiError_t diopi_batch_norm_legit_no_stats(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiTensorHandle_t out2,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, bool training, double momentum, double eps);
DIOPI_OP diopiError_t diopi_batch_norm_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t running_mean /*nullable*/,
    diopiConstTensorHandle_t running_var /*nullable*/,
    diopiConstTensorHandle_t save_mean /*nullable*/,
    diopiConstTensorHandle_t save_invstd /*nullable*/, bool train, double eps,
    const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_batch_norm_stats(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, double eps);
DIOPI_OP diopiError_t diopi_batch_norm_elemt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, diopiConstTensorHandle_t mean,
    diopiConstTensorHandle_t invstd, double eps);
DIOPI_OP diopiError_t diopi_batch_norm_gather_stats_with_counts(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
    diopiTensorHandle_t running_mean /*nullable*/, diopiTensorHandle_t running_var /*nullable*/,
    double momentum, double eps, diopiConstTensorHandle_t counts);
DIOPI_OP diopiError_t diopi_batch_norm_backward_reduce(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiTensorHandle_t out2,
    diopiTensorHandle_t out3, diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
    diopiConstTensorHandle_t weight /*nullable*/, bool input_g, bool weight_g, bool bias_g);
DIOPI_OP diopiError_t diopi_batch_norm_backward_elemt(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t sum_dy,
    diopiConstTensorHandle_t sum_dy_xmu, diopiConstTensorHandle_t count);
DIOPI_OP diopiError_t diopi_group_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    int64_t N, int64_t C, int64_t HxW, int64_t group, double eps);
DIOPI_OP diopiError_t diopi_group_norm_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t rstd,
    diopiConstTensorHandle_t weight /*nullable*/, int64_t N, int64_t C, int64_t HxW, int64_t group,
    const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_layer_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t input,
    diopiSize_t normalized_shape, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, double eps);
DIOPI_OP diopiError_t diopi_layer_norm_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiTensorHandle_t out2, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiSize_t normalized_shape, diopiConstTensorHandle_t mean,
    diopiConstTensorHandle_t rstd, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_layer_norm_gb(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t mean, diopiTensorHandle_t rstd, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias /*nullable*/, double eps,
    int64_t begin_norm_axis);
DIOPI_OP diopiError_t diopi_layer_norm_gb_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias /*nullable*/,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t rstd, int64_t begin_norm_axis);
DIOPI_OP diopiError_t diopi_instance_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t scale,
    diopiConstTensorHandle_t bias /*nullable*/, int64_t axis, double eps);
DIOPI_OP diopiError_t diopi_instance_norm_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_scale, diopiTensorHandle_t grad_bias,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t scale, diopiConstTensorHandle_t bias /*nullable*/, int64_t axis,
    double eps);
DIOPI_OP diopiError_t diopi_normalize(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double p, int64_t axis, double eps);
DIOPI_OP diopiError_t diopi_normalize_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, double p, int64_t axis,
    double eps);
DIOPI_OP diopiError_t diopi_rms_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t inv_rms, diopiConstTensorHandle_t input, diopiSize_t normalized_shape,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    double eps);
DIOPI_OP diopiError_t diopi_rms_norm_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias /*nullable*/,
    diopiConstTensorHandle_t inv_rms, diopiSize_t normalized_shape, double eps);
DIOPI_OP diopiError_t diopi_fused_rms_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, diopiSize_t normalized_shape,
    diopiConstTensorHandle_t weight /*nullable*/, const double* eps /*nullable*/);
DIOPI_OP diopiError_t diopi_fused_rms_norm_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiSize_t normalized_shape, diopiConstTensorHandle_t rstd,
    diopiConstTensorHandle_t weight /*nullable*/, const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_weight_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t v, diopiConstTensorHandle_t g, int64_t dim);
DIOPI_OP diopiError_t diopi_weight_norm_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t grad_w, diopiConstTensorHandle_t saved_v,
    diopiConstTensorHandle_t saved_g, diopiConstTensorHandle_t saved_norms, int64_t dim);

/* optimizer */
DIOPI_OP diopiError_t diopi_sgd(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiTensorHandle_t grad, diopiTensorHandle_t buf, double lr, double momentum, double dampening,
    double weight_decay, bool nesterov);
DIOPI_OP diopiError_t diopi_adam(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg, diopiTensorHandle_t exp_avg_sq,
    diopiTensorHandle_t max_exp_avg_sq /*nullable*/, double lr, double beta1, double beta2,
    double eps, double weight_decay, int64_t step, bool amsgrad);
DIOPI_OP diopiError_t diopi_adamw(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg, diopiTensorHandle_t exp_avg_sq,
    diopiTensorHandle_t max_exp_avg_sq /*nullable*/, double lr, double beta1, double beta2,
    double eps, double weight_decay, int64_t step, bool amsgrad);
DIOPI_OP diopiError_t diopi_adadelta(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t square_avg, diopiTensorHandle_t acc_delta,
    double lr, double rho, double eps, double weight_decay);
DIOPI_OP diopiError_t diopi_rmsprop(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t square_avg,
    diopiTensorHandle_t grad_avg /*nullable*/, diopiTensorHandle_t momentum_buf /*nullable*/,
    double lr, double alpha, double eps, double weight_decay, double momentum, bool centered);
DIOPI_OP diopiError_t diopi_clip_grad_norm(diopiContextHandle_t ctx, double* out,
    const diopiTensorHandle_t* grads, int64_t grads_len, double max_norm, double norm_type,
    bool error_if_nonfinite);
DIOPI_OP diopiError_t diopi_fused_adam(diopiContextHandle_t ctx, const diopiTensorHandle_t* input,
    int64_t input_len, const diopiTensorHandle_t* grads, int64_t grads_len,
    const diopiTensorHandle_t* exp_avgs, int64_t exp_avgs_len,
    const diopiTensorHandle_t* exp_avg_sqs, int64_t exp_avg_sqs_len,
    const diopiTensorHandle_t* max_exp_avg_sqs, int64_t max_exp_avg_sqs_len,
    const diopiConstTensorHandle_t* state_steps, int64_t state_steps_len, double lr, double beta1,
    double beta2, double weight_decay, double eps, bool amsgrad, bool maximize,
    diopiConstTensorHandle_t grad_scale /*nullable*/,
    diopiConstTensorHandle_t found_inf /*nullable*/);
DIOPI_OP diopiError_t diopi_fused_adamw(diopiContextHandle_t ctx, const diopiTensorHandle_t* input,
    int64_t input_len, const diopiTensorHandle_t* grads, int64_t grads_len,
    const diopiTensorHandle_t* exp_avgs, int64_t exp_avgs_len,
    const diopiTensorHandle_t* exp_avg_sqs, int64_t exp_avg_sqs_len,
    const diopiTensorHandle_t* max_exp_avg_sqs, int64_t max_exp_avg_sqs_len,
    const diopiConstTensorHandle_t* state_steps, int64_t state_steps_len, double lr, double beta1,
    double beta2, double weight_decay, double eps, bool amsgrad, bool maximize,
    diopiConstTensorHandle_t grad_scale /*nullable*/,
    diopiConstTensorHandle_t found_inf /*nullable*/);
DIOPI_OP diopiError_t diopi_fused_sgd(diopiContextHandle_t ctx, const diopiTensorHandle_t* input,
    int64_t input_len, const diopiTensorHandle_t* grads, int64_t grads_len,
    const diopiTensorHandle_t* momentum_buffer_list, int64_t momentum_buffer_list_len,
    double weight_decay, double momentum, double lr, double dampening, bool nesterov, bool maximize,
    bool is_first_step, diopiConstTensorHandle_t grad_scale /*nullable*/,
    diopiConstTensorHandle_t found_inf /*nullable*/);
DIOPI_OP diopiError_t diopi_fused_adagrad(diopiContextHandle_t ctx,
    const diopiTensorHandle_t* input, int64_t input_len, const diopiTensorHandle_t* grads,
    int64_t grads_len, const diopiTensorHandle_t* state_sums, int64_t state_sums_len,
    const diopiTensorHandle_t* state_steps, int64_t state_steps_len, double lr, double lr_decay,
    double weight_decay, double eps, bool maximize,
    diopiConstTensorHandle_t grad_scale /*nullable*/,
    diopiConstTensorHandle_t found_inf /*nullable*/);

/* pooling */
DIOPI_OP diopiError_t diopi_max_pool1d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_avg_pool1d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad);
DIOPI_OP diopiError_t diopi_adaptive_max_pool1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_max_pool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopi_max_pool1d_with_indices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t input,
    diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode);
DIOPI_OP diopiError_t diopi_avg_pool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad);
DIOPI_OP diopiError_t diopi_adaptive_max_pool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool1d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopi_max_pool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopi_max_pool2d_with_indices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t input,
    diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode);
DIOPI_OP diopiError_t diopi_avg_pool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopi_adaptive_max_pool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool2d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopi_max_pool2d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_avg_pool2d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopi_adaptive_max_pool2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_max_pool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopi_max_pool3d_with_indices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t input,
    diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode);
DIOPI_OP diopiError_t diopi_avg_pool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopi_adaptive_max_pool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopi_pool3d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopi_max_pool3d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_avg_pool3d_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopi_adaptive_max_pool3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopi_adaptive_avg_pool3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);

/* random */
DIOPI_OP diopiError_t diopi_dropout(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t mask, diopiConstTensorHandle_t input, double p,
    const bool* train /*nullable*/, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_dropout_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t mask, double scale);
DIOPI_OP diopiError_t diopi_uniform(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double low, double high,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_random(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t low, const int64_t* high /*nullable*/,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_normal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double mean, double std,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_normal_tensor_float(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t mean, double std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_normal_float_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    double mean, diopiConstTensorHandle_t std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_normal_tensor_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t std,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_bernoulli(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_bernoulli_p(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double p, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_randperm(diopiContextHandle_t ctx, diopiTensorHandle_t out, int64_t n,
    diopiGeneratorHandle_t generator /*nullable*/, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_rand(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size, diopiGeneratorHandle_t generator /*nullable*/,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_randn(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size, diopiGeneratorHandle_t generator /*nullable*/,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_multinomial(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t num_samples, bool replacement,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_exponential(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double lambd, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_geometric(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double p, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_cauchy(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double median, double sigma,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_log_normal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double mean, double std,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopi_poisson(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiGeneratorHandle_t generator /*nullable*/);

/* reduction */
DIOPI_OP diopiError_t diopi_sum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/, bool keepdim,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_mean(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/, bool keepdim,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_nansum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/, bool keepdim,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_prod(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim,
    const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_any(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_all(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_std(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/,
    const diopiScalar_t* correction /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_std_mean(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/,
    const diopiScalar_t* correction /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_var(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/,
    const diopiScalar_t* correction /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_var_mean(diopiContextHandle_t ctx, diopiTensorHandle_t out0,
    diopiTensorHandle_t out1, diopiConstTensorHandle_t input, const diopiSize_t* dim /*nullable*/,
    const diopiScalar_t* correction /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_max(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_max_all(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_amax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_argmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_cummax(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_min(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_min_all(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_amin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_argmin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopi_cummin(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_aminmax(diopiContextHandle_t ctx, diopiTensorHandle_t min,
    diopiTensorHandle_t max, diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/,
    bool keepdim);
DIOPI_OP diopiError_t diopi_logsumexp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_count_nonzero(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim);
DIOPI_OP diopiError_t diopi_cumsum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_cumsum_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, int64_t dim);
DIOPI_OP diopiError_t diopi_cumprod(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_logcumsumexp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_trace(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* p /*nullable*/, diopiSize_t dim,
    bool keepdim);
DIOPI_OP diopiError_t diopi_norm_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t norm, diopiSize_t dim, const diopiScalar_t* p);
DIOPI_OP diopiError_t diopi_linalg_vector_norm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* ord, const diopiSize_t* dim /*nullable*/,
    bool keepdim, const diopiDtype_t* dtype /*nullable*/);
DIOPI_OP diopiError_t diopi_renorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* p, int64_t dim,
    const diopiScalar_t* maxnorm);
DIOPI_OP diopiError_t diopi_dist(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* p);
DIOPI_OP diopiError_t diopi_cdist(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x1, diopiConstTensorHandle_t x2, double p,
    const int64_t* compute_mode /*nullable*/);
DIOPI_OP diopiError_t diopi_pdist(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, double p);
DIOPI_OP diopiError_t diopi_pdist_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiConstTensorHandle_t input, double p,
    diopiConstTensorHandle_t pdist);
DIOPI_OP diopiError_t diopi_cdist_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiConstTensorHandle_t x1, diopiConstTensorHandle_t x2,
    double p, diopiConstTensorHandle_t cdist);

/* shape */
DIOPI_OP diopiError_t diopi_cat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiConstTensorHandle_t* tensors, int64_t tensors_len, int64_t dim);
DIOPI_OP diopiError_t diopi_stack(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiConstTensorHandle_t* tensors, int64_t tensors_len, int64_t dim);
DIOPI_OP diopiError_t diopi_expand(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, bool implicit);
DIOPI_OP diopiError_t diopi_permute(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dims);
DIOPI_OP diopiError_t diopi_repeat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t repeats);
DIOPI_OP diopiError_t diopi_roll(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t shifts, diopiSize_t dims);
DIOPI_OP diopiError_t diopi_flip(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dims);
DIOPI_OP diopiError_t diopi_tril(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t diagonal);
DIOPI_OP diopiError_t diopi_triu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t diagonal);
DIOPI_OP diopiError_t diopi_diag(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t diagonal);
DIOPI_OP diopiError_t diopi_diag_embed(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t offset, int64_t dim1, int64_t dim2);
DIOPI_OP diopiError_t diopi_tile(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dims);
DIOPI_OP diopiError_t diopi_rot90(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t k, diopiSize_t dims);
DIOPI_OP diopiError_t diopi_transpose(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim0, int64_t dim1);
DIOPI_OP diopiError_t diopi_split_with_sizes(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, diopiConstTensorHandle_t input, diopiSize_t split_sizes, int64_t dim);
DIOPI_OP diopiError_t diopi_split(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, diopiConstTensorHandle_t input, int64_t split_size, int64_t dim);
DIOPI_OP diopiError_t diopi_chunk(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, diopiConstTensorHandle_t input, int64_t chunks, int64_t dim);
DIOPI_OP diopiError_t diopi_unbind(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopi_meshgrid(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    int64_t out_len, const diopiConstTensorHandle_t* tensors, int64_t tensors_len);
DIOPI_OP diopiError_t diopi_repeat_interleave(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t repeats, const int64_t* dim /*nullable*/,
    const int64_t* output_size /*nullable*/);
DIOPI_OP diopiError_t diopi_select(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopi_select_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopi_select_scatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopi_slice(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, const int64_t* start /*nullable*/,
    const int64_t* end /*nullable*/, int64_t step);
DIOPI_OP diopiError_t diopi_slice_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t dim, int64_t start,
    int64_t end, int64_t step);
DIOPI_OP diopiError_t diopi_slice_scatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src, int64_t dim,
    const int64_t* start /*nullable*/, const int64_t* end /*nullable*/, int64_t step);
DIOPI_OP diopiError_t diopi_diagonal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t offset, int64_t dim1, int64_t dim2);
DIOPI_OP diopiError_t diopi_diagonal_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t offset, int64_t dim1,
    int64_t dim2);
DIOPI_OP diopiError_t diopi_diagonal_scatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src, int64_t offset, int64_t dim1,
    int64_t dim2);
DIOPI_OP diopiError_t diopi_unfold(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dimension, int64_t size, int64_t step);
DIOPI_OP diopiError_t diopi_unfold_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad_in, diopiSize_t input_sizes, int64_t dim, int64_t size,
    int64_t step);
DIOPI_OP diopiError_t diopi_pad(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t pad, const char* mode,
    const double* value /*nullable*/);
DIOPI_OP diopiError_t diopi_constant_pad_nd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t pad, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopi_reflection_pad1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_reflection_pad1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_reflection_pad2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_reflection_pad2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_reflection_pad3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_reflection_pad3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t padding);
DIOPI_OP diopiError_t diopi_replication_pad3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiSize_t padding);
DIOPI_OP diopiError_t diopi_pixel_shuffle(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t upscale_factor);
DIOPI_OP diopiError_t diopi_pixel_unshuffle(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t downscale_factor);
DIOPI_OP diopiError_t diopi_real(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_imag(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_conj(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_view_as_real(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_view_as_complex(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);

/* sorting */
DIOPI_OP diopiError_t diopi_sort(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, const bool* stable /*nullable*/,
    int64_t dim, bool descending);
DIOPI_OP diopiError_t diopi_sort_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, int64_t dim, diopiConstTensorHandle_t indices, diopiSize_t sizes,
    bool keepdim);
DIOPI_OP diopiError_t diopi_argsort(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, bool stable, const int64_t* dim /*nullable*/, bool descending);
DIOPI_OP diopiError_t diopi_topk(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t k, int64_t dim,
    bool largest, bool sorted);
DIOPI_OP diopiError_t diopi_kthvalue(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t k, int64_t dim,
    bool keepdim);
DIOPI_OP diopiError_t diopi_median(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_median_all(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopi_nanmedian(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_mode(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool keepdim);
DIOPI_OP diopiError_t diopi_unique(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiTensorHandle_t* indices, diopiTensorHandle_t* counts, diopiConstTensorHandle_t input,
    const int64_t* dim /*nullable*/, bool sorted, bool return_counts);
DIOPI_OP diopiError_t diopi_unique2(diopiContextHandle_t ctx, diopiTensorHandle_t* out0,
    diopiTensorHandle_t* out1, diopiTensorHandle_t* out2, diopiConstTensorHandle_t input,
    bool sorted, bool return_inverse, bool return_counts);
DIOPI_OP diopiError_t diopi_unique_dim(diopiContextHandle_t ctx, diopiTensorHandle_t* out0,
    diopiTensorHandle_t* out1, diopiTensorHandle_t* out2, diopiConstTensorHandle_t input,
    int64_t dim, bool sorted, bool return_inverse, bool return_counts);
DIOPI_OP diopiError_t diopi_unique_consecutive(diopiContextHandle_t ctx, diopiTensorHandle_t* out0,
    diopiTensorHandle_t* out1, diopiTensorHandle_t* out2, diopiConstTensorHandle_t input,
    bool return_inverse, bool return_counts, const int64_t* dim /*nullable*/);
DIOPI_OP diopiError_t diopi_searchsorted(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t sorted_sequence, diopiConstTensorHandle_t input, bool out_int32,
    bool right, const char* side /*nullable*/, diopiConstTensorHandle_t sorter /*nullable*/);
DIOPI_OP diopiError_t diopi_bucketize(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t boundaries, bool out_int32,
    bool right);
DIOPI_OP diopiError_t diopi_bincount(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weights /*nullable*/,
    int64_t minlength);
DIOPI_OP diopiError_t diopi_histc(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t bins, const diopiScalar_t* min,
    const diopiScalar_t* max);
DIOPI_OP diopiError_t diopi_isin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t elements, diopiConstTensorHandle_t test_elements, bool assume_unique,
    bool invert);

/* vision */
DIOPI_OP diopiError_t diopi_nms(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t boxes, diopiConstTensorHandle_t confidence, double iou_threshold);
DIOPI_OP diopiError_t diopi_roi_align(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t rois, double spatial_scale,
    int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio, bool aligned);
DIOPI_OP diopiError_t diopi_roi_align_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad, diopiConstTensorHandle_t rois,
    double spatial_scale, int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
    int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio, bool aligned);
DIOPI_OP diopiError_t diopi_grid_sample(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, const char* mode);
DIOPI_OP diopiError_t diopi_upsample_nearest(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size);
DIOPI_OP diopiError_t diopi_upsample_nearest_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, diopiSize_t out_size,
    diopiSize_t in_size);
DIOPI_OP diopiError_t diopi_upsample_linear(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, bool align_corners, const char* mode);
DIOPI_OP diopiError_t diopi_upsample_linear_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, diopiSize_t out_size,
    diopiSize_t in_size, bool align_corners, const char* mode);
DIOPI_OP diopiError_t diopi_upsample_nearest1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, const double* scales /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_nearest1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, const double* scales /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_nearest2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, const double* scales_h /*nullable*/,
    const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_nearest2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, const double* scales_h /*nullable*/,
    const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_nearest3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, const double* scales_d /*nullable*/,
    const double* scales_h /*nullable*/, const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_nearest3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, const double* scales_d /*nullable*/,
    const double* scales_h /*nullable*/, const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_linear1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, bool align_corners,
    const double* scales /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_linear1d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, bool align_corners, const double* scales /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_bilinear2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, bool align_corners,
    const double* scales_h /*nullable*/, const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_bilinear2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, bool align_corners, const double* scales_h /*nullable*/,
    const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_bicubic2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, bool align_corners,
    const double* scales_h /*nullable*/, const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_bicubic2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, bool align_corners, const double* scales_h /*nullable*/,
    const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_trilinear3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, bool align_corners,
    const double* scales_d /*nullable*/, const double* scales_h /*nullable*/,
    const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_upsample_trilinear3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t grad_output, diopiSize_t output_size,
    diopiSize_t input_size, bool align_corners, const double* scales_d /*nullable*/,
    const double* scales_h /*nullable*/, const double* scales_w /*nullable*/);
DIOPI_OP diopiError_t diopi_grid_sampler_2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, int64_t interpolation_mode,
    int64_t padding_mode, bool align_corners);
DIOPI_OP diopiError_t diopi_grid_sampler_2d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, int64_t interpolation_mode,
    int64_t padding_mode, bool align_corners, const bool* output_mask, int64_t output_mask_len);
DIOPI_OP diopiError_t diopi_grid_sampler_3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, int64_t interpolation_mode,
    int64_t padding_mode, bool align_corners);
DIOPI_OP diopiError_t diopi_grid_sampler_3d_backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t out0, diopiTensorHandle_t out1, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, int64_t interpolation_mode,
    int64_t padding_mode, bool align_corners, const bool* output_mask, int64_t output_mask_len);

/* The published names. */
DIOPI_OP diopiError_t diopiConvolution2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, int64_t groups);
DIOPI_OP diopiError_t diopiConvolution2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiSize_t* bias_sizes /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, int64_t groups);
DIOPI_OP diopiError_t diopiBatchNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    diopiTensorHandle_t running_mean /*nullable*/, diopiTensorHandle_t running_var /*nullable*/,
    bool training, double momentum, double eps);
DIOPI_OP diopiError_t diopiBatchNormStats(diopiContextHandle_t ctx, diopiTensorHandle_t mean,
    diopiTensorHandle_t invstd, diopiConstTensorHandle_t input, double eps);
DIOPI_OP diopiError_t diopiBatchNormGatherStatsWithCounts(diopiContextHandle_t ctx,
    diopiTensorHandle_t mean, diopiTensorHandle_t invstd, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t mean_all, diopiConstTensorHandle_t invstd_all,
    diopiTensorHandle_t running_mean /*nullable*/, diopiTensorHandle_t running_var /*nullable*/,
    float momentum, float eps, diopiConstTensorHandle_t counts);
DIOPI_OP diopiError_t diopiBatchNormBackwardReduce(diopiContextHandle_t ctx,
    diopiTensorHandle_t sum_dy, diopiTensorHandle_t sum_dy_xmu, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
    diopiConstTensorHandle_t weight /*nullable*/, bool input_g, bool weight_g, bool bias_g);
DIOPI_OP diopiError_t diopiBatchNormBackwardElemt(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t sum_dy,
    diopiConstTensorHandle_t sum_dy_xmu, diopiConstTensorHandle_t count);
DIOPI_OP diopiError_t diopiBatchNormElemt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, diopiConstTensorHandle_t mean,
    diopiConstTensorHandle_t invstd, float eps);
DIOPI_OP diopiError_t diopiBatchNormBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t running_mean /*nullable*/,
    diopiConstTensorHandle_t running_var /*nullable*/,
    diopiConstTensorHandle_t save_mean /*nullable*/,
    diopiConstTensorHandle_t save_invstd /*nullable*/, bool training, double eps);
DIOPI_OP diopiError_t diopiRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiReluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiHardtanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* min_val, const diopiScalar_t* max_val);
DIOPI_OP diopiError_t diopiHardtanhInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* min_val, const diopiScalar_t* max_val);
DIOPI_OP diopiError_t diopiHardtanhBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, const diopiScalar_t* min_val, const diopiScalar_t* max_val);
DIOPI_OP diopiError_t diopiHardswish(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiHardswishInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiHardswishBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiThreshold(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* threshold, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiThresholdInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* threshold, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiThresholdBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, const diopiScalar_t* threshold);
DIOPI_OP diopiError_t diopiGelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* approximate);
DIOPI_OP diopiError_t diopiGeluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* approximate);
DIOPI_OP diopiError_t diopiLeakyRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* negative_slope);
DIOPI_OP diopiError_t diopiLeakyReluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* negative_slope);
DIOPI_OP diopiError_t diopiLeakyReluBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, const diopiScalar_t* negative_slope, bool input_is_result);
DIOPI_OP diopiError_t diopiMaxPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiMaxPool1dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiMaxPool1dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiAvgPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad);
DIOPI_OP diopiError_t diopiAvgPool1dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool1dWithIndices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiTensorHandle_t indices, diopiConstTensorHandle_t input,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool1dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool1dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiPool1dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopiAvgPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopiAvgPool2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopiMaxPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiMaxPool2dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiMaxPool2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiPool2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool2dWithIndices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiTensorHandle_t indices, diopiConstTensorHandle_t input,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiDropout(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t mask, diopiConstTensorHandle_t input, double p, bool train,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiDropoutInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiTensorHandle_t mask, double p, bool train, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiMSELoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiMSELossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiSigmoidFocalLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t inputs, diopiConstTensorHandle_t targets, float alpha, float gamma,
    diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiSigmoidFocalLossBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiTensorHandle_t grad_input, float gamma, float alpha,
    diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiCrossEntropyLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiReduction_t reduction, int64_t ignore_index,
    double label_smoothing);
DIOPI_OP diopiError_t diopiCrossEntropyLossBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiReduction_t reduction, int64_t ignore_index,
    double label_smoothing);
DIOPI_OP diopiError_t diopiNLLLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiReduction_t reduction, int64_t ignore_index);
DIOPI_OP diopiError_t diopiNLLLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    diopiReduction_t reduction, int64_t ignore_index);
DIOPI_OP diopiError_t diopiNLLLossV2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t totalWeight, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    diopiReduction_t reduction, int64_t ignore_index);
DIOPI_OP diopiError_t diopiNLLLossV2Backward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t totalWeight,
    diopiReduction_t reduction, int64_t ignore_index);
DIOPI_OP diopiError_t diopiBCEWithLogits(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t pos_weight /*nullable*/,
    diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiBCEWithLogitsBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t pos_weight /*nullable*/,
    diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiBCELoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
    diopiConstTensorHandle_t weight /*nullable*/, diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiBCELossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight /*nullable*/,
    diopiReduction_t reduction);
DIOPI_OP diopiError_t diopiSign(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAbsInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAbs(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiNegInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiFloorInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiFloor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiCeilInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiCeil(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSqrtInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiSqrt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiRsqrtInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiRsqrt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSinInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiSin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAsinInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAsin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiCosInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiCos(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAcosInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAcos(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiTanInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiTan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSinhInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiSinh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiCoshInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiCosh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiTanhInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiTanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiTanhBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output);
DIOPI_OP diopiError_t diopiAtan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAtanInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAsinhInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAsinh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAcoshInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAcosh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAtanhInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiAtanh(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSigmoidInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiSigmoid(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSigmoidBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output);
DIOPI_OP diopiError_t diopiSiluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiSilu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSiluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiExpInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiExpm1Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiExpm1(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLogInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog2Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog2(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog10Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog10(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog1pInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiLog1p(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiErfInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiErf(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiPowScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* input, diopiConstTensorHandle_t exponent);
DIOPI_OP diopiError_t diopiPow(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* exponent);
DIOPI_OP diopiError_t diopiPowInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* exponent);
DIOPI_OP diopiError_t diopiPowTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t exponent);
DIOPI_OP diopiError_t diopiPowInpTensor(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t exponent);
DIOPI_OP diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiAddInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiAddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiAddInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiForeachaddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    diopiConstTensorHandle_t* inputs, int64_t inputSize, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiForeachaddInpScalar(diopiContextHandle_t ctx,
    diopiTensorHandle_t* inputs, int64_t inputSize, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiSub(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiSubInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiSubScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiSubInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiMul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMulInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiMulInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiForeachmulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    diopiConstTensorHandle_t* inputs, int64_t inputSize, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiForeachmulInpScalar(diopiContextHandle_t ctx,
    diopiTensorHandle_t* inputs, int64_t inputSize, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiForeachmulTensor(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    diopiConstTensorHandle_t* inputs, int64_t inputSize, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiForeachmulInpTensor(diopiContextHandle_t ctx,
    diopiTensorHandle_t* inputs, int64_t inputSize, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiDiv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, diopiRoundMode_t rounding_mode);
DIOPI_OP diopiError_t diopiDivInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other, diopiRoundMode_t rounding_mode);
DIOPI_OP diopiError_t diopiDivScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other, diopiRoundMode_t rounding_mode);
DIOPI_OP diopiError_t diopiDivInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other, diopiRoundMode_t rounding_mode);
DIOPI_OP diopiError_t diopiBmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2);
DIOPI_OP diopiError_t diopiBaddbmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t batch1,
    diopiConstTensorHandle_t batch2, double beta, double alpha);
DIOPI_OP diopiError_t diopiBaddbmmInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t batch1, diopiConstTensorHandle_t batch2, double beta, double alpha);
DIOPI_OP diopiError_t diopiAddcmul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
    diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiAddcmulInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t tensor1, diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiMatmul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMatmulBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiTensorHandle_t grad_other, diopiConstTensorHandle_t grad_out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiAddcdiv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
    diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiAddcdivInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t tensor1, diopiConstTensorHandle_t tensor2, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiAddmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat1, diopiConstTensorHandle_t mat2,
    const diopiScalar_t* beta, const diopiScalar_t* alpha);
DIOPI_OP diopiError_t diopiCholesky(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t info, diopiConstTensorHandle_t mat, bool upper, bool checkerror);
DIOPI_OP diopiError_t diopiCholeskyBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_mat,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t L, bool upper);
DIOPI_OP diopiError_t diopiTriangularSolve(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t cloned_mat, diopiConstTensorHandle_t b, diopiConstTensorHandle_t mat,
    bool upper, bool transpose, bool unitriangular);
DIOPI_OP diopiError_t diopiTriangularSolveBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_b, diopiTensorHandle_t grad_mat, diopiConstTensorHandle_t grad_x,
    diopiConstTensorHandle_t grad_cloned_mat /*nullable*/, diopiConstTensorHandle_t x,
    diopiConstTensorHandle_t b, diopiConstTensorHandle_t mat, bool upper, bool transpose,
    bool unitriangular);
DIOPI_OP diopiError_t diopiClampInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* min /*nullable*/, const diopiScalar_t* max /*nullable*/);
DIOPI_OP diopiError_t diopiClampInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t min /*nullable*/, diopiConstTensorHandle_t max /*nullable*/);
DIOPI_OP diopiError_t diopiClampScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* min /*nullable*/,
    const diopiScalar_t* max /*nullable*/);
DIOPI_OP diopiError_t diopiClamp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t min /*nullable*/,
    diopiConstTensorHandle_t max /*nullable*/);
DIOPI_OP diopiError_t diopiClampMaxInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* max);
DIOPI_OP diopiError_t diopiClampMaxInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t max);
DIOPI_OP diopiError_t diopiClampMaxScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* max);
DIOPI_OP diopiError_t diopiClampMax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t max);
DIOPI_OP diopiError_t diopiClampMinInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* min);
DIOPI_OP diopiError_t diopiClampMinInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t min);
DIOPI_OP diopiError_t diopiClampMinScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* min);
DIOPI_OP diopiError_t diopiClampMin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t min);
DIOPI_OP diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiLogicalAnd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLogicalAndInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLogicalOr(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLogicalOrInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLogicalNot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLogicalNotInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiBitwiseAnd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiBitwiseAndInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiBitwiseAndScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiBitwiseAndInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiBitwiseOr(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiBitwiseOrInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiBitwiseOrScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiBitwiseOrInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiBitwiseNot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiBitwiseNotInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiEqScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiEqInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiEq(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiEqInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiEqual(diopiContextHandle_t ctx, bool* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiNeScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiNeInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiNe(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiNeInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiGeScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiGeInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiGe(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiGeInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiGtScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiGtInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiGt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiGtInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLeScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiLeInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiLe(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLeInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLtScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiLtInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiLt(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiLtInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMean(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim /*nullable*/);
DIOPI_OP diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim /*nullable*/);
DIOPI_OP diopiError_t diopiStd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dim, const diopiScalar_t* correction /*nullable*/);
DIOPI_OP diopiError_t diopiMin(diopiContextHandle_t ctx, diopiTensorHandle_t min,
    diopiTensorHandle_t min_indices, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopiMinAll(diopiContextHandle_t ctx, diopiTensorHandle_t min,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiMax(diopiContextHandle_t ctx, diopiTensorHandle_t max,
    diopiTensorHandle_t max_indices, diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopiMaxAll(diopiContextHandle_t ctx, diopiTensorHandle_t max,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAny(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/);
DIOPI_OP diopiError_t diopiAll(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/);
DIOPI_OP diopiError_t diopiSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopiSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output, int64_t dim);
DIOPI_OP diopiError_t diopiLogSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopiLogSoftmaxBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t output, int64_t dim);
DIOPI_OP diopiError_t diopiIndex(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t* indices, int64_t nums);
DIOPI_OP diopiError_t diopiIndexBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiTensorHandle_t zeros_like_input, diopiConstTensorHandle_t* indices, int64_t nums,
    diopiConstTensorHandle_t grad_output);
DIOPI_OP diopiError_t diopiIndexSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopiIndexSelectBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad, diopiSize_t input_sizes,
    int64_t dim, diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopiSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopiSelectBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopiSelectScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src, int64_t dim, int64_t index);
DIOPI_OP diopiError_t diopiSliceScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t src, int64_t dim, int64_t start,
    int64_t end, int64_t step);
DIOPI_OP diopiError_t diopiSlice(diopiContextHandle_t ctx, diopiTensorHandle_t null_out,
    diopiConstTensorHandle_t input, int64_t dim, int64_t start, int64_t end, int64_t step);
DIOPI_OP diopiError_t diopiSliceBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t dim, int64_t start,
    int64_t end, int64_t step);
DIOPI_OP diopiError_t diopiMaskedScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, diopiConstTensorHandle_t source);
DIOPI_OP diopiError_t diopiNms(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t boxes, diopiConstTensorHandle_t confidence, double iou_threshold);
DIOPI_OP diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLinear(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/);
DIOPI_OP diopiError_t diopiLinearBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias /*nullable*/,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight);
DIOPI_OP diopiError_t diopiRoiAlign(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t rois, double spatial_scale,
    int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio, bool aligned);
DIOPI_OP diopiError_t diopiRoiAlignBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiConstTensorHandle_t rois, double spatial_scale,
    int64_t pooled_height, int64_t pooled_width, int64_t batch_size, int64_t channels,
    int64_t height, int64_t width, int64_t sampling_ratio, bool aligned);
DIOPI_OP diopiError_t diopiSgd(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiTensorHandle_t grad, diopiTensorHandle_t buf, double lr, double momentum, double dampening,
    double weight_decay, bool nesterov);
DIOPI_OP diopiError_t diopiClipGradNorm(diopiContextHandle_t ctx, double* out,
    diopiTensorHandle_t* grads, int64_t num_grads, double max_norm, double norm_type,
    bool error_if_nonfinite);
DIOPI_OP diopiError_t diopiEmbeddingRenorm_(diopiContextHandle_t ctx, diopiTensorHandle_t inout,
    diopiConstTensorHandle_t indices, double max_norm, double norm_type);
DIOPI_OP diopiError_t diopiEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t indices, int64_t padding_idx,
    bool scale_grad_byfreq, bool sparse);
DIOPI_OP diopiError_t diopiEmbeddingBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t grad, diopiConstTensorHandle_t indices, int64_t num_weights,
    int64_t padding_idx, bool scale_grad_byfreq, bool sparse);
DIOPI_OP diopiError_t diopiTril(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t diagonal);
DIOPI_OP diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t* tensors, int64_t num_inputs, int64_t dim);
DIOPI_OP diopiError_t diopiSplitWithSizes(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    int64_t num_outs, diopiConstTensorHandle_t input, diopiSize_t splitSizes, int64_t dim);
DIOPI_OP diopiError_t diopiStack(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t* tensors, int64_t numTensors, int64_t dim);
DIOPI_OP diopiError_t diopiSort(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t dim, bool descending,
    const bool* pStable /*nullable*/);
DIOPI_OP diopiError_t diopiSortBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, int64_t dim, diopiConstTensorHandle_t indices,
    diopiSize_t sizes, bool keepdim);
DIOPI_OP diopiError_t diopiTopk(diopiContextHandle_t ctx, diopiTensorHandle_t values,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t k, int64_t dim,
    bool largest, bool sorted);
DIOPI_OP diopiError_t diopiTranspose(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim0, int64_t dim1);
DIOPI_OP diopiError_t diopiOneHot(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t num_classes);
DIOPI_OP diopiError_t diopiWhere(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t condition, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMaskedFill(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopiMaskedFillInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t mask, diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopiMaskedFillScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiMaskedFillInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t mask, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiReciprocal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiReciprocalInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiFusedAdamW(diopiContextHandle_t ctx, diopiTensorHandle_t* params,
    diopiConstTensorHandle_t* grads, diopiTensorHandle_t* exp_avgs,
    diopiTensorHandle_t* exp_avg_sqs, diopiTensorHandle_t* max_exp_avg_sqs,
    diopiConstTensorHandle_t* state_steps, int64_t nums, double lr, double beta1, double beta2,
    double eps, double weight_decay, bool amsgrad, bool maximize);
DIOPI_OP diopiError_t diopiAdamW(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg, diopiTensorHandle_t exp_avg_sq,
    diopiTensorHandle_t max_exp_avg_sq /*nullable*/, float lr, float beta1, float beta2, float eps,
    float weight_decay, int64_t step, bool amsgrad);
DIOPI_OP diopiError_t diopiConvTranspose2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t output_padding, int64_t groups, diopiSize_t dilation);
DIOPI_OP diopiError_t diopiConvTranspose2dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiSize_t* bias_sizes /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, diopiSize_t output_padding, int64_t groups);
DIOPI_OP diopiError_t diopiConvTranspose3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t output_padding, int64_t groups, diopiSize_t dilation);
DIOPI_OP diopiError_t diopiConvTranspose3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiSize_t* bias_sizes /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, diopiSize_t output_padding, int64_t groups);
DIOPI_OP diopiError_t diopiUnfold(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, int64_t size, int64_t step);
DIOPI_OP diopiError_t diopiUnfoldBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiSize_t input_sizes, int64_t dim, int64_t size,
    int64_t step);
DIOPI_OP diopiError_t diopiCumsum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim);
DIOPI_OP diopiError_t diopiCumsumBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, int64_t dim);
DIOPI_OP diopiError_t diopiCdist(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input1, diopiConstTensorHandle_t input2, double p,
    const int64_t* compute_mode /*nullable*/);
DIOPI_OP diopiError_t diopiCdistBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input1,
    diopiConstTensorHandle_t input2, double p, diopiConstTensorHandle_t cdist);
DIOPI_OP diopiError_t diopiArgmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopiArgmin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool keepdim);
DIOPI_OP diopiError_t diopiArgsort(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, bool stable, const int64_t* dim /*nullable*/, bool descending);
DIOPI_OP diopiError_t diopiAdadelta(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t square_avg, diopiTensorHandle_t acc_delta,
    float lr, float rho, float eps, float weight_decay);
DIOPI_OP diopiError_t diopiAdam(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg, diopiTensorHandle_t exp_avg_sq,
    diopiTensorHandle_t max_exp_avg_sq /*nullable*/, float lr, float beta1, float beta2, float eps,
    float weight_decay, int64_t step, bool amsgrad);
DIOPI_OP diopiError_t diopiRmsprop(diopiContextHandle_t ctx, diopiTensorHandle_t param,
    diopiConstTensorHandle_t grad, diopiTensorHandle_t square_avg,
    diopiTensorHandle_t grad_avg /*nullable*/, diopiTensorHandle_t momentum_buf /*nullable*/,
    float lr, float alpha, float eps, float weight_decay, float momentum, bool centered);
DIOPI_OP diopiError_t diopiSmoothL1Loss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction,
    double beta);
DIOPI_OP diopiError_t diopiSmoothL1LossBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction,
    double beta);
DIOPI_OP diopiError_t diopiConvolution3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, int64_t groups);
DIOPI_OP diopiError_t diopiConvolution3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiSize_t* bias_sizes /*nullable*/, diopiSize_t stride, diopiSize_t padding,
    diopiSize_t dilation, int64_t groups);
DIOPI_OP diopiError_t diopiAvgPool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopiAvgPool3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, bool ceil_mode, bool count_include_pad,
    const int64_t* divisor_override /*nullable*/);
DIOPI_OP diopiError_t diopiMaxPool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiMaxPool3dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t indices, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode);
DIOPI_OP diopiError_t diopiMaxPool3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveAvgPool3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool3dWithIndices(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiTensorHandle_t indices, diopiConstTensorHandle_t input,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiAdaptiveMaxPool3dBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t indices);
DIOPI_OP diopiError_t diopiPool3d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,
    diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive,
    diopiSize_t output_size);
DIOPI_OP diopiError_t diopiPool3dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, const char* mode,
    diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
    bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices /*nullable*/);
DIOPI_OP diopiError_t diopiMaskedSelect(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask);
DIOPI_OP diopiError_t diopiMaskedSelectBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask);
DIOPI_OP diopiError_t diopiMaximum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMinimum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2);
DIOPI_OP diopiError_t diopiIndexFillScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiIndexFill(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
    diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopiIndexFillInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    int64_t dim, diopiConstTensorHandle_t index, const diopiScalar_t* value);
DIOPI_OP diopiError_t diopiIndexFillInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    int64_t dim, diopiConstTensorHandle_t index, diopiConstTensorHandle_t value);
DIOPI_OP diopiError_t diopiExpand(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLinspace(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* start, const diopiScalar_t* end, int64_t steps);
DIOPI_OP diopiError_t diopiPermute(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dims);
DIOPI_OP diopiError_t diopiPad(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t pad, const char* mode,
    const double* value /*nullable*/);
DIOPI_OP diopiError_t diopiRoll(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t shifts, diopiSize_t dims);
DIOPI_OP diopiError_t diopiFlip(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t dims);
DIOPI_OP diopiError_t diopiNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* p /*nullable*/, diopiSize_t dim);
DIOPI_OP diopiError_t diopiNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t self,
    diopiConstTensorHandle_t norm, diopiSize_t dim, const diopiScalar_t* p);
DIOPI_OP diopiError_t diopiLayerNormGB(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t running_mean /*nullable*/, diopiTensorHandle_t running_var /*nullable*/,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, double eps, int64_t begin_norm_axis);
DIOPI_OP diopiError_t diopiForeachnormScalar(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    diopiConstTensorHandle_t* inputs, int64_t inputSize, const diopiScalar_t* ord);
DIOPI_OP diopiError_t diopiGroupNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    int64_t num_groups, double eps);
DIOPI_OP diopiError_t diopiGroupNormBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t rstd, int64_t num_groups);
DIOPI_OP diopiError_t diopiLinalgVecNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiScalar_t* ord, diopiSize_t dim, bool keepdim);
DIOPI_OP diopiError_t diopiUnique(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/, bool sorted,
    bool return_counts, diopiTensorHandle_t indices /*nullable*/, diopiTensorHandle_t* counts);
DIOPI_OP diopiError_t diopiProd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const int64_t* dim /*nullable*/);
DIOPI_OP diopiError_t diopiCTCLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t neg_log_likelihood, diopiTensorHandle_t log_alpha,
    diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
    diopiConstTensorHandle_t input_lengths, diopiConstTensorHandle_t target_lengths, int64_t blank,
    diopiReduction_t reduction, bool zero_infinity);
DIOPI_OP diopiError_t diopiCTCLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t log_probs,
    diopiConstTensorHandle_t targets, diopiConstTensorHandle_t input_lengths,
    diopiConstTensorHandle_t target_lengths, diopiConstTensorHandle_t neg_log_likelihood,
    diopiConstTensorHandle_t log_alpha, int64_t blank, diopiReduction_t reduction,
    bool zero_infinity);
DIOPI_OP diopiError_t diopiLerpTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t end, diopiConstTensorHandle_t weight);
DIOPI_OP diopiError_t diopiLerpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t end, const diopiScalar_t* weight);
DIOPI_OP diopiError_t diopiRemainderTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiRemainderScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, const diopiScalar_t* other);
DIOPI_OP diopiError_t diopiRemainder(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* input, diopiConstTensorHandle_t other);
DIOPI_OP diopiError_t diopiGather(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopiGatherBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, int64_t dim,
    diopiConstTensorHandle_t index);
DIOPI_OP diopiError_t diopiScatterInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    int64_t dim, diopiConstTensorHandle_t src, diopiConstTensorHandle_t index,
    const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopiScatterInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    int64_t dim, const diopiScalar_t* value, diopiConstTensorHandle_t index,
    const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopiScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t src,
    diopiConstTensorHandle_t index, const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopiScatterScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t dim, const diopiScalar_t* value,
    diopiConstTensorHandle_t index, const char* reduce /*nullable*/);
DIOPI_OP diopiError_t diopiIndexPutInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    diopiConstTensorHandle_t values, diopiConstTensorHandle_t* indices, int64_t indices_counts,
    bool accumulate);
DIOPI_OP diopiError_t diopiIndexPut(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t values,
    diopiConstTensorHandle_t* indices, int64_t indices_counts, bool accumulate);
DIOPI_OP diopiError_t diopiRandomInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout,
    int64_t from, const int64_t* to /*nullable*/, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout,
    double from, double to, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiBernoulli(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiBernoulliInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiBernoulliScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    double p, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiArange(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    const diopiScalar_t* start, const diopiScalar_t* end, const diopiScalar_t* step);
DIOPI_OP diopiError_t diopiRandperm(diopiContextHandle_t ctx, diopiTensorHandle_t out, int64_t n,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiNormal(diopiContextHandle_t ctx, diopiTensorHandle_t out, double mean,
    double std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiNormalTensorScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t mean, double std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiNormalScalarTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    double mean, diopiConstTensorHandle_t std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiNormalTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t mean, diopiConstTensorHandle_t std,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiNormalInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout,
    double mean, double std, diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiMeshGrid(diopiContextHandle_t ctx, diopiTensorHandle_t* outs,
    diopiConstTensorHandle_t* inputs, int64_t inputsNum);
DIOPI_OP diopiError_t diopiGridSample(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t grid, const char* mode);
DIOPI_OP diopiError_t diopiMultinomial(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t num_samples, bool replacement,
    diopiGeneratorHandle_t generator /*nullable*/);
DIOPI_OP diopiError_t diopiLayerNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    diopiSize_t normalized_shape, double eps);
DIOPI_OP diopiError_t diopiLayerNormBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight /*nullable*/,
    diopiConstTensorHandle_t bias /*nullable*/, diopiConstTensorHandle_t mean,
    diopiConstTensorHandle_t rstd, diopiSize_t normalized_shape);
DIOPI_OP diopiError_t diopiLayerNormGBBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t bias /*nullable*/, diopiConstTensorHandle_t running_mean,
    diopiConstTensorHandle_t running_std, int64_t begin_norm_axis);
DIOPI_OP diopiError_t diopiInstanceNorm(diopiContextHandle_t ctx, diopiTensorHandle_t output,
    diopiConstTensorHandle_t input, int64_t axis, diopiConstTensorHandle_t scale,
    diopiConstTensorHandle_t bias /*nullable*/, double eps);
DIOPI_OP diopiError_t diopiInstanceNormBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_scale,
    diopiTensorHandle_t grad_bias /*nullable*/, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t scale,
    diopiConstTensorHandle_t bias /*nullable*/, int64_t axis, double eps);
DIOPI_OP diopiError_t diopiNormalize(diopiContextHandle_t ctx, diopiTensorHandle_t output,
    diopiConstTensorHandle_t input, float p, int64_t axis, double eps);
DIOPI_OP diopiError_t diopiNormalizeBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, float p, int64_t axis, double eps);
DIOPI_OP diopiError_t diopiCopyInp(diopiContextHandle_t ctx, diopiConstTensorHandle_t src,
    diopiTensorHandle_t dest);
DIOPI_OP diopiError_t diopiUpsampleNearest(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size);
DIOPI_OP diopiError_t diopiUpsampleNearestBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, diopiSize_t out_size,
    diopiSize_t in_size);
DIOPI_OP diopiError_t diopiUpsampleLinear(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t size, bool align_corners, const char* mode);
DIOPI_OP diopiError_t diopiUpsampleLinearBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, diopiSize_t out_size,
    diopiSize_t in_size, bool align_corners, const char* mode);
DIOPI_OP diopiError_t diopiErfinv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiErfinvInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiIm2Col(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t dilation,
    diopiSize_t padding, diopiSize_t stride);
DIOPI_OP diopiError_t diopiCol2Im(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t output_size, diopiSize_t kernel_size,
    diopiSize_t dilation, diopiSize_t padding, diopiSize_t stride);
DIOPI_OP diopiError_t diopiRepeat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, diopiSize_t repeats_size);
DIOPI_OP diopiError_t diopiCastDtype(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiPolar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t abs, diopiConstTensorHandle_t angle);
DIOPI_OP diopiError_t diopiTriu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input, int64_t diagonal);
DIOPI_OP diopiError_t diopiTriuInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
    int64_t diagonal);
DIOPI_OP diopiError_t diopiComplex(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t real, diopiConstTensorHandle_t imag);
DIOPI_OP diopiError_t diopiConj(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiImag(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiReal(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiOnes(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size);
DIOPI_OP diopiError_t diopiZeros(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiSize_t size);
DIOPI_OP diopiError_t diopiZeroInp(diopiContextHandle_t ctx, diopiTensorHandle_t self);
DIOPI_OP diopiError_t diopiSgn(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiSgnInp(diopiContextHandle_t ctx, diopiTensorHandle_t input);
DIOPI_OP diopiError_t diopiIsNan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t input);
DIOPI_OP diopiError_t diopiLinalgQR(diopiContextHandle_t ctx, diopiConstTensorHandle_t A,
    const char* mode, diopiTensorHandle_t Q, diopiTensorHandle_t R);
DIOPI_OP diopiError_t diopiAmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t self, diopiSize_t dim, bool keepdim);
DIOPI_OP diopiError_t diopiContiguous(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
    diopiConstTensorHandle_t input, diopiMemoryFormat_t memoryFormat);
DIOPI_OP diopiError_t diopiAmpForeachNonFiniteCheckAndUnscaleInp(diopiContextHandle_t ctx,
    diopiTensorHandle_t* scaled_grads, int64_t num_scaled_grads, diopiTensorHandle_t found_inf,
    diopiConstTensorHandle_t inv_scale);
DIOPI_OP diopiError_t diopiAmpUpdateScaleInp(diopiContextHandle_t ctx,
    diopiTensorHandle_t current_scale, diopiTensorHandle_t growth_tracker,
    diopiConstTensorHandle_t found_inf, double scale_growth_factor, double scale_backoff_factor,
    int32_t growth_interval);
DIOPI_OP diopiError_t diopiNativeMemoryFormatCast(diopiContextHandle_t ctx,
    diopiTensorHandle_t* out, diopiTensorHandle_t in, int64_t format);
DIOPI_OP diopiError_t diopiGetNativeMemoryFormat(diopiContextHandle_t ctx,
    diopiConstTensorHandle_t input, int64_t* format);
DIOPI_OP diopiError_t diopiTensorDestructionHook(diopiContextHandle_t ctx, void* ptr);
DIOPI_OP diopiError_t diopiRotaryEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x, diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin,
    bool conj, bool interleaved);
DIOPI_OP diopiError_t diopiRMSNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiTensorHandle_t inv_rms, diopiConstTensorHandle_t input, diopiSize_t normalized_shape,
    diopiConstTensorHandle_t weight /*nullable*/, diopiConstTensorHandle_t bias /*nullable*/,
    double eps);
DIOPI_OP diopiError_t diopiRMSNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
    diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias /*nullable*/,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
    diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias /*nullable*/,
    diopiConstTensorHandle_t inv_rms, diopiSize_t normalized_shape, double eps);
DIOPI_OP diopiError_t diopiMultiHeadAttention(diopiContextHandle_t ctx, diopiTensorHandle_t q,
    diopiTensorHandle_t k, diopiTensorHandle_t v, double dropout_p, bool is_causal,
    bool return_debug_mask, double scale, diopiTensorHandle_t out, diopiTensorHandle_t softmax_lse,
    diopiGeneratorHandle_t gen /*nullable*/, diopiTensorHandle_t debug_attn_mask);
DIOPI_OP diopiError_t diopiMultiHeadAttentionBackward(diopiContextHandle_t ctx,
    diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t out, diopiConstTensorHandle_t softmax_lse,
    double dropout_p, bool is_causal, diopiGeneratorHandle_t gen /*nullable*/, double scale,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v);
DIOPI_OP diopiError_t diopiMultiHeadAttentionVarLen(diopiContextHandle_t ctx, diopiTensorHandle_t q,
    diopiTensorHandle_t k, diopiTensorHandle_t v, diopiConstTensorHandle_t cum_seq_q,
    diopiConstTensorHandle_t cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p,
    bool is_causal, bool return_debug_mask, double scale, diopiTensorHandle_t out,
    diopiTensorHandle_t softmax_lse, diopiGeneratorHandle_t gen /*nullable*/,
    diopiTensorHandle_t debug_attn_mask);
DIOPI_OP diopiError_t diopiMultiHeadAttentionVarLenBackward(diopiContextHandle_t ctx,
    diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t out, diopiConstTensorHandle_t softmax_lse,
    diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, diopiGeneratorHandle_t gen /*nullable*/,
    double scale, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
    diopiTensorHandle_t grad_v);
DIOPI_OP diopiError_t diopiFlashAttention(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
    diopiGeneratorHandle_t gen /*nullable*/, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t alibi_slopes /*nullable*/, float p_dropout,
    float softmax_scale, bool is_causal, int32_t window_size_left, int32_t window_size_right);
DIOPI_OP diopiError_t diopiFlashAttentionBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t softmax_lse, float p_dropout, float softmax_scale, bool is_causal,
    int32_t window_size_left, int32_t window_size_right);
DIOPI_OP diopiError_t diopiCustomizedFlashAttention(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t* dropout_mask,
    diopiTensorHandle_t* softmax_max, diopiTensorHandle_t* softmax_sum,
    diopiTensorHandle_t* softmax_out, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_mask /*nullable*/, float p_dropout, float softmax_scale,
    bool is_causal, int32_t window_size_left, int32_t window_size_right, int32_t head_num,
    const char* input_layout);
DIOPI_OP diopiError_t diopiCustomizedFlashAttentionBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_out, diopiConstTensorHandle_t attention_mask /*nullable*/,
    diopiConstTensorHandle_t dropout_mask /*nullable*/,
    diopiConstTensorHandle_t softmax_max /*nullable*/,
    diopiConstTensorHandle_t softmax_sum /*nullable*/,
    diopiConstTensorHandle_t softmax_out /*nullable*/, float p_dropout, float softmax_scale,
    bool is_causal, int32_t window_size_left, int32_t window_size_right, int32_t head_num,
    const char* input_layout);
DIOPI_OP diopiError_t diopiFlashAttentionVarLen(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
    diopiGeneratorHandle_t gen /*nullable*/, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiConstTensorHandle_t cum_seq_q,
    diopiConstTensorHandle_t cum_seq_kv, diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    int32_t max_seqlen_q, int32_t max_seqlen_kv, float p_dropout, float softmax_scale,
    bool is_causal, int32_t window_size_left, int32_t window_size_right);
DIOPI_OP diopiError_t diopiFlashAttentionVarLenBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t softmax_lse, int32_t max_seqlen_q, int32_t max_seqlen_kv,
    float p_dropout, float softmax_scale, bool is_causal, int32_t window_size_left,
    int32_t window_size_right);
DIOPI_OP diopiError_t diopiCustomizedFlashAttentionVarLen(diopiContextHandle_t ctx,
    diopiTensorHandle_t attention_out, diopiTensorHandle_t* dropout_mask,
    diopiTensorHandle_t* softmax_max, diopiTensorHandle_t* softmax_sum,
    diopiTensorHandle_t* softmax_out, diopiGeneratorHandle_t gen /*nullable*/,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiSize_t cum_seq_q, diopiSize_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/,
    diopiConstTensorHandle_t attention_mask /*nullable*/, int32_t max_seqlen_q,
    int32_t max_seqlen_kv, float p_dropout, float softmax_scale, bool is_causal,
    int32_t window_size_left, int32_t window_size_right);
DIOPI_OP diopiError_t diopiCustomizedFlashAttentionVarLenBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v,
    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t v, diopiSize_t cum_seq_q, diopiSize_t cum_seq_kv,
    diopiConstTensorHandle_t alibi_slopes /*nullable*/, diopiConstTensorHandle_t attention_out,
    diopiConstTensorHandle_t attention_mask /*nullable*/,
    diopiConstTensorHandle_t dropout_mask /*nullable*/,
    diopiConstTensorHandle_t softmax_max /*nullable*/,
    diopiConstTensorHandle_t softmax_sum /*nullable*/,
    diopiConstTensorHandle_t softmax_out /*nullable*/, int32_t max_seqlen_q, int32_t max_seqlen_kv,
    float p_dropout, float softmax_scale, bool is_causal, int32_t window_size_left,
    int32_t window_size_right);
DIOPI_OP diopiError_t diopiScaledMaskedSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask, double scale,
    bool fixed_triu_mask);
DIOPI_OP diopiError_t diopiScaledMaskedSoftmaxBackward(diopiContextHandle_t ctx,
    diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t output, diopiConstTensorHandle_t mask, double scale,
    bool fixed_triu_mask);
DIOPI_OP diopiError_t diopiApplyPenalty(diopiContextHandle_t ctx, diopiTensorHandle_t logits,
    diopiConstTensorHandle_t presence_penalty, diopiConstTensorHandle_t frequency_penalty,
    diopiConstTensorHandle_t p_token_ids, diopiConstTensorHandle_t p_token_counts,
    diopiConstTensorHandle_t p_cumsum_seq_len, int p_max_len_in_batch);
DIOPI_OP diopiError_t diopiApplyPenaltyV2(diopiContextHandle_t ctx, diopiTensorHandle_t logits,
    diopiConstTensorHandle_t presence_penalty, diopiConstTensorHandle_t frequency_penalty,
    diopiConstTensorHandle_t repetition_penalty, diopiConstTensorHandle_t p_token_ids,
    diopiConstTensorHandle_t p_token_counts);
DIOPI_OP diopiError_t diopiDestIndexCopyKV(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t k, diopiConstTensorHandle_t dest_loc);
DIOPI_OP diopiError_t diopiTokenAttentionInference(diopiContextHandle_t ctx,
    diopiTensorHandle_t token_attention_out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
    diopiConstTensorHandle_t b_loc, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int max_input_len);
DIOPI_OP diopiError_t diopiTokenSoftmaxReduceVInference(diopiContextHandle_t ctx,
    diopiTensorHandle_t out, diopiConstTensorHandle_t logics, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t b_loc, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int max_input_len, int other_kv_index);
DIOPI_OP diopiError_t diopiPagedAttention(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
    diopiConstTensorHandle_t attenMask /*nullable*/, diopiSize_t actual_seq_lengths,
    int64_t num_heads, int64_t num_kv_heads, int64_t dim, diopiConstTensorHandle_t block_table,
    int64_t block_size);
DIOPI_OP diopiError_t diopiContextAttentionInference(diopiContextHandle_t ctx,
    diopiTensorHandle_t context_attention_out, diopiConstTensorHandle_t q,
    diopiConstTensorHandle_t k, diopiConstTensorHandle_t v, diopiConstTensorHandle_t b_start_loc,
    diopiConstTensorHandle_t b_seq_len, int max_input_len);
DIOPI_OP diopiError_t diopiRotaryEmbeddingV2(diopiContextHandle_t ctx, diopiTensorHandle_t query,
    diopiTensorHandle_t key, diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin,
    int64_t dim);
DIOPI_OP diopiError_t diopiMatmulAllReduce(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t x1, diopiConstTensorHandle_t x2,
    diopiConstTensorHandle_t bias /*nullable*/, const char* group, const char* reduce_op,
    int64_t comm_turn, int64_t stream_mode);
DIOPI_OP diopiError_t diopiPromptFlashAttention(diopiContextHandle_t ctx, diopiTensorHandle_t out,
    diopiConstTensorHandle_t query, diopiConstTensorHandle_t key, diopiConstTensorHandle_t value,
    diopiConstTensorHandle_t atten_mask /*nullable*/, diopiSize_t actual_seq_lengths,
    int64_t max_input_len, int64_t num_heads, int64_t num_kv_heads, int64_t dim);

#ifdef __cplusplus
}
#endif

#endif /* DIOPI_H */
