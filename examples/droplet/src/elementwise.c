/* One result for each element: arithmetic, functions, and the gradients of functions. */
#include <math.h>

#include "tensor.h"

typedef float (*Unary)(float);
typedef float (*Binary)(float, float, float parameter);

static diopiError_t unary(diopiTensorHandle_t out, diopiConstTensorHandle_t input, Unary function) {
    Tensor to, from;
    TRY(view(out, &to));
    TRY(view(input, &from));
    TRY(expand(&from, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        store(&to, offset_of(&to, i), function(load(&from, offset_of(&from, i))));
    }
    return diopiSuccess;
}

static diopiError_t binary(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           diopiConstTensorHandle_t other, Binary function, float parameter) {
    Tensor to, a, b;
    TRY(view(out, &to));
    TRY(view(input, &a));
    TRY(view(other, &b));
    TRY(expand(&a, &to));
    TRY(expand(&b, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        float left = load(&a, offset_of(&a, i)), right = load(&b, offset_of(&b, i));
        store(&to, offset_of(&to, i), function(left, right, parameter));
    }
    return diopiSuccess;
}

static diopiError_t with_number(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                const diopiScalar_t* other, Binary function, float parameter) {
    Tensor to, a;
    TRY(view(out, &to));
    TRY(view(input, &a));
    TRY(expand(&a, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        float left = load(&a, offset_of(&a, i));
        store(&to, offset_of(&to, i), function(left, (float)scalar(other), parameter));
    }
    return diopiSuccess;
}

static float add(float a, float b, float alpha) { return a + alpha * b; }
static float mul(float a, float b, float unused) { return (void)unused, a * b; }
static float divide(float a, float b, float mode) {
    float quotient = a / b;
    if (mode == RoundModeTrunc) return truncf(quotient);
    return mode == RoundModeFloor ? floorf(quotient) : quotient;
}
static float power(float a, float b, float unused) {
    return (void)unused, (float)pow((double)a, (double)b);
}
static float minimum(float a, float b, float unused) {
    (void)unused;
    return a != a || a < b ? a : b;
}
static float maximum(float a, float b, float unused) {
    (void)unused;
    return a != a || a > b ? a : b; /* NaN has priority */
}

diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      const diopiScalar_t* alpha) {
    (void)ctx;
    return binary(out, input, other, add, (float)scalar(alpha));
}

diopiError_t diopiAddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other,
                            const diopiScalar_t* alpha) {
    (void)ctx;
    return with_number(out, input, other, add, (float)scalar(alpha));
}

diopiError_t diopiSub(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      const diopiScalar_t* alpha) {
    (void)ctx;
    return binary(out, input, other, add, -(float)scalar(alpha));
}

diopiError_t diopiMul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx;
    return binary(out, input, other, mul, 0);
}

diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other) {
    (void)ctx;
    return with_number(out, input, other, mul, 0);
}

diopiError_t diopiDiv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      diopiRoundMode_t rounding_mode) {
    (void)ctx;
    return binary(out, input, other, divide, (float)rounding_mode);
}

diopiError_t diopiDivScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other,
                            diopiRoundMode_t rounding_mode) {
    (void)ctx;
    return with_number(out, input, other, divide, (float)rounding_mode);
}

diopiError_t diopiSubScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other,
                            const diopiScalar_t* alpha) {
    (void)ctx;
    return with_number(out, input, other, add, -(float)scalar(alpha));
}

static float lerp(float a, float b, float weight) {
    return weight < 0.5f ? a + weight * (b - a) : b - (b - a) * (1 - weight);
}

diopiError_t diopiLerpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                             diopiConstTensorHandle_t input, diopiConstTensorHandle_t end,
                             const diopiScalar_t* weight) {
    (void)ctx;
    return binary(out, input, end, lerp, (float)scalar(weight));
}

diopiError_t diopiMaximum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx;
    return binary(out, input, other, maximum, 0);
}

diopiError_t diopiMinimum(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx;
    return binary(out, input, other, minimum, 0);
}

diopiError_t diopiPow(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, const diopiScalar_t* exponent) {
    (void)ctx;
    return with_number(out, input, exponent, power, 0);
}

diopiError_t diopiPowTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t exponent) {
    (void)ctx;
    return binary(out, input, exponent, power, 0);
}

/* Of three tensors: input + value * (a op b). */
typedef float (*Ternary)(float, float, float, float value);

