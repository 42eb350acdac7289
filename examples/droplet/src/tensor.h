/* A tensor for the kernels: any strides, float32 or bfloat16, read and written as float. */
#ifndef DROPLET_TENSOR_H
#define DROPLET_TENSOR_H

#include <string.h>

#include "chip.h"
#include "diopi.h"

#define MAX_RANK 8

typedef struct {
    char* data;
    int64_t rank;
    int64_t numel;
    int64_t shape[MAX_RANK];
    int64_t stride[MAX_RANK]; /* in elements; 0 where the tensor is repeated */
    diopiDtype_t dtype;
} Tensor;

/* Returns from the enclosing function on failure. */
#define TRY(CALL)                                  \
    do {                                           \
        diopiError_t tried = (CALL);               \
        if (tried != diopiSuccess) return tried;   \
    } while (0)

/* The view of a handle; only types that `load` and `store` support. */
diopiError_t view(diopiConstTensorHandle_t handle, Tensor* tensor);
/* The view of a handle of any type, for indices and conditions. */
diopiError_t view_any(diopiConstTensorHandle_t handle, Tensor* tensor);
/* The tensor repeated to the shape of another, by torch's rules. */
diopiError_t expand(Tensor* tensor, const Tensor* like);
/* A dimension counted from the end becomes one counted from the front. */
diopiError_t dimension(const Tensor* tensor, int64_t dim, int64_t* found);

double scalar(const diopiScalar_t* value);
int64_t load_index(const Tensor* tensor, int64_t offset);
int64_t offset_of(const Tensor* tensor, int64_t element); /* of the n-th element, in order */

static inline float load(const Tensor* tensor, int64_t offset) {
    if (tensor->dtype == diopi_dtype_float32) return ((const float*)tensor->data)[offset];
    uint32_t bits = (uint32_t)((const uint16_t*)tensor->data)[offset] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void store(const Tensor* tensor, int64_t offset, float value) {
    if (tensor->dtype == diopi_dtype_float32) {
        ((float*)tensor->data)[offset] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        bits = 0x7fc00000u; /* a NaN stays one: rounding could carry it to infinity */
    } else {
        bits += 0x7fffu + ((bits >> 16) & 1u); /* to the nearest, ties to even */
    }
    ((uint16_t*)tensor->data)[offset] = (uint16_t)(bits >> 16);
}

/* One row along a dimension: its start, and the distance of its elements. */
typedef struct {
    const Tensor* tensor;
    int64_t start, step;
} Row;

Row row_of(const Tensor* tensor, int64_t dim, int64_t index);
static inline double at(Row row, int64_t k) { return load(row.tensor, row.start + k * row.step); }
static inline void put(Row row, int64_t k, double value) {
    store(row.tensor, row.start + k * row.step, (float)value);
}

#endif
