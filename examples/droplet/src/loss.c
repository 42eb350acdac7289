/* Losses and their gradients: log_softmax, nll_loss, the gradient of embedding. */
#include <math.h>

#include "tensor.h"

diopiError_t diopiLogSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                             diopiConstTensorHandle_t input, int64_t dim) {
    (void)ctx;
    Tensor to, from;
    TRY(view(out, &to));
    TRY(view(input, &from));
    TRY(dimension(&from, dim, &dim));
    int64_t size = from.rank ? from.shape[dim] : 1;
    for (int64_t i = 0; size && i < from.numel / size; ++i) {
        Row x = row_of(&from, dim, i), y = row_of(&to, dim, i);
        double most = at(x, 0), total = 0;
        for (int64_t k = 1; k < size; ++k) most = fmax(most, at(x, k));
        for (int64_t k = 0; k < size; ++k) total += exp(at(x, k) - most);
        for (int64_t k = 0; k < size; ++k) put(y, k, at(x, k) - most - log(total));
    }
    return diopiSuccess;
}

diopiError_t diopiLogSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                     diopiConstTensorHandle_t grad_output,
                                     diopiConstTensorHandle_t output, int64_t dim) {
    (void)ctx;
    Tensor to, grad, result;
    TRY(view(grad_input, &to));
    TRY(view(grad_output, &grad));
    TRY(view(output, &result));
    TRY(dimension(&result, dim, &dim));
    int64_t size = result.rank ? result.shape[dim] : 1;
    for (int64_t i = 0; size && i < result.numel / size; ++i) {
        Row g = row_of(&grad, dim, i), y = row_of(&result, dim, i), x = row_of(&to, dim, i);
        double total = 0;
        for (int64_t k = 0; k < size; ++k) total += at(g, k);
        for (int64_t k = 0; k < size; ++k) put(x, k, at(g, k) - exp(at(y, k)) * total);
    }
    return diopiSuccess;
}

/* The class of a row, or -1 where it is ignored. */
static diopiError_t class_of(const Tensor* target, int64_t row, int64_t classes, int64_t ignored,
                             int64_t* found) {
    *found = load_index(target, row * (target->rank ? target->stride[0] : 0));
    if (*found == ignored) {
        *found = -1;
    } else if (*found < 0 || *found >= classes) {
        return diopiSetLastError(diopiInvalidArgument, "Target %lld is out of bounds.",
                                 (long long)*found);
    }
    return diopiSuccess;
}

diopiError_t diopi_nll_loss(diopiContextHandle_t ctx, diopiTensorHandle_t output,
                            diopiTensorHandle_t total_weight, diopiConstTensorHandle_t input,
                            diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                            int64_t reduction, int64_t ignore_index) {
    (void)ctx;
    Tensor to, from, wanted, w, all;
    TRY(view(output, &to));
    TRY(view(input, &from));
    TRY(view(total_weight, &all));
    TRY(view_any(target, &wanted));
    if (weight) TRY(view(weight, &w));
    if (from.rank != 2) return diopiSetLastError(diopiNoImplement, "only rows of classes");
    double loss = 0, total = 0;
    for (int64_t i = 0; i < from.shape[0]; ++i) {
        int64_t c;
        TRY(class_of(&wanted, i, from.shape[1], ignore_index, &c));
        double share = c < 0 ? 0 : weight ? load(&w, c * w.stride[0]) : 1;
        double value = c < 0 ? 0 : -share * load(&from, i * from.stride[0] + c * from.stride[1]);
        if (reduction == ReductionNone) store(&to, i * to.stride[0], (float)value);
        loss += value;
        total += share;
    }
    if (reduction == ReductionMean) loss /= total;
    if (reduction != ReductionNone) store(&to, 0, (float)loss);
    store(&all, 0, reduction == ReductionNone ? 0 : (float)total);
    return diopiSuccess;
}

diopiError_t diopi_nll_loss_backward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                     diopiConstTensorHandle_t grad_output,
                                     diopiConstTensorHandle_t input,
                                     diopiConstTensorHandle_t target,
                                     diopiConstTensorHandle_t weight, int64_t reduction,
                                     int64_t ignore_index, diopiConstTensorHandle_t total_weight) {
    (void)ctx;
    Tensor dx, dy, from, wanted, w, all;
    TRY(view(out, &dx));
    TRY(view(grad_output, &dy));
    TRY(view(input, &from));
    TRY(view(total_weight, &all));
    TRY(view_any(target, &wanted));
    if (weight) TRY(view(weight, &w));
    if (from.rank != 2) return diopiSetLastError(diopiNoImplement, "only rows of classes");
    for (int64_t i = 0; i < dx.numel; ++i) store(&dx, offset_of(&dx, i), 0);
    for (int64_t i = 0; i < from.shape[0]; ++i) {
        int64_t c;
        TRY(class_of(&wanted, i, from.shape[1], ignore_index, &c));
        if (c < 0) continue;
        double grad = load(&dy, reduction == ReductionNone ? i * dy.stride[0] : 0);
        if (reduction == ReductionMean) grad /= load(&all, 0);
        if (weight) grad *= load(&w, c * w.stride[0]);
        store(&dx, i * dx.stride[0] + c * dx.stride[1], (float)-grad);
    }
    return diopiSuccess;
}

diopiError_t diopiEmbeddingBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                    diopiConstTensorHandle_t grad,
                                    diopiConstTensorHandle_t indices, int64_t num_weights,
                                    int64_t padding_idx, bool scale_grad_byfreq, bool sparse) {
    (void)ctx, (void)num_weights, (void)sparse;
    Tensor to, from, wanted;
    TRY(view(out, &to));
    TRY(view(grad, &from));
    TRY(view_any(indices, &wanted));
    if (scale_grad_byfreq || to.dtype != diopi_dtype_float32) {
        return diopiSetLastError(diopiNoImplement, "only plain sums of float32");
    }
    for (int64_t i = 0; i < to.numel; ++i) store(&to, offset_of(&to, i), 0);
    for (int64_t i = 0; i < wanted.numel; ++i) {
        int64_t row = load_index(&wanted, offset_of(&wanted, i)), width = to.shape[1];
        if (row == padding_idx) continue;
        for (int64_t k = 0; k < width; ++k) {
            int64_t place = row * to.stride[0] + k * to.stride[1];
            float value = load(&from, offset_of(&from, i * width + k));
            store(&to, place, load(&to, place) + value);
        }
    }
    return diopiSuccess;
}
