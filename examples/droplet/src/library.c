/* The library itself: its name, the functions for the loader, and views of tensors. */
#define DIOPI_IMPLEMENTATION
#include "tensor.h"

const char* diopiGetVendorName(void) { return "droplet"; }
const char* diopiGetImplVersion(void) { return "0.1"; }

diopiError_t view_any(diopiConstTensorHandle_t handle, Tensor* tensor) {
    diopiSize_t shape, stride;
    const void* data;
    TRY(diopiGetTensorShape(handle, &shape));
    TRY(diopiGetTensorStride(handle, &stride));
    TRY(diopiGetTensorDataConst(handle, &data));
    TRY(diopiGetTensorNumel(handle, &tensor->numel));
    TRY(diopiGetTensorDtype(handle, &tensor->dtype));
    if (shape.len > MAX_RANK) {
        return diopiSetLastError(diopiNoImplement, "%d dimensions; at most %d", (int)shape.len,
                                 MAX_RANK);
    }
    tensor->data = chip_memory(data);
    tensor->rank = shape.len;
    for (int64_t d = 0; d < shape.len; ++d) {
        tensor->shape[d] = shape.data[d];
        tensor->stride[d] = stride.data[d];
    }
    return diopiSuccess;
}

diopiError_t view(diopiConstTensorHandle_t handle, Tensor* tensor) {
    TRY(view_any(handle, tensor));
    if (tensor->dtype != diopi_dtype_float32 && tensor->dtype != diopi_dtype_bfloat16) {
        return diopiSetLastError(diopiDtypeNotSupported,
                                 "type number %d; this chip has float32 and bfloat16",
                                 (int)tensor->dtype);
    }
    return diopiSuccess;
}

diopiError_t expand(Tensor* tensor, const Tensor* like) {
    Tensor found = *like;
    int64_t ahead = like->rank - tensor->rank;
    for (int64_t d = 0; d < like->rank; ++d) {
        int64_t own = d - ahead;
        int64_t size = own < 0 ? 1 : tensor->shape[own];
        if (ahead < 0 || (size != 1 && size != like->shape[d])) {
            return diopiSetLastError(diopiInvalidArgument, "the shapes do not broadcast");
        }
        found.stride[d] = size == 1 ? 0 : tensor->stride[own];
    }
    found.data = tensor->data;
    found.dtype = tensor->dtype;
    *tensor = found;
    return diopiSuccess;
}

diopiError_t dimension(const Tensor* tensor, int64_t dim, int64_t* found) {
    int64_t rank = tensor->rank ? tensor->rank : 1; /* a number counts as one row */
    *found = dim < 0 ? dim + rank : dim;
    if (*found < 0 || *found >= rank) {
        return diopiSetLastError(diopiInvalidArgument, "no dimension %d", (int)dim);
    }
    return diopiSuccess;
}

double scalar(const diopiScalar_t* value) {
    return value->stype == diopi_dtype_float64 ? value->fval : (double)value->ival;
}

int64_t load_index(const Tensor* tensor, int64_t offset) {
    switch (tensor->dtype) {
        case diopi_dtype_int64: return ((const int64_t*)tensor->data)[offset];
        case diopi_dtype_int32: return ((const int32_t*)tensor->data)[offset];
        case diopi_dtype_bool: return ((const uint8_t*)tensor->data)[offset] != 0;
        default: return -1;
    }
}

int64_t offset_of(const Tensor* tensor, int64_t element) {
    int64_t offset = 0;
    for (int64_t d = tensor->rank - 1; d >= 0; --d) {
        offset += element % tensor->shape[d] * tensor->stride[d];
        element /= tensor->shape[d];
    }
    return offset;
}