static diopiError_t ternary(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            diopiConstTensorHandle_t first, diopiConstTensorHandle_t second,
                            Ternary function, float value) {
    Tensor to, x, a, b;
    TRY(view(out, &to));
    TRY(view(input, &x));
    TRY(view(first, &a));
    TRY(view(second, &b));
    TRY(expand(&x, &to));
    TRY(expand(&a, &to));
    TRY(expand(&b, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        float result = function(load(&x, offset_of(&x, i)), load(&a, offset_of(&a, i)),
                                load(&b, offset_of(&b, i)), value);
        store(&to, offset_of(&to, i), result);
    }
    return diopiSuccess;
}
static float addcmul(float x, float a, float b, float value) { return x + value * a * b; }
static float addcdiv(float x, float a, float b, float value) { return x + value * a / b; }

diopiError_t diopiAddcmul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
                          diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) {
    (void)ctx;
    return ternary(out, input, tensor1, tensor2, addcmul, (float)scalar(value));
}

diopiError_t diopiAddcdiv(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,
                          diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) {
    (void)ctx;
    return ternary(out, input, tensor1, tensor2, addcdiv, (float)scalar(value));
}

/* Functions of one variable: name of the op, and what it does to x. */
#define UNARY(NAME, VALUE)                                                      \
    static float value_##NAME(float x) { return (VALUE); }                      \
    diopiError_t diopi##NAME(diopiContextHandle_t ctx, diopiTensorHandle_t out, \
                             diopiConstTensorHandle_t input) {                  \
        (void)ctx;                                                              \
        return unary(out, input, value_##NAME);                                 \
    }

UNARY(Relu, x != x || x > 0 ? x : 0)
UNARY(Sigmoid, (float)(1 / (1 + exp(-(double)x))))
UNARY(Silu, (float)(x / (1 + exp(-(double)x))))
UNARY(Exp, (float)exp((double)x))
UNARY(Log, (float)log((double)x))
UNARY(Sqrt, sqrtf(x))
UNARY(Rsqrt, (float)(1 / sqrt((double)x)))
UNARY(Tanh, (float)tanh((double)x))
UNARY(Erf, (float)erf((double)x))
UNARY(Expm1, (float)expm1((double)x))
UNARY(Log1p, (float)log1p((double)x))
UNARY(Sin, (float)sin((double)x))
UNARY(Cos, (float)cos((double)x))
UNARY(Floor, floorf(x))
UNARY(Ceil, ceilf(x))
UNARY(Reciprocal, 1 / x)
UNARY(Neg, -x)
UNARY(Abs, fabsf(x))

static float gelu(float x) { return (float)(0.5 * x * erfc(-x * 0.70710678118654752440)); }

diopiError_t diopiGelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input, const char* approximate) {
    (void)ctx;
    if (strcmp(approximate, "none") != 0) {
        return diopiSetLastError(diopiNoImplement, "approximate=%s", approximate);
    }
    return unary(out, input, gelu);
}

/* Gradients: from the function's argument (x) or its result (y). */
static float sigmoid_backward(float grad, float y, float unused) {
    return (void)unused, (float)((double)grad * y * (1.0 - y));
}
static float tanh_backward(float grad, float y, float unused) {
    return (void)unused, (float)((double)grad * (1.0 - (double)y * y));
}
static float threshold_backward(float grad, float x, float threshold) {
    return x <= threshold ? 0 : grad;
}
static float gelu_backward(float grad, float x, float unused) {
    (void)unused;
    double below = 0.5 * erfc(-x * 0.70710678118654752440);
    double density = 0.39894228040143267794 * exp(-0.5 * (double)x * x);
    return (float)(grad * (below + x * density));
}

diopiError_t diopiSigmoidBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                  diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t output) {
    (void)ctx;
    return binary(grad_input, grad_output, output, sigmoid_backward, 0);
}

diopiError_t diopiTanhBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                               diopiConstTensorHandle_t grad_output,
                               diopiConstTensorHandle_t output) {
    (void)ctx;
    return binary(grad_input, grad_output, output, tanh_backward, 0);
}

diopiError_t diopiThresholdBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input,
                                    const diopiScalar_t* threshold) {
    (void)ctx;
    return binary(grad_input, grad_output, input, threshold_backward, (float)scalar(threshold));
}

diopiError_t diopiGeluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                               diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                               const char* approximate) {
    (void)ctx;
    if (strcmp(approximate, "none") != 0) {
        return diopiSetLastError(diopiNoImplement, "approximate=%s", approximate);
    }
    return binary(grad_input, grad_output, input, gelu_backward, 0);
}
