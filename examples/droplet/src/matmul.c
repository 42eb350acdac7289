/* Products of matrices: all by one loop over batches, rows and columns. */
#include "tensor.h"

/* out = beta * bias + alpha * (a @ b), over the leading dimensions; no bias: bias is null. */
static diopiError_t product(diopiTensorHandle_t out, diopiConstTensorHandle_t left,
                            diopiConstTensorHandle_t right, diopiConstTensorHandle_t bias,
                            double beta, double alpha) {
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
    for (int64_t i = 0; i < to.numel; ++i) {
        int64_t element = i, from_a = 0, from_b = 0;
        for (int64_t d = last; d >= 0; --d) {
            int64_t at = element % to.shape[d];
            element /= to.shape[d];
            if (d != last) from_a += at * a.stride[d];
            if (d != last - 1) from_b += at * b.stride[d];
        }
        double sum = 0;
        for (int64_t k = 0; k < a.shape[last]; ++k) {
            sum += (double)load(&a, from_a + k * a.stride[last]) *
                   load(&b, from_b + k * b.stride[last - 1]);
        }
        sum *= alpha;
        if (bias && beta != 0) sum += beta * load(&c, offset_of(&c, i)); /* 0 * NaN is no bias */
        store(&to, offset_of(&to, i), (float)sum);
    }
    return diopiSuccess;
}

diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                     diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2) {
    (void)ctx;
    return product(out, input, mat2, NULL, 0, 1);
}

diopiError_t diopiBmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2) {
    (void)ctx;
    return product(out, input, mat2, NULL, 0, 1);
}

diopiError_t diopiAddmm(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat1,
                        diopiConstTensorHandle_t mat2, const diopiScalar_t* beta,
                        const diopiScalar_t* alpha) {
    (void)ctx;
    return product(out, mat1, mat2, input, scalar(beta), scalar(alpha));
}
