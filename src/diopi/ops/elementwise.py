# SPDX-License-Identifier: Apache-2.0
"""One result per element: arithmetic, comparison, rounding, functions of one variable."""

from __future__ import annotations

from diopi.op import ALL, BOOL, COMPLEX, FLOATS, INTS, NUMBERS, REALS, op

FAMILY = "elementwise"

# fmt: off
# Exact: no rounding takes place, or the rounding is the result.
for name in "ceil floor trunc sign".split():
    op(name, FAMILY, kind="exact", dtypes=REALS, signed_zero=name != "sign")
op("abs", FAMILY, kind="exact", dtypes=NUMBERS, signed_zero=True)
op("neg", FAMILY, kind="exact", dtypes=NUMBERS, signed_zero=True)
op("positive", FAMILY, kind="exact", dtypes=NUMBERS)
op("round", FAMILY, kind="exact", dtypes=REALS, signed_zero=True)
op("round_decimals", FAMILY, aten="round.decimals", kind="elementwise", dtypes=FLOATS,
   opinfo="round.decimals_0 round.decimals_3 round.decimals_neg_3")
op("frac", FAMILY, kind="exact", dtypes=FLOATS)
op("sgn", FAMILY, kind="elementwise", dtypes=ALL)
op("signbit", FAMILY, kind="exact", dtypes=(*REALS, *BOOL))
op("copysign", FAMILY, aten="copysign.Tensor copysign.Scalar", kind="exact", dtypes=REALS,
   signed_zero=True)

# Predicates and logic.
for name in "eq ne lt le gt ge".split():
    kinds = ALL if name in ("eq", "ne") else (*REALS, *BOOL)
    op(name, FAMILY, aten=f"{name}.Tensor {name}.Scalar", kind="exact", dtypes=kinds)
for name in "isnan isinf isposinf isneginf".split():
    op(name, FAMILY, kind="exact", dtypes=REALS)
op("isfinite", FAMILY, kind="exact", dtypes=ALL)
op("equal", FAMILY, kind="exact", dtypes=ALL)
for name in "logical_and logical_or logical_xor logical_not".split():
    op(name, FAMILY, kind="exact", dtypes=ALL)
for name in "bitwise_and bitwise_or bitwise_xor".split():
    op(name, FAMILY, aten=f"{name}.Tensor {name}.Scalar {name}.Scalar_Tensor", kind="exact",
       dtypes=(*INTS, *BOOL))
for name in "bitwise_left_shift bitwise_right_shift".split():
    op(name, FAMILY, aten=f"{name}.Tensor {name}.Tensor_Scalar {name}.Scalar_Tensor", kind="exact",
       dtypes=INTS)
op("bitwise_not", FAMILY, kind="exact", dtypes=(*INTS, *BOOL))
for name in "maximum minimum fmax fmin".split():
    op(name, FAMILY, kind="exact", dtypes=(*REALS, *BOOL))
op("clamp", FAMILY, aten="clamp.Tensor clamp", kind="exact", dtypes=REALS)
for name in "clamp_min clamp_max".split():
    op(name, FAMILY, aten=f"{name}.Tensor {name}", kind="exact", dtypes=REALS, opinfo="")
op("where", FAMILY, aten="where.self", kind="exact", dtypes=ALL)
op("nan_to_num", FAMILY, kind="exact", dtypes=REALS)
op("heaviside", FAMILY, kind="exact", dtypes=REALS)
op("nextafter", FAMILY, kind="exact", dtypes=FLOATS[:2],
   doc="The next number of the dtype: the one op that means something else in float64.")
op("gcd", FAMILY, kind="exact", dtypes=INTS)
op("lcm", FAMILY, kind="exact", dtypes=INTS)

# Arithmetic: one rounding.
op("add", FAMILY, aten="add.Tensor add.Scalar", kind="elementwise", dtypes=ALL)
op("sub", FAMILY, aten="sub.Tensor sub.Scalar", kind="elementwise", dtypes=NUMBERS)
op("rsub", FAMILY, aten="rsub.Tensor rsub.Scalar", kind="elementwise", dtypes=NUMBERS)
op("mul", FAMILY, aten="mul.Tensor mul.Scalar", kind="elementwise", dtypes=ALL, signed_zero=True)
op("div", FAMILY, aten="div.Tensor_mode div.Scalar_mode div.Tensor div.Scalar", kind="elementwise",
   dtypes=NUMBERS, text="div(Tensor self, Tensor other, *, str? rounding_mode=None) -> Tensor",
   opinfo="div.no_rounding_mode div.trunc_rounding div.floor_rounding",
   doc="input / other; rounding_mode: None, trunc or floor.")
op("floor_divide", FAMILY, aten="floor_divide floor_divide.Scalar", kind="elementwise",
   dtypes=REALS)
op("remainder", FAMILY, aten="remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
   kind="elementwise", dtypes=REALS)
op("fmod", FAMILY, aten="fmod.Tensor fmod.Scalar", kind="elementwise", dtypes=REALS)
op("addcmul", FAMILY, kind="composite", dtypes=NUMBERS)
op("addcdiv", FAMILY, kind="composite", dtypes=(*FLOATS, *COMPLEX))
op("lerp", FAMILY, aten="lerp.Tensor lerp.Scalar", kind="composite", dtypes=(*FLOATS, *COMPLEX))
for name in "sqrt rsqrt reciprocal".split():  # integers become floating
    op(name, FAMILY, kind="elementwise", dtypes=ALL, signed_zero=name == "sqrt")
op("square", FAMILY, kind="elementwise", dtypes=NUMBERS)
op("hypot", FAMILY, kind="elementwise", dtypes=FLOATS)
op("deg2rad", FAMILY, kind="elementwise", dtypes=FLOATS)
op("rad2deg", FAMILY, kind="elementwise", dtypes=FLOATS)

# Functions of one variable that no hardware computes to the last bit.
TRANSCENDENTAL = """
sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p
sigmoid
"""
BACKWARDS = {name: f"{name}_backward" for name in ("tanh", "sigmoid", "logit")}
for name in TRANSCENDENTAL.split():
    op(name, FAMILY, kind="transcendental", dtypes=ALL, backward=BACKWARDS.get(name, ""))
for name in "erf erfc erfinv lgamma digamma i0".split():
    op(name, FAMILY, kind="transcendental", dtypes=(*REALS, *BOOL))
for name in "logit sinc".split():  # cancellation loses digits
    op(name, FAMILY, kind="composite", dtypes=(*REALS, *BOOL), backward=BACKWARDS.get(name, ""))
op("tanh_backward", FAMILY, kind="elementwise", dtypes=FLOATS, opinfo="tanh")
op("sigmoid_backward", FAMILY, kind="elementwise", dtypes=FLOATS, opinfo="sigmoid")
op("logit_backward", FAMILY, kind="elementwise", dtypes=FLOATS, opinfo="logit")
op("pow", FAMILY, aten="pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", kind="transcendental",
   dtypes=NUMBERS)
for name in "atan2 logaddexp logaddexp2 xlogy".split():
    aten = "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other" if name == "xlogy" else name
    op(name, FAMILY, aten=aten, kind="transcendental", dtypes=FLOATS)

# Complex numbers and types.
op("polar", FAMILY, kind="transcendental", dtypes=FLOATS[:2])
op("complex", FAMILY, kind="exact", dtypes=FLOATS[:2])
op("conj_physical", FAMILY, kind="exact", dtypes=ALL)
op("angle", FAMILY, kind="transcendental", dtypes=(*FLOATS, *COMPLEX))
