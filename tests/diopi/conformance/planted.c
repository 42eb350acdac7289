/* Kernels with one fault each, in place of droplet's correct ones (compiled as correct_diopiExp, ...). */
#include <math.h>
#include <unistd.h>

#include "tensor.h"

const DipuRuntime* dipu_runtime(void);

#define CORRECT(NAME)                                                                             \
    diopiError_t correct_diopi##NAME(diopiContextHandle_t ctx, diopiTensorHandle_t out,           \
                                     diopiConstTensorHandle_t input)
#define FAULTY(NAME)                                                                              \
    CORRECT(NAME);                                                                                \
    diopiError_t diopi##NAME(diopiContextHandle_t ctx, diopiTensorHandle_t out,                   \
                             diopiConstTensorHandle_t input)

/* Writes 4 bytes past its result. */
FAULTY(Exp) {
    Tensor to;
    TRY(correct_diopiExp(ctx, out, input));
    TRY(view(out, &to));
    ((float*)to.data)[to.numel] = 7;
    return diopiSuccess;
}

/* Ignores the strides of its result. */
FAULTY(Ceil) {
    (void)ctx;
    Tensor to, from;
    TRY(view(out, &to));
    TRY(view(input, &from));
    for (int64_t i = 0; i < to.numel; ++i)
        ((float*)to.data)[i] = ceilf(load(&from, offset_of(&from, i)));
    return diopiSuccess;
}

/* Crashes for ranks above 2. */
FAULTY(Neg) {
    diopiSize_t shape;
    TRY(diopiGetTensorShape(input, &shape));
    if (shape.len > 2) *(volatile int*)8 = 1;
    return correct_diopiNeg(ctx, out, input);
}

/* Takes 4096 bytes of the chip at each call and never gives them back. */
FAULTY(Abs) {
    void* lost;
    if (dipu_runtime()->memory_allocate(0, 4096, &lost)) return diopiErrorOccurred;
    return correct_diopiAbs(ctx, out, input);
}

/* Hangs for 400 elements: the samples of sin have as many, those of cos have not. */
FAULTY(Cos) {
    int64_t count;
    TRY(diopiGetTensorNumel(input, &count));
    if (count == 400) sleep(3600);
    return correct_diopiCos(ctx, out, input);
}

/* Wrong by a factor for negative numbers. */
FAULTY(Sin) {
    Tensor to, from;
    TRY(correct_diopiSin(ctx, out, input));
    TRY(view(out, &to));
    TRY(view(input, &from));
    for (int64_t i = 0; i < to.numel; ++i) {
        float value = load(&to, offset_of(&to, i));
        if (load(&from, offset_of(&from, i)) < 0) store(&to, offset_of(&to, i), value * 1.25f);
    }
    return diopiSuccess;
}

/* Clears its result before it reads its input: wrong where they are one tensor. */
FAULTY(Log) {
    Tensor to;
    TRY(view(out, &to));
    for (int64_t i = 0; i < to.numel; ++i) store(&to, offset_of(&to, i), 0);
    return correct_diopiLog(ctx, out, input);
}
