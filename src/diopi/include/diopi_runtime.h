/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime interface for implementations of the operator interface: types, tensors, memory, errors.
 *
 * C11 and C++17, no dependencies. The functions of the ops are in diopi.h.
 *
 * One translation unit of the library, and only one, contains
 *
 *     #define DIOPI_IMPLEMENTATION
 *     #include "diopi_runtime.h"
 *
 * which defines the functions below, with the two that the loader requires:
 * diopiAbiVersion and diopiSetRuntime. Nothing has to be linked.
 */
#ifndef DIOPI_RUNTIME_H
#define DIOPI_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a library built against an older header can not be called. */
#define DIOPI_ABI_VERSION 1u

#define DIOPI_API __attribute__((visibility("default")))

/* Opaque: query them by the functions below. A const tensor must not be written. */
typedef struct diopiContext* diopiContextHandle_t;
typedef struct diopiTensor* diopiTensorHandle_t;
typedef const struct diopiTensor* diopiConstTensorHandle_t;
typedef struct diopiGenerator* diopiGeneratorHandle_t;
typedef const struct diopiGenerator* diopiConstGeneratorHandle_t;
typedef void* diopiStreamHandle_t;
typedef int32_t diopiDeviceIndex_t;

typedef struct {
    const int64_t* data;
    int64_t len;
} diopiSize_t;

typedef enum {
    diopi_host = 0,
    diopi_device = 1
} diopiDevice_t;

typedef enum {
    diopi_dtype_int8 = 0,
    diopi_dtype_uint8 = 1,
    diopi_dtype_int16 = 2,
    diopi_dtype_uint16 = 3,
    diopi_dtype_int32 = 4,
    diopi_dtype_uint32 = 5,
    diopi_dtype_int64 = 6,
    diopi_dtype_uint64 = 7,
    diopi_dtype_float16 = 8,
    diopi_dtype_float32 = 9,
    diopi_dtype_float64 = 10,
    diopi_dtype_bool = 11,
    diopi_dtype_bfloat16 = 12,
    diopi_dtype_tfloat32 = 13,
    diopi_dtype_complex32 = 14,
    diopi_dtype_complex64 = 15,
    diopi_dtype_complex128 = 16,
    diopi_dtype_float8_e4m3fn = 17,
    diopi_dtype_float8_e5m2 = 18,
    diopi_dtype_unsupported = 255
} diopiDtype_t;

typedef enum {
    diopiSuccess = 0,
    diopiErrorOccurred = 1, /* any failure; diopiSetLastError gives the reason */
    /* arguments not supported: nothing was written, and the op takes its next route */
    diopiNoImplement = 2,
    diopiDtypeNotSupported = 3,
    diopiInvalidArgument = 4,
    diopiOutOfMemory = 5,
    diopiForceFallbackToCPU = 6 /* as diopiNoImplement */
} diopiError_t;

/* A number: stype selects its member (int64: ival, float64: fval, complex128: cval). */
typedef struct {
    diopiDtype_t stype;
    union {
        double fval;
        int64_t ival;
        double cval[2];
    };
} diopiScalar_t;

typedef enum {
    ReductionNone = 0,
    ReductionMean = 1,
    ReductionSum = 2
} diopiReduction_t;

typedef enum {
    RoundModeNone = 0,
    RoundModeTrunc = 1,
    RoundModeFloor = 2
} diopiRoundMode_t;

typedef enum {
    Undefined = 0,
    Contiguous = 1,
    ChannelsLast = 2,
    ChannelsLast3d = 3,
    Preserve = 4
} diopiMemoryFormat_t;

/* Tensors. Shapes and strides live as long as the call; strides count elements. */
diopiError_t diopiGetTensorData(diopiTensorHandle_t th, void** data);
diopiError_t diopiGetTensorDataConst(diopiConstTensorHandle_t th, const void** data);
diopiError_t diopiGetTensorShape(diopiConstTensorHandle_t th, diopiSize_t* size);
diopiError_t diopiGetTensorStride(diopiConstTensorHandle_t th, diopiSize_t* stride);
diopiError_t diopiGetTensorDtype(diopiConstTensorHandle_t th, diopiDtype_t* dtype);
diopiError_t diopiGetTensorDevice(diopiConstTensorHandle_t th, diopiDevice_t* device);
diopiError_t diopiGetTensorDeviceIndex(diopiConstTensorHandle_t th, diopiDeviceIndex_t* index);
diopiError_t diopiGetTensorNumel(diopiConstTensorHandle_t th, int64_t* numel);
diopiError_t diopiGetTensorElemSize(diopiConstTensorHandle_t th, int64_t* itemsize);
diopiError_t diopiGetTensorStoragePtr(diopiConstTensorHandle_t th, void** storage);
diopiError_t diopiGetTensorStorageOffset(diopiConstTensorHandle_t th, int64_t* offset);
diopiError_t diopiGetTensorStorageNbytes(diopiConstTensorHandle_t th, size_t* nbytes);

