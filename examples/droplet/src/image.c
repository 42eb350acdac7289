/* Layers on images: convolution, pooling, batch_norm, with gradients. */
#include <math.h>

#include "tensor.h"

typedef struct {
    int64_t stride[2], padding[2], dilation[2], kernel[2];
} Window;

static int64_t pair(diopiSize_t values, int64_t at, int64_t otherwise) {
    if (values.len == 0) return otherwise;
    return values.data[values.len == 1 ? 0 : at];
}

static Window window_of(const int64_t* kernel, diopiSize_t stride, diopiSize_t padding,
                        diopiSize_t dilation) {
    Window window;
    for (int64_t d = 0; d < 2; ++d) {
        window.kernel[d] = kernel[d];
        window.stride[d] = pair(stride, d, kernel[d]);
        window.padding[d] = pair(padding, d, 0);
        window.dilation[d] = pair(dilation, d, 1);
    }
    return window;
}

/* The position that a window reads; false outside of the image. */
static inline bool inside(const Window* window, int64_t d, int64_t out, int64_t k, int64_t size,
                          int64_t* at) {
    *at = out * window->stride[d] - window->padding[d] + k * window->dilation[d];
    return *at >= 0 && *at < size;
}

static int64_t place(const Tensor* t, int64_t n, int64_t c, int64_t y, int64_t x) {
    return n * t->stride[0] + c * t->stride[1] + y * t->stride[2] + x * t->stride[3];
}

static diopiError_t images(const Tensor* a, const Tensor* b, diopiSize_t stride) {
    if (a->rank == 4 && b->rank == 4 && stride.len <= 2) return diopiSuccess;
    return diopiSetLastError(diopiNoImplement, "only images: batch, channels, rows, columns");
}

/* Calls the body for each pair of an input element and a weight that contribute to an output element. */
#define FOR_EACH_MEETING(OUT, X, W, WINDOW, GROUPS, BODY)                                        \
    for (int64_t n = 0; n < (OUT).shape[0]; ++n)                                                 \
        for (int64_t o = 0; o < (OUT).shape[1]; ++o)                                             \
            for (int64_t y = 0; y < (OUT).shape[2]; ++y)                                         \
                for (int64_t x = 0; x < (OUT).shape[3]; ++x)                                     \
                    for (int64_t c = 0; c < (W).shape[1]; ++c)                                   \
                        for (int64_t i = 0; i < (W).shape[2]; ++i)                               \
                            for (int64_t j = 0; j < (W).shape[3]; ++j) {                         \
                                int64_t row, column;                                             \
                                if (!inside(&(WINDOW), 0, y, i, (X).shape[2], &row)) continue;   \
                                if (!inside(&(WINDOW), 1, x, j, (X).shape[3], &column)) continue; \
                                int64_t channel = o / ((OUT).shape[1] / (GROUPS)) *              \
                                                      (W).shape[1] + c;                          \
                                BODY                                                             \
                            }

/* Sums of many terms are accumulated in double, in memory of the call. */
static diopiError_t sums(diopiContextHandle_t ctx, int64_t count, double** out) {
    diopiTensorHandle_t buffer;
    void* memory;
    TRY(diopiRequireBuffer(ctx, &buffer, count * (int64_t)sizeof(double), diopi_device));
    TRY(diopiGetTensorData(buffer, &memory));
    *out = chip_memory(memory);
    for (int64_t i = 0; i < count; ++i) (*out)[i] = 0;
    return diopiSuccess;
}

static void store_sums(const Tensor* to, const double* from) {
    for (int64_t i = 0; i < to->numel; ++i) store(to, offset_of(to, i), (float)from[i]);
}

static int64_t element_of(const Tensor* t, int64_t n, int64_t c, int64_t y, int64_t x) {
    return ((n * t->shape[1] + c) * t->shape[2] + y) * t->shape[3] + x;
}

diopiError_t diopiConvolution2d(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                diopiConstTensorHandle_t bias, diopiSize_t stride,
                                diopiSize_t padding, diopiSize_t dilation, int64_t groups) {
    Tensor to, from, w, b;
    double* total;
    TRY(view(out, &to));
    TRY(view(input, &from));
    TRY(view(weight, &w));
    TRY(images(&from, &w, stride));
    if (bias) TRY(view(bias, &b));
    Window window = window_of(w.shape + 2, stride, padding, dilation);
    TRY(sums(ctx, to.numel, &total));
    FOR_EACH_MEETING(to, from, w, window, groups, {
        total[element_of(&to, n, o, y, x)] +=
            (double)load(&from, place(&from, n, channel, row, column)) *
            load(&w, place(&w, o, c, i, j));
    })
    for (int64_t k = 0; bias && k < to.numel; ++k) {
        int64_t channel = k / (to.shape[2] * to.shape[3]) % to.shape[1];
        total[k] += load(&b, channel * b.stride[0]);
    }
    store_sums(&to, total);
    return diopiSuccess;
}

