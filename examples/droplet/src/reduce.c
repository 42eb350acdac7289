/* Along a dimension: sums, means, maxima, softmax, layer_norm, with gradients. */
#include <math.h>

#include "tensor.h"

/* The input with the reduced dimensions last, so that out's n-th element is its n-th row. */
static diopiError_t rows(const Tensor* input, diopiSize_t dims, Tensor* kept, Tensor* reduced) {
    bool gone[MAX_RANK] = {false};
    for (int64_t i = 0; i < dims.len; ++i) {
        int64_t d;
        TRY(dimension(input, dims.data[i], &d));
        gone[d] = true;
    }
    *kept = *reduced = *input;
    kept->rank = reduced->rank = 0;
    kept->numel = reduced->numel = 1;
    for (int64_t d = 0; d < input->rank; ++d) {
        Tensor* part = gone[d] || dims.len == 0 ? reduced : kept;
        part->shape[part->rank] = input->shape[d];
        part->stride[part->rank++] = input->stride[d];
        part->numel *= input->shape[d];
    }
    return diopiSuccess;
}

static diopiError_t sum(diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dims,
                        bool mean) {
    Tensor to, from, kept, reduced;
    TRY(view(out, &to));
    TRY(view(input, &from));
    TRY(rows(&from, dims, &kept, &reduced));
    for (int64_t i = 0; i < to.numel; ++i) {
        int64_t start = offset_of(&kept, i);
        double total = 0;
        for (int64_t k = 0; k < reduced.numel; ++k) {
            total += load(&from, start + offset_of(&reduced, k));
        }
        store(&to, offset_of(&to, i), (float)(mean ? total / (double)reduced.numel : total));
    }
    return diopiSuccess;
}

diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiSize_t dim) {
    (void)ctx;
    return sum(out, input, dim, false);
}

diopiError_t diopiMean(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input, diopiSize_t dim) {
    (void)ctx;
    return sum(out, input, dim, true);
}

diopiError_t diopiAmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t self, diopiSize_t dim, bool keepdim) {
    (void)ctx, (void)keepdim; /* out has the shape already */
    Tensor to, from, kept, reduced;
    TRY(view(out, &to));
    TRY(view(self, &from));
    TRY(rows(&from, dim, &kept, &reduced));
    if (reduced.numel == 0 && to.numel > 0) {
        return diopiSetLastError(diopiInvalidArgument, "no maximum of nothing");
    }
    for (int64_t i = 0; i < to.numel; ++i) {
        int64_t start = offset_of(&kept, i);
        float most = load(&from, start);
        for (int64_t k = 1; k < reduced.numel; ++k) {
            float value = load(&from, start + offset_of(&reduced, k));
            if (value > most || value != value) most = value;
        }
        store(&to, offset_of(&to, i), most);
    }
    return diopiSuccess;
}

Row row_of(const Tensor* tensor, int64_t dim, int64_t index) {
    Tensor rest = *tensor;
    for (int64_t d = dim; d + 1 < tensor->rank; ++d) {
        rest.shape[d] = tensor->shape[d + 1];
        rest.stride[d] = tensor->stride[d + 1];
    }
    rest.rank = tensor->rank ? tensor->rank - 1 : 0;
    Row row = {tensor, offset_of(&rest, index), tensor->rank ? tensor->stride[dim] : 1};
    return row;
}

diopiError_t diopiSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
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
        for (int64_t k = 0; k < size; ++k) put(y, k, exp(at(x, k) - most) / total);
    }
    return diopiSuccess;
}

diopiError_t diopiSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
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
        for (int64_t k = 0; k < size; ++k) total += at(g, k) * at(y, k);
        for (int64_t k = 0; k < size; ++k) put(x, k, (at(g, k) - total) * at(y, k));
    }
    return diopiSuccess;
}

/* layer_norm works on the last dimensions together: rows of `size` elements, by element number. */
static int64_t row_size(diopiSize_t normalized_shape) {
    int64_t size = 1;
    for (int64_t d = 0; d < normalized_shape.len; ++d) size *= normalized_shape.data[d];
    return size;
}