/* Memory for the duration of the call: it is freed when the function returns, except for tensors that
 * are handed out as results (diopiTensorHandle_t*). A null stride means contiguous. */
diopiError_t diopiRequireTensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor,
                                const diopiSize_t* size, const diopiSize_t* stride,
                                diopiDtype_t dtype, diopiDevice_t device);
diopiError_t diopiRequireBuffer(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor,
                                int64_t num_bytes, diopiDevice_t device);

/* The stream to launch on; null where the device has none. */
diopiError_t diopiGetStream(diopiContextHandle_t ctx, diopiStreamHandle_t* stream);
diopiError_t diopiGetCurrentDeviceIndex(diopiContextHandle_t ctx, diopiDeviceIndex_t* index);

/* Random numbers: either the state as bytes, or a seed and an offset to count from. */
diopiError_t diopiGeneratorGetState(diopiContextHandle_t ctx, diopiConstGeneratorHandle_t th,
                                    diopiTensorHandle_t* state);
diopiError_t diopiGeneratorSetState(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                    diopiConstTensorHandle_t state);
diopiError_t diopiGeneratorGetSeedAndOffset(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                            uint64_t* seed, uint64_t* offset);
diopiError_t diopiGeneratorSetSeedAndOffset(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                            uint64_t seed, uint64_t offset);

/* Errors: sets the message for the user, for the calling thread. Returns `code`. */
diopiError_t diopiSetLastError(diopiError_t code, const char* format, ...);
DIOPI_API const char* diopiGetLastErrorString(void);

/* Information about the library; optional. */
DIOPI_API const char* diopiGetVendorName(void);
DIOPI_API const char* diopiGetImplVersion(void);

/* The functions that the loader passes to the library, once, before the first call. */
typedef struct {
    uint32_t abi;
    uint32_t size; /* of this struct in the loader */
    diopiError_t (*require_tensor)(diopiContextHandle_t, diopiTensorHandle_t*, const diopiSize_t*,
                                   const diopiSize_t*, int32_t dtype, int32_t device);
    diopiError_t (*require_buffer)(diopiContextHandle_t, diopiTensorHandle_t*, int64_t,
                                   int32_t device);
    diopiError_t (*get_stream)(diopiContextHandle_t, diopiStreamHandle_t*);
    diopiError_t (*generator_get_state)(diopiContextHandle_t, diopiConstGeneratorHandle_t,
                                        diopiTensorHandle_t*);
    diopiError_t (*generator_set_state)(diopiContextHandle_t, diopiGeneratorHandle_t,
                                        diopiConstTensorHandle_t);
    diopiError_t (*generator_get_seed)(diopiContextHandle_t, diopiGeneratorHandle_t, uint64_t*,
                                       uint64_t*);
    diopiError_t (*generator_set_seed)(diopiContextHandle_t, diopiGeneratorHandle_t, uint64_t,
                                       uint64_t);
} diopiRuntime_t;

DIOPI_API uint32_t diopiAbiVersion(void);
DIOPI_API diopiError_t diopiSetRuntime(const diopiRuntime_t* runtime);

#if defined(DIOPI_IMPLEMENTATION) || defined(DIOPI_LOADER)

/* Filled in by the loader; DIOPI_ABI_VERSION covers their layout, too. */
struct diopiTensor {
    void* data;
    const int64_t* shape;
    const int64_t* stride;
    int64_t rank;
    int64_t numel;
    int64_t itemsize;
    void* storage;
    int64_t storage_offset;
    uint64_t storage_nbytes;
    int32_t dtype;
    int32_t device;
    int32_t device_index;
    int32_t reserved;
};

struct diopiContext {
    uint64_t id;
    int32_t device_index;
    int32_t reserved;
};

#endif

#ifdef DIOPI_IMPLEMENTATION

#include <stdarg.h>
#include <stdio.h>

static const diopiRuntime_t* diopi_runtime;

#ifdef __cplusplus
static thread_local char diopi_last_error[1024];
#else
static _Thread_local char diopi_last_error[1024];
#endif

uint32_t diopiAbiVersion(void) { return DIOPI_ABI_VERSION; }

diopiError_t diopiSetRuntime(const diopiRuntime_t* runtime) {
    if (runtime->abi != DIOPI_ABI_VERSION || runtime->size < sizeof(diopiRuntime_t)) {
        return diopiInvalidArgument;
    }
    diopi_runtime = runtime;
    return diopiSuccess;
}