diopiError_t diopiConvolution2dBackward(
    diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiSize_t* bias_sizes,
    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, int64_t groups) {
    (void)bias_sizes;
    Tensor dx, dw, db, dy, from, w;
    double *sum_x = NULL, *sum_w = NULL, *sum_b = NULL;
    TRY(view(grad_output, &dy));
    TRY(view(input, &from));
    TRY(view(weight, &w));
    TRY(images(&from, &w, stride));
    Window window = window_of(w.shape + 2, stride, padding, dilation);
    if (grad_input) {
        TRY(view(grad_input, &dx));
        TRY(sums(ctx, dx.numel, &sum_x));
    }
    if (grad_weight) {
        TRY(view(grad_weight, &dw));
        TRY(sums(ctx, dw.numel, &sum_w));
    }
    FOR_EACH_MEETING(dy, from, w, window, groups, {
        double grad = load(&dy, place(&dy, n, o, y, x));
        if (sum_x) {
            sum_x[element_of(&from, n, channel, row, column)] +=
                grad * load(&w, place(&w, o, c, i, j));
        }
        if (sum_w) {
            sum_w[element_of(&w, o, c, i, j)] +=
                grad * load(&from, place(&from, n, channel, row, column));
        }
    })
    if (grad_bias) {
        TRY(view(grad_bias, &db));
        TRY(sums(ctx, db.numel, &sum_b));
        for (int64_t k = 0; k < dy.numel; ++k) {
            sum_b[k / (dy.shape[2] * dy.shape[3]) % dy.shape[1]] += load(&dy, offset_of(&dy, k));
        }
        store_sums(&db, sum_b);
    }
    if (sum_x) store_sums(&dx, sum_x);
    if (sum_w) store_sums(&dw, sum_w);
    return diopiSuccess;
}

diopiError_t diopiMaxPool2dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                       diopiTensorHandle_t indices, diopiConstTensorHandle_t input,
                                       diopiSize_t kernel_size, diopiSize_t stride,
                                       diopiSize_t padding, diopiSize_t dilation, bool ceil_mode) {
    (void)ctx, (void)ceil_mode; /* out has the shape already */
    Tensor to, best, from;
    TRY(view(out, &to));
    TRY(view_any(indices, &best));
    TRY(view(input, &from));
    TRY(images(&to, &from, stride));
    int64_t kernel[2] = {pair(kernel_size, 0, 1), pair(kernel_size, 1, 1)};
    Window window = window_of(kernel, stride, padding, dilation);
    for (int64_t k = 0; k < to.numel; ++k) {
        int64_t x = k % to.shape[3], y = k / to.shape[3] % to.shape[2];
        int64_t c = k / (to.shape[3] * to.shape[2]) % to.shape[1];
        int64_t n = k / (to.shape[3] * to.shape[2] * to.shape[1]);
        int64_t found = -1;
        float most = -INFINITY;
        for (int64_t i = 0; i < kernel[0]; ++i) {
            for (int64_t j = 0; j < kernel[1]; ++j) {
                int64_t row, column;
                if (!inside(&window, 0, y, i, from.shape[2], &row)) continue;
                if (!inside(&window, 1, x, j, from.shape[3], &column)) continue;
                float value = load(&from, place(&from, n, c, row, column));
                if (found < 0 || value > most || value != value) {
                    most = value;
                    found = row * from.shape[3] + column;
                }
            }
        }
        store(&to, offset_of(&to, k), most);
        ((int64_t*)best.data)[offset_of(&best, k)] = found;
    }
    return diopiSuccess;
}

diopiError_t diopiMaxPool2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                                    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
                                    bool ceil_mode, diopiConstTensorHandle_t indices) {
    (void)input, (void)kernel_size, (void)padding, (void)dilation, (void)ceil_mode;
    Tensor dx, dy, best;
    double* total;
    TRY(view(grad_input, &dx));
    TRY(view(grad_output, &dy));
    TRY(view_any(indices, &best));
    TRY(images(&dx, &dy, stride));
    TRY(sums(ctx, dx.numel, &total));
    for (int64_t k = 0; k < dy.numel; ++k) {
        int64_t plane = k / (dy.shape[2] * dy.shape[3]);
        int64_t at = load_index(&best, offset_of(&best, k));
        total[plane * dx.shape[2] * dx.shape[3] + at] += load(&dy, offset_of(&dy, k));
    }
    store_sums(&dx, total);
    return diopiSuccess;
}

/* --- batch_norm: channels are the second dimension ---------------------------------------------- */

