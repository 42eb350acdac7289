/* Kernels with faults in their memory, for the memory check to find. */
#include "tensor.h"

const DipuRuntime* dipu_runtime(void);

/* Writes one element past its result. */
diopiError_t diopiAsin(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input) {
    (void)ctx, (void)input;
    Tensor to;
    TRY(view(out, &to));
    for (int64_t i = 0; i <= to.numel; ++i) ((float*)to.data)[i] = 1;
    return diopiSuccess;
}

/* Takes memory from the chip and never frees it. */
diopiError_t diopiAcos(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input) {
    (void)ctx, (void)out, (void)input;
    void* lost;
    return dipu_runtime()->memory_allocate(0, 4096, &lost) ? diopiErrorOccurred : diopiSuccess;
}

/* Gives memory back to the chip that is not its own: it is freed again when the call is over. */
diopiError_t diopiAtan(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input) {
    (void)out, (void)input;
    diopiTensorHandle_t buffer;
    void* memory;
    TRY(diopiRequireBuffer(ctx, &buffer, (int64_t)64 << 20, diopi_device));
    TRY(diopiGetTensorData(buffer, &memory));
    dipu_runtime()->memory_free(0, memory);
    return diopiSuccess;
}