diopiError_t diopiSetLastError(diopiError_t code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(diopi_last_error, sizeof(diopi_last_error), format, arguments);
    va_end(arguments);
    return code;
}

const char* diopiGetLastErrorString(void) { return diopi_last_error; }

#define DIOPI_GETTER(NAME, HANDLE, TYPE, VALUE)                                      \
    diopiError_t NAME(HANDLE th, TYPE* out) {                                        \
        if (!th || !out) {                                                           \
            return diopiSetLastError(diopiInvalidArgument, #NAME ": a null handle"); \
        }                                                                            \
        *out = (VALUE);                                                              \
        return diopiSuccess;                                                         \
    }

DIOPI_GETTER(diopiGetTensorData, diopiTensorHandle_t, void*, th->data)
DIOPI_GETTER(diopiGetTensorDataConst, diopiConstTensorHandle_t, const void*, th->data)
DIOPI_GETTER(diopiGetTensorDtype, diopiConstTensorHandle_t, diopiDtype_t, (diopiDtype_t)th->dtype)
DIOPI_GETTER(diopiGetTensorDevice, diopiConstTensorHandle_t, diopiDevice_t,
             (diopiDevice_t)th->device)
DIOPI_GETTER(diopiGetTensorDeviceIndex, diopiConstTensorHandle_t, diopiDeviceIndex_t,
             th->device_index)
DIOPI_GETTER(diopiGetTensorNumel, diopiConstTensorHandle_t, int64_t, th->numel)
DIOPI_GETTER(diopiGetTensorElemSize, diopiConstTensorHandle_t, int64_t, th->itemsize)
DIOPI_GETTER(diopiGetTensorStoragePtr, diopiConstTensorHandle_t, void*, th->storage)
DIOPI_GETTER(diopiGetTensorStorageOffset, diopiConstTensorHandle_t, int64_t, th->storage_offset)
DIOPI_GETTER(diopiGetTensorStorageNbytes, diopiConstTensorHandle_t, size_t,
             (size_t)th->storage_nbytes)
DIOPI_GETTER(diopiGetCurrentDeviceIndex, diopiContextHandle_t, diopiDeviceIndex_t,
             th->device_index)

diopiError_t diopiGetTensorShape(diopiConstTensorHandle_t th, diopiSize_t* size) {
    if (!th || !size) return diopiSetLastError(diopiInvalidArgument, "shape of a null handle");
    size->data = th->shape;
    size->len = th->rank;
    return diopiSuccess;
}

diopiError_t diopiGetTensorStride(diopiConstTensorHandle_t th, diopiSize_t* stride) {
    if (!th || !stride) return diopiSetLastError(diopiInvalidArgument, "stride of a null handle");
    stride->data = th->stride;
    stride->len = th->rank;
    return diopiSuccess;
}

diopiError_t diopiRequireTensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor,
                                const diopiSize_t* size, const diopiSize_t* stride,
                                diopiDtype_t dtype, diopiDevice_t device) {
    return diopi_runtime->require_tensor(ctx, tensor, size, stride, dtype, device);
}

diopiError_t diopiRequireBuffer(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor,
                                int64_t num_bytes, diopiDevice_t device) {
    return diopi_runtime->require_buffer(ctx, tensor, num_bytes, device);
}

diopiError_t diopiGetStream(diopiContextHandle_t ctx, diopiStreamHandle_t* stream) {
    return diopi_runtime->get_stream(ctx, stream);
}

diopiError_t diopiGeneratorGetState(diopiContextHandle_t ctx, diopiConstGeneratorHandle_t th,
                                    diopiTensorHandle_t* state) {
    return diopi_runtime->generator_get_state(ctx, th, state);
}

diopiError_t diopiGeneratorSetState(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                    diopiConstTensorHandle_t state) {
    return diopi_runtime->generator_set_state(ctx, th, state);
}

diopiError_t diopiGeneratorGetSeedAndOffset(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                            uint64_t* seed, uint64_t* offset) {
    return diopi_runtime->generator_get_seed(ctx, th, seed, offset);
}

diopiError_t diopiGeneratorSetSeedAndOffset(diopiContextHandle_t ctx, diopiGeneratorHandle_t th,
                                            uint64_t seed, uint64_t offset) {
    return diopi_runtime->generator_set_seed(ctx, th, seed, offset);
}

#endif /* DIOPI_IMPLEMENTATION */

#ifdef __cplusplus
}
#endif

#endif /* DIOPI_RUNTIME_H */