static int64_t channel_of(const Tensor* t, int64_t element) {
    int64_t inner = 1;
    for (int64_t d = 2; d < t->rank; ++d) inner *= t->shape[d];
    return element / inner % t->shape[1];
}

static double one(diopiConstTensorHandle_t handle, const Tensor* t, int64_t at, double otherwise) {
    return handle ? load(t, at * t->stride[0]) : otherwise;
}

diopiError_t diopiBatchNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiTensorHandle_t running_mean,
                            diopiTensorHandle_t running_var, bool training, double momentum,
                            double eps) {
    Tensor to, from, w, b, means, scales, mean_now, var_now;
    double *mean, *square;
    TRY(view(out, &to));
    TRY(view(input, &from));
    if (!training || from.rank < 2) return diopiSetLastError(diopiNoImplement, "only in training");
    TRY(view(save_mean, &means));
    TRY(view(save_invstd, &scales));
    if (weight) TRY(view(weight, &w));
    if (bias) TRY(view(bias, &b));
    if (running_mean) TRY(view(running_mean, &mean_now));
    if (running_var) TRY(view(running_var, &var_now));
    int64_t channels = from.shape[1];
    double each = channels ? (double)(from.numel / channels) : 0;
    TRY(sums(ctx, channels, &mean));
    TRY(sums(ctx, channels, &square));
    for (int64_t i = 0; i < from.numel; ++i) {
        mean[channel_of(&from, i)] += load(&from, offset_of(&from, i)) / each;
    }
    for (int64_t i = 0; i < from.numel; ++i) {
        int64_t c = channel_of(&from, i);
        double apart = load(&from, offset_of(&from, i)) - mean[c];
        square[c] += apart * apart;
    }
    for (int64_t c = 0; c < channels; ++c) {
        store(&means, c * means.stride[0], (float)mean[c]);
        store(&scales, c * scales.stride[0], (float)(1 / sqrt(square[c] / each + eps)));
        if (running_mean) {
            double old = one(running_mean, &mean_now, c, 0);
            store(&mean_now, c * mean_now.stride[0], (float)(old + momentum * (mean[c] - old)));
        }
        if (running_var) {
            double old = one(running_var, &var_now, c, 0), now = square[c] / (each - 1);
            store(&var_now, c * var_now.stride[0], (float)(old + momentum * (now - old)));
        }
    }
    for (int64_t i = 0; i < from.numel; ++i) {
        int64_t c = channel_of(&from, i);
        double normal = (load(&from, offset_of(&from, i)) - mean[c]) / sqrt(square[c] / each + eps);
        double value = normal * one(weight, &w, c, 1) + one(bias, &b, c, 0);
        store(&to, offset_of(&to, i), (float)value);
    }
    return diopiSuccess;
}

diopiError_t diopiBatchNormBackward(
    diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
    diopiConstTensorHandle_t running_mean, diopiConstTensorHandle_t running_var,
    diopiConstTensorHandle_t save_mean, diopiConstTensorHandle_t save_invstd, bool training,
    double eps) {
    (void)running_mean, (void)running_var, (void)eps;
    Tensor dx, dw, db, dy, from, w, means, scales;
    double *sum, *product;
    if (!training) return diopiSetLastError(diopiNoImplement, "only in training");
    TRY(view(grad_output, &dy));
    TRY(view(input, &from));
    TRY(view(save_mean, &means));
    TRY(view(save_invstd, &scales));
    if (grad_input) TRY(view(grad_input, &dx));
    if (grad_weight) TRY(view(grad_weight, &dw));
    if (grad_bias) TRY(view(grad_bias, &db));
    if (weight) TRY(view(weight, &w));
    int64_t channels = from.shape[1];
    double each = channels ? (double)(from.numel / channels) : 0;
    TRY(sums(ctx, channels, &sum));
    TRY(sums(ctx, channels, &product));
    for (int64_t i = 0; i < dy.numel; ++i) {
        int64_t c = channel_of(&from, i);
        double grad = load(&dy, offset_of(&dy, i));
        double apart = load(&from, offset_of(&from, i)) - one(save_mean, &means, c, 0);
        sum[c] += grad;
        product[c] += grad * apart * one(save_invstd, &scales, c, 1);
    }
    for (int64_t i = 0; grad_input && i < dx.numel; ++i) {
        int64_t c = channel_of(&from, i);
        double scale = one(save_invstd, &scales, c, 1);
        double normal = (load(&from, offset_of(&from, i)) - one(save_mean, &means, c, 0)) * scale;
        double grad = load(&dy, offset_of(&dy, i)) - (sum[c] + normal * product[c]) / each;
        store(&dx, offset_of(&dx, i), (float)(grad * scale * one(weight, &w, c, 1)));
    }
    if (grad_weight) store_sums(&dw, product);
    if (grad_bias) store_sums(&db, sum);
    return diopiSuccess;
}