static double element(const Tensor* tensor, int64_t index) {
    return load(tensor, offset_of(tensor, index));
}

diopiError_t diopiLayerNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiSize_t normalized_shape,
                            double eps) {
    (void)ctx;
    Tensor to, means, scales, from, w, b;
    TRY(view(out, &to));
    TRY(view(save_mean, &means));
    TRY(view(save_invstd, &scales));
    TRY(view(input, &from));
    if (weight) TRY(view(weight, &w));
    if (bias) TRY(view(bias, &b));
    int64_t size = row_size(normalized_shape);
    for (int64_t i = 0; size && i < from.numel / size; ++i) {
        double mean = 0, square = 0;
        for (int64_t k = 0; k < size; ++k) mean += element(&from, i * size + k);
        mean /= (double)size;
        for (int64_t k = 0; k < size; ++k) {
            double apart = element(&from, i * size + k) - mean;
            square += apart * apart;
        }
        double scale = 1 / sqrt(square / (double)size + eps);
        for (int64_t k = 0; k < size; ++k) {
            double value = (element(&from, i * size + k) - mean) * scale;
            if (weight) value *= element(&w, k);
            if (bias) value += element(&b, k);
            store(&to, offset_of(&to, i * size + k), (float)value);
        }
        store(&means, offset_of(&means, i), (float)mean);
        store(&scales, offset_of(&scales, i), (float)scale);
    }
    return diopiSuccess;
}

diopiError_t diopiLayerNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,
                                    diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t bias, diopiConstTensorHandle_t mean,
                                    diopiConstTensorHandle_t rstd, diopiSize_t normalized_shape) {
    (void)bias;
    Tensor dx, dw, db, dy, x, w, means, scales;
    TRY(view(grad_output, &dy));
    TRY(view(input, &x));
    TRY(view(mean, &means));
    TRY(view(rstd, &scales));
    if (grad_input) TRY(view(grad_input, &dx));
    if (grad_weight) TRY(view(grad_weight, &dw));
    if (grad_bias) TRY(view(grad_bias, &db));
    if (weight) TRY(view(weight, &w));
    int64_t size = row_size(normalized_shape);
    /* the gradients of weight and bias are sums over all rows: in double, in borrowed memory */
    diopiTensorHandle_t buffer;
    void* memory;
    TRY(diopiRequireBuffer(ctx, &buffer, 2 * size * (int64_t)sizeof(double), diopi_device));
    TRY(diopiGetTensorData(buffer, &memory));
    double *sums_w = chip_memory(memory), *sums_b = sums_w + size;
    for (int64_t k = 0; k < size; ++k) sums_w[k] = sums_b[k] = 0;
    for (int64_t i = 0; size && i < x.numel / size; ++i) {
        double center = element(&means, i), scale = element(&scales, i), sum = 0, product = 0;
        for (int64_t k = 0; k < size; ++k) {
            double grad = element(&dy, i * size + k);
            double normal = (element(&x, i * size + k) - center) * scale;
            sums_w[k] += grad * normal;
            sums_b[k] += grad;
            if (weight) grad *= element(&w, k);
            sum += grad;
            product += grad * normal;
        }
        for (int64_t k = 0; grad_input && k < size; ++k) {
            double grad = element(&dy, i * size + k) * (weight ? element(&w, k) : 1);
            double normal = (element(&x, i * size + k) - center) * scale;
            double value = scale * (grad - (sum + normal * product) / (double)size);
            store(&dx, offset_of(&dx, i * size + k), (float)value);
        }
    }
    for (int64_t k = 0; k < size; ++k) {
        if (grad_weight) store(&dw, offset_of(&dw, k), (float)sums_w[k]);
        if (grad_bias) store(&db, offset_of(&db, k), (float)sums_b[k]);
    }
    return diopiSuccess;
}
