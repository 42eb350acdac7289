/* Yes or no for each element: comparisons of floats, and logic on what they return. */
#include "tensor.h"

typedef bool (*Test)(double, double);

static diopiError_t boolean(diopiConstTensorHandle_t handle, Tensor* tensor) {
    TRY(view_any(handle, tensor));
    if (tensor->dtype != diopi_dtype_bool) {
        return diopiSetLastError(diopiDtypeNotSupported, "type number %d; logic here is on bool",
                                 (int)tensor->dtype);
    }
    return diopiSuccess;
}

static void answer(const Tensor* to, int64_t i, bool value) {
    ((uint8_t*)to->data)[offset_of(to, i)] = value;
}

static diopiError_t compare(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            diopiConstTensorHandle_t other, Test test) {
    Tensor to, a, b;
    TRY(boolean(out, &to));
    TRY(view(input, &a));
    TRY(view(other, &b));
    TRY(expand(&a, &to));
    TRY(expand(&b, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        answer(&to, i, test(load(&a, offset_of(&a, i)), load(&b, offset_of(&b, i))));
    }
    return diopiSuccess;
}

static diopiError_t compare_number(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                   const diopiScalar_t* other, Test test) {
    Tensor to, a;
    TRY(boolean(out, &to));
    TRY(view(input, &a));
    TRY(expand(&a, &to));
    float number = (float)scalar(other); /* as wide as the elements */
    for (int64_t i = 0; i < to.numel; ++i) answer(&to, i, test(load(&a, offset_of(&a, i)), number));
    return diopiSuccess;
}

#define COMPARISON(NAME, OPERATOR)                                                                \
    static bool test_##NAME(double a, double b) { return a OPERATOR b; }                          \
    diopiError_t diopi##NAME(diopiContextHandle_t ctx, diopiTensorHandle_t out,                   \
                             diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {    \
        (void)ctx;                                                                                \
        return compare(out, input, other, test_##NAME);                                           \
    }                                                                                             \
    diopiError_t diopi##NAME##Scalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,           \
                                     diopiConstTensorHandle_t input, const diopiScalar_t* other) { \
        (void)ctx;                                                                                \
        return compare_number(out, input, other, test_##NAME);                                    \
    }

COMPARISON(Eq, ==)
COMPARISON(Ne, !=)
COMPARISON(Lt, <)
COMPARISON(Le, <=)
COMPARISON(Gt, >)
COMPARISON(Ge, >=)

static diopiError_t logic(diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t other, bool both) {
    Tensor to, a, b;
    TRY(boolean(out, &to));
    TRY(boolean(input, &a));
    TRY(boolean(other, &b));
    TRY(expand(&a, &to));
    TRY(expand(&b, &to));
    for (int64_t i = 0; i < to.numel; ++i) {
        bool left = load_index(&a, offset_of(&a, i)), right = load_index(&b, offset_of(&b, i));
        answer(&to, i, both ? left && right : left || right);
    }
    return diopiSuccess;
}

diopiError_t diopiBitwiseAnd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                             diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx;
    return logic(out, input, other, true);
}

diopiError_t diopiBitwiseOr(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx;
    return logic(out, input, other, false);
}
