/* Products of matrices: all by one loop over rows, which adds up the rows of the right matrix. */
#include "tensor.h"

/* The offset of the n-th matrix of a batch. */
static int64_t matrix_of(const Tensor* tensor, int64_t batch) {
    int64_t offset = 0;
    for (int64_t d = tensor->rank - 3; d >= 0; --d) {
        offset += batch % tensor->shape[d] * tensor->stride[d];
        batch /= tensor->shape[d];
    }
    return offset;
}

/* One row of `a @ b` into `sums`; the rows of b are contiguous. */
static void multiply(const Tensor* a, int64_t from, const float* rows, int64_t width, double* sums) {
    int64_t last = a->rank - 1;
    for (int64_t j = 0; j < width; ++j) sums[j] = 0;
    for (int64_t k = 0; k < a->shape[last]; ++k) {
        double factor = load(a, from + k * a->stride[last]);
        for (int64_t j = 0; j < width; ++j) sums[j] += factor * rows[k * width + j];
    }
}

/* out = beta * bias + alpha * (a @ b), over the leading dimensions; no bias: bias is null. */
static diopiError_t product(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t left, diopiConstTensorHandle_t right,
                            diopiConstTensorHandle_t bias, double beta, double alpha) {
    Tensor to, a, b, c;
    TRY(view(out, &to));
    TRY(view(left, &a));
    TRY(view(right, &b));
    int64_t last = to.rank - 1;
    if (to.rank < 2 || a.rank != to.rank || b.rank != to.rank ||
        a.shape[last] != b.shape[last - 1]) {
        return diopiSetLastError(diopiInvalidArgument, "these matrices cannot be multiplied");
    }
    if (bias) {
        TRY(view(bias, &c));
        TRY(expand(&c, &to));
    }
    int64_t height = to.shape[last - 1], width = to.shape[last], inner = a.shape[last];
    diopiTensorHandle_t buffer; /* a row of sums in double, and the right matrix, row by row */
    void* memory;
    int64_t bytes = width * (int64_t)sizeof(double) + inner * width * (int64_t)sizeof(float);
    TRY(diopiRequireBuffer(ctx, &buffer, bytes, diopi_device));
    TRY(diopiGetTensorData(buffer, &memory));
    double* sums = chip_memory(memory);
    float* rows = (float*)(sums + width);
    for (int64_t i = 0; i < to.numel; ++i) {
        int64_t column = i % width, row = i / width % height, batch = i / width / height;
        for (int64_t k = 0; row == 0 && column == 0 && k < inner * width; ++k) {
            rows[k] = load(&b, matrix_of(&b, batch) + k / width * b.stride[last - 1] +
                                   k % width * b.stride[last]);
        }
        int64_t from = matrix_of(&a, batch) + row * a.stride[last - 1];
        if (column == 0) multiply(&a, from, rows, width, sums);
        double sum = alpha * sums[column];
        if (bias && beta != 0) sum += beta * load(&c, offset_of(&c, i)); /* 0 * NaN is no bias */
        store(&to, offset_of(&to, i), (float)sum);
    }
    return diopiSuccess;
}

diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                     diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2) {
    return product(ctx, out, input, mat2, NULL, 0, 1);
}

diopiError_t diopiBmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2) {
    return product(ctx, out, input, mat2, NULL, 0, 1);
}

diopiError_t diopiAddmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat1,
                        diopiConstTensorHandle_t mat2, const diopiScalar_t* beta,
                        const diopiScalar_t* alpha) {
    return product(ctx, out, mat1, mat2, input, scalar(beta), scalar(alpha));
}
