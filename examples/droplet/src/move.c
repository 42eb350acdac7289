/* Moving elements: rows of a table, concatenation, selection. */
#include "tensor.h"

diopiError_t diopiEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t weight, diopiConstTensorHandle_t indices,
                            int64_t padding_idx, bool scale_grad_byfreq, bool sparse) {
    (void)ctx, (void)padding_idx, (void)scale_grad_byfreq, (void)sparse; /* of the gradient */
    Tensor to, table, wanted;
    TRY(view(out, &to));
    TRY(view(weight, &table));
    TRY(view_any(indices, &wanted));
    int64_t width = table.shape[1];
    for (int64_t i = 0; i < wanted.numel; ++i) {
        int64_t row = load_index(&wanted, offset_of(&wanted, i));
        if (row < 0 || row >= table.shape[0]) {
            return diopiSetLastError(diopiInvalidArgument, "row %lld of a table of %lld",
                                     (long long)row, (long long)table.shape[0]);
        }
        for (int64_t k = 0; k < width; ++k) {
            float value = load(&table, row * table.stride[0] + k * table.stride[1]);
            store(&to, offset_of(&to, i * width + k), value);
        }
    }
    return diopiSuccess;
}

diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t* tensors, int64_t num_inputs, int64_t dim) {
    (void)ctx;
    Tensor to, from;
    TRY(view(out, &to));
    TRY(dimension(&to, dim, &dim));
    int64_t start = 0;
    for (int64_t n = 0; n < num_inputs; ++n) {
        TRY(view(tensors[n], &from));
        if (from.numel == 0) continue;
        Tensor part = to; /* the piece of `to` that this input fills */
        memcpy(part.shape, from.shape, sizeof part.shape);
        for (int64_t i = 0; i < from.numel; ++i) {
            int64_t offset = offset_of(&part, i) + start * to.stride[dim];
            store(&to, offset, load(&from, offset_of(&from, i)));
        }
        start += from.shape[dim];
    }
    return diopiSuccess;
}

diopiError_t diopiWhere(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                        diopiConstTensorHandle_t condition, diopiConstTensorHandle_t input,
                        diopiConstTensorHandle_t other) {
    (void)ctx;
    Tensor to, chosen, a, b;
    TRY(view(out, &to));
    TRY(view_any(condition, &chosen));
    TRY(view(input, &a));
    TRY(view(other, &b));
    TRY(expand(&chosen, &to));
    TRY(expand(&a, &to));
    TRY(expand(&b, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        bool first = load_index(&chosen, offset_of(&chosen, i)) != 0;
        float value = first ? load(&a, offset_of(&a, i)) : load(&b, offset_of(&b, i));
        store(&to, offset_of(&to, i), value);
    }
    return diopiSuccess;
}

/* One element of any type with the value of a number; false for an unsupported type. */
static bool number_as(diopiDtype_t dtype, const diopiScalar_t* value, void* to, size_t* bytes) {
    double real = scalar(value);
    int64_t whole = value->stype == diopi_dtype_float64 ? (int64_t)real : value->ival;
    Tensor one = {.data = to, .dtype = dtype};
    switch (dtype) {
        case diopi_dtype_float32: return store(&one, 0, (float)real), *bytes = 4, true;
        case diopi_dtype_bfloat16: return store(&one, 0, (float)real), *bytes = 2, true;
        case diopi_dtype_float64: return memcpy(to, &real, 8), *bytes = 8, true;
        case diopi_dtype_int64: return memcpy(to, &whole, 8), *bytes = 8, true;
        case diopi_dtype_int32: return memcpy(to, &(int32_t){(int32_t)whole}, 4), *bytes = 4, true;
        case diopi_dtype_bool: return *(uint8_t*)to = real != 0, *bytes = 1, true;
        default: return false;
    }
}

diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input,
                       const diopiScalar_t* value) {
    (void)ctx;
    Tensor to;
    char element[8];
    size_t bytes;
    TRY(view_any(input, &to));
    if (value->stype == diopi_dtype_complex128 || !number_as(to.dtype, value, element, &bytes)) {
        return diopiSetLastError(diopiDtypeNotSupported, "type number %d", (int)to.dtype);
    }
    for (int64_t i = 0; i < to.numel; ++i) {
        memcpy(to.data + offset_of(&to, i) * (int64_t)bytes, element, bytes);
    }
    return diopiSuccess;
}

diopiError_t diopi_zero(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                        diopiConstTensorHandle_t input) {
    (void)input;
    diopiScalar_t nothing = {.stype = diopi_dtype_int64, .ival = 0};
    return diopiFill(ctx, out, &nothing);
}

/* The number is unknown before the call: the kernel allocates the result. */
diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
                          diopiConstTensorHandle_t input) {
    Tensor from;
    void* memory;
    TRY(view(input, &from));
    int64_t found = 0, row = 0;
    for (int64_t i = 0; i < from.numel; ++i) found += load(&from, offset_of(&from, i)) != 0;
    int64_t shape[2] = {found, from.rank};
    diopiSize_t size = {shape, 2};
    TRY(diopiRequireTensor(ctx, out, &size, NULL, diopi_dtype_int64, diopi_device));
    TRY(diopiGetTensorData(*out, &memory));
    int64_t* positions = chip_memory(memory);
    for (int64_t i = 0; i < from.numel; ++i) {
        if (load(&from, offset_of(&from, i)) == 0) continue;
        int64_t rest = i;
        for (int64_t d = from.rank - 1; d >= 0; --d) {
            positions[row * from.rank + d] = rest % from.shape[d];
            rest /= from.shape[d];
        }
        ++row;
    }
    return diopiSuccess;
}
