# SPDX-License-Identifier: Apache-2.0
"""Defects of Triton's interpreter, fixed while ditorch is active. Read from triton 3.8 and 3.9.

Each fix is skipped where the interpreter of another version has no such name.

- A number in Python is a float32 scalar inside a kernel, as a compiled kernel sees it. The
  interpreter passes Python's float, which has no `to`.
- The functions of libdevice compute, by torch on the CPU. The interpreter has none of them.
- A dtype that is passed to another kernel function has `value`, as a constexpr has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from deeplink.after_import import call_after_import
from deeplink.errors import DeeplinkError
from ditorch.patches import Patches, twin

_LIBDEVICE = "triton.language.extra.libdevice"
_OF_CUDA = "triton.language.extra.cuda.libdevice"
_NAMES = {  # libdevice's name -> torch's, where they differ
    "fabs": "abs", "rint": "round", "nearbyint": "round", "pow": "pow", "powi": "pow",
    "fmax": "fmax", "fmin": "fmin", "tgamma": "gamma", "isnan": "isnan", "isinf": "isinf",
    "finite": "isfinite", "fast_exp": "exp", "fast_log": "log", "fast_sin": "sin",
    "fast_cos": "cos", "fast_tan": "tan", "fast_pow": "pow", "fast_tanh": "tanh",
    "ddiv_rn": "div", "div_rn": "div", "fdiv_rn": "div", "fast_divide": "div",
    "fast_fdivide": "div",
    "dmul_rn": "mul", "fmul_rn": "mul", "dadd_rn": "add", "fadd_rn": "add", "dsqrt_rn": "sqrt",
    "sqrt_rn": "sqrt", "fsqrt_rn": "sqrt", "rsqrt_rn": "rsqrt", "drcp_rn": "reciprocal",
    "frcp_rn": "reciprocal", "rcp_rn": "reciprocal", "cyl_bessel_i0": "i0",
}  # fmt: skip
_SAME = """
abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1
floor fmod hypot lgamma log log10 log1p log2 nextafter remainder rsqrt signbit sin sinh sqrt tan
tanh trunc
""".split()
FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType(
    {name: getattr(torch, name) for name in _SAME}
    | {name: getattr(torch, ours) for name, ours in _NAMES.items() if hasattr(torch, ours)}
    | {
        "tgamma": lambda x: torch.where(x > 0, torch.lgamma(x).exp(), math.nan),
        "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
        "exp10": lambda x: torch.pow(10, x),
        "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
        "normcdf": torch.special.ndtr,
        "round": lambda x: x.sign() * (x.abs() + 0.5).floor(),  # halves away from zero, as in C
        "j0": torch.special.bessel_j0,
        "j1": torch.special.bessel_j1,
    }
)


def apply(patches: Patches) -> None:
    """Fix each module once it is imported."""
    for name, fix in (
        ("triton.runtime.interpreter", _fix_interpreter),
        (_LIBDEVICE, _fix_stubs),
        (_OF_CUDA, _fix_library),
    ):
        patches.later(call_after_import(name, lambda module, fix=fix: fix(patches, module)))  # type: ignore[misc]


def _fix_interpreter(patches: Patches, module: ModuleType) -> None:
    language = module.tl
    if hasattr(module, "_implicit_cvt"):
        convert = twin(module._implicit_cvt)

        def implicit_cvt(arg: Any) -> Any:
            if isinstance(arg, float):
                data = module.np.array([arg], dtype=module.np.float32)
                handle = module.TensorHandle(data, language.float32)
                return language.tensor(handle, language.float32)
            return convert(arg)

        patches.replace(module, "_implicit_cvt", implicit_cvt)
    if hasattr(module, "InterpreterBuilder"):
        patches.replace(
            module.InterpreterBuilder,
            "create_extern_elementwise",
            lambda self, name, path, symbol, arguments, kind, pure: _call(
                module, symbol, arguments
            ),
        )
    dtype = sys.modules["triton.language.core"].dtype  # triton.language is not complete yet
    if not hasattr(dtype, "value"):
        patches.set(dtype, "value", property(lambda self: self))


def _call(module: ModuleType, symbol: str, arguments: list[Any]) -> Any:
    """Compute a function of libdevice, by its symbol, of the interpreter's values."""
    name = symbol.removeprefix("__nv_")
    names = [name, name.removesuffix("f"), name.removesuffix("d")]
    function = next((FUNCTIONS[one] for one in names if one in FUNCTIONS), None)
    if function is None:
        raise DeeplinkError(
            f"Triton's interpreter has no function {symbol} of CUDA's libdevice.",
            "write it with the functions of triton.language.math, or run on a device with Triton.",
        )
    values = [torch.from_numpy(module.np.ascontiguousarray(one.data)) for one in arguments]
    result = function(*values)
    language = module.tl
    if result.dtype is torch.bool:
        return module.TensorHandle(result.to(torch.int32).numpy(), language.int32)
    shape = module.np.broadcast_shapes(*(one.data.shape for one in arguments))
    return module.TensorHandle(result.numpy().reshape(shape), arguments[0].dtype.scalar)


def _with_semantic(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        interpreter = sys.modules["triton.runtime.interpreter"]
        return function(*args, **{**kwargs, "_semantic": interpreter.interpreter_semantic})

    return call


def _functions(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


def _fix_library(patches: Patches, module: ModuleType) -> None:
    """Let the functions for CUDA run outside of Triton's compiler."""
    for name, function in _functions(module).items():
        patches.set(module, name, _with_semantic(function))


def _fix_stubs(patches: Patches, module: ModuleType) -> None:
    """Let the functions without a body call those for CUDA."""

    def calling(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(sys.modules[_OF_CUDA], name)(*args, **kwargs)

        return call

    for name, function in _functions(module).items():
        if callable(function):
            patches.replace(module, name, calling(name))
