/* Kernels that note what they were called with: for the tests of torch_dipu's C route. */
#define DIOPI_IMPLEMENTATION
#include <diopi.h>
#include <stdio.h>
#include <string.h>

static char seen[1024];
static int64_t apart; /* from a device address to the host's of the same byte */

DIOPI_API const char* noted(void) { return seen; }
DIOPI_API void set_apart(int64_t bytes) { apart = bytes; }

#define NOTE(...) snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), __VA_ARGS__)
#define BEGIN(NAME) (seen[0] = 0, NOTE("%s", NAME))

static float* floats(diopiConstTensorHandle_t th) {
    const void* data = NULL;
    diopiGetTensorDataConst(th, &data);
    return (float*)((char*)(uintptr_t)data + apart);
}
static int64_t count(diopiConstTensorHandle_t th) {
    int64_t numel = 0;
    diopiGetTensorNumel(th, &numel);
    return numel;
}
/* One element: of a vector, or of what is repeated to one. */
static float value(diopiConstTensorHandle_t th, int64_t i) {
    diopiSize_t stride;
    diopiGetTensorStride(th, &stride);
    return floats(th)[stride.len && stride.data[stride.len - 1] ? i : 0];
}
static bool is_float(diopiConstTensorHandle_t th) {
    diopiDtype_t dtype;
    diopiGetTensorDtype(th, &dtype);
    return dtype == diopi_dtype_float32;
}
static void note_scalar(const char* name, const diopiScalar_t* value) {
    if (!value) NOTE(" %s=none", name);
    else if (value->stype == diopi_dtype_float64) NOTE(" %s=%gf", name, value->fval);
    else NOTE(" %s=%lld", name, (long long)value->ival);
}
static void note_size(const char* name, diopiSize_t size) {
    NOTE(" %s=[", name);
    for (int64_t i = 0; i < size.len; ++i) NOTE(i ? ",%lld" : "%lld", (long long)size.data[i]);
    NOTE("]");
}

diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      const diopiScalar_t* alpha) {
    (void)ctx;
    if (!is_float(input)) return diopiSetLastError(diopiDtypeNotSupported, "only float32");
    BEGIN("diopiAdd");
    note_scalar("alpha", alpha);
    for (int64_t i = 0; i < count(out); ++i) {
        floats(out)[i] = value(input, i) + (float)alpha->ival * value(other, i);
    }
    return diopiSuccess;
}

diopiError_t diopiAddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other,
                            const diopiScalar_t* alpha) {
    (void)ctx;
    if (!is_float(input)) return diopiNoImplement;
    BEGIN("diopiAddScalar");
    note_scalar("other", other);
    note_scalar("alpha", alpha);
    for (int64_t i = 0; i < count(out); ++i) floats(out)[i] = floats(input)[i] + (float)other->fval;
    return diopiSuccess;
}

/* The only function of mul: in place. */
diopiError_t diopiMulInp(diopiContextHandle_t ctx, diopiTensorHandle_t input,
                         diopiConstTensorHandle_t other) {
    (void)ctx;
    BEGIN("diopiMulInp");
    for (int64_t i = 0; i < count(input); ++i) floats(input)[i] *= value(other, i);
    return diopiSuccess;
}

diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiSize_t dim) {
    (void)ctx, (void)input;
    BEGIN("diopiSum");
    note_size("dim", dim);
    for (int64_t i = 0; i < count(out); ++i) floats(out)[i] = 7;
    return diopiSuccess;
}

diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t* tensors, int64_t num_inputs, int64_t dim) {
    (void)ctx;
    BEGIN("diopiCat");
    NOTE(" n=%lld dim=%lld", (long long)num_inputs, (long long)dim);
    float* to = floats(out);
    for (int64_t n = 0; n < num_inputs; ++n) {
        memcpy(to, floats(tensors[n]), (size_t)count(tensors[n]) * 4);
        to += count(tensors[n]);
    }
    return diopiSuccess;
}

diopiError_t diopiGelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input, const char* approximate) {
    (void)ctx, (void)out, (void)input;
    BEGIN("diopiGelu");
    NOTE(" approximate=%s", approximate);
    return strcmp(approximate, "none") ? diopiForceFallbackToCPU
                                       : diopiSetLastError(diopiErrorOccurred, "the fuse is blown");
}

diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
                          diopiConstTensorHandle_t input) {
    (void)input;
    BEGIN("diopiNonzero");
    int64_t shape[] = {2, 1};
    diopiSize_t size = {shape, 2};
    diopiError_t status = diopiRequireTensor(ctx, out, &size, NULL, diopi_dtype_int64, diopi_device);
    if (status == diopiSuccess) {
        int64_t* found = (int64_t*)floats(*out);
        found[0] = 3;
        found[1] = 4;
    }
    return status;
}

diopiError_t diopiLayerNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,
                                    diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t bias, diopiConstTensorHandle_t mean,
                                    diopiConstTensorHandle_t rstd, diopiSize_t normalized_shape) {
    (void)ctx, (void)grad_output, (void)input, (void)bias, (void)mean, (void)rstd;
    BEGIN("diopiLayerNormBackward");
    note_size("shape", normalized_shape);
    NOTE(" %d%d%d weight=%d", grad_input != NULL, grad_weight != NULL, grad_bias != NULL, weight != NULL);
    return diopiSuccess;
}

diopiError_t diopi_uniform(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                           diopiConstTensorHandle_t input, double low, double high,
                           diopiGeneratorHandle_t generator) {
    uint64_t seed, offset;
    diopiStreamHandle_t stream;
    (void)input;
    BEGIN("diopi_uniform");
    NOTE(" %g..%g", low, high);
    diopiGetStream(ctx, &stream);
    diopiError_t status = diopiGeneratorGetSeedAndOffset(ctx, generator, &seed, &offset);
    for (int64_t i = 0; i < count(out); ++i) floats(out)[i] = (float)(seed % 1000);
    return status;
}

diopiError_t diopiNormalInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double mean,
                            double std, diopiGeneratorHandle_t generator) {
    (void)ctx, (void)generator;
    for (int64_t i = 0; i < count(inout); i++) floats(inout)[i] = (float)(mean + std);
    return diopiSuccess;
}

/* Two faults: behind the result, and behind memory that it requested. */
diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    (void)ctx, (void)input;
    for (int64_t i = 0; i <= count(out); ++i) floats(out)[i] = 1;
    return diopiSuccess;
}
diopiError_t diopiLog(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    diopiTensorHandle_t buffer;
    (void)input;
    for (int64_t i = 0; i < count(out); ++i) floats(out)[i] = 1;
    if (diopiRequireBuffer(ctx, &buffer, 40, diopi_device) != diopiSuccess) return diopiOutOfMemory;
    floats(buffer)[10] = 1;
    return diopiSuccess;
}
diopiError_t diopiSin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    diopiTensorHandle_t buffer;
    (void)out, (void)input;
    return diopiRequireBuffer(ctx, &buffer, (int64_t)1 << 50, diopi_device);
}
