# SPDX-License-Identifier: Apache-2.0
"""Comparison of two results: one record per leaf. Pure; it decides and prints nothing.

Results are nested tuples, lists, dicts, namedtuples and dataclasses of tensors and plain values.
Tensors of any device are compared on the CPU, floating types in float64, integers exactly.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Kind = Literal["values", "shape", "dtype", "structure", "value"]
Array = NDArray[Any]

# (rtol, atol) of each floating type, as in torch.testing.assert_close. torch has no tolerances for
# the 8-bit types: theirs is one step of the mantissa.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.complex32: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float8_e4m3fn: (0.125, 2.0**-9),
    torch.float8_e5m2: (0.25, 2.0**-16),
}
EXACT = (0.0, 0.0)  # integers and bools

_SEVERITY: dict[str, int] = {"value": 0, "values": 0, "dtype": 1, "shape": 2, "structure": 3}


@dataclass(frozen=True)
class Difference:
    """The difference of one leaf from its expected value; `close` when it is within the tolerance.

    `max_abs`, `max_rel` and `max_ulp` are over the pairs where both are finite; `max_ulp` is None
    where it has no meaning. `index`, `result` and `expected` are of the worst element.
    """

    path: str
    kind: Kind
    close: bool
    message: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    count: int = 0
    mismatched: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int | None = None
    nan_mismatched: int = 0
    inf_mismatched: int = 0
    index: tuple[int, ...] | None = None
    result: object = None
    expected: object = None


@dataclass(frozen=True)
class _Rules:
    """The tolerances of a comparison; None selects the default of the leaf's type."""

    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_dtype: bool

    def of(self, *dtypes: torch.dtype) -> tuple[float, float]:
        """Return (rtol, atol) for a pair of types: the looser of the two."""
        pairs = [TOLERANCES.get(dtype, EXACT) for dtype in dtypes]
        rtol = max(pair[0] for pair in pairs) if self.rtol is None else self.rtol
        atol = max(pair[1] for pair in pairs) if self.atol is None else self.atol
        return rtol, atol


def compare(
    result: object,
    expected: object,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    check_dtype: bool = True,
) -> list[Difference]:
    """Compare two results and return one record per leaf.

    Close means |result - expected| <= atol + rtol * |expected|. A tolerance of None is the default
    of
    the leaf's dtype; bools are always compared exactly.
    """
    return list(_walk(result, expected, "", _Rules(rtol, atol, equal_nan, check_dtype)))


def all_close(rows: Iterable[Difference]) -> bool:
    """Whether every leaf is close."""
    return all(row.close for row in rows)


def worst(rows: Iterable[Difference]) -> Difference | None:
    """Return the row to show first: not close, then the graver kind, then the larger error."""
    return max(rows, key=_gravity, default=None)


def _gravity(row: Difference) -> tuple[bool, int, bool, float]:
    masks = row.nan_mismatched + row.inf_mismatched > 0
    return not row.close, _SEVERITY[row.kind], masks, row.max_abs


# Walk both containers in parallel, down to pairs of leaves.


def _walk(result: object, expected: object, path: str, rules: _Rules) -> Iterator[Difference]:
    result, expected = _plain(result), _plain(expected)
    shapes = _container(result), _container(expected)
    if shapes[0] != shapes[1]:
        yield _structure(path, f"{_describe(result)} against {_describe(expected)}")
    elif isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor):
        yield _tensors(result, expected, path, rules)
    elif shapes[0] == "leaf":
        yield _values(result, expected, path, rules)
    else:
        names = _field_names(expected) or _field_names(result)
        yield from _children(_parts(result, names), _parts(expected, names), path, rules)


def _children(
    result: dict[str, object], expected: dict[str, object], path: str, rules: _Rules
) -> Iterator[Difference]:
    for step in [*expected, *(step for step in result if step not in expected)]:
        if step not in result:
            yield _structure(path + step, "missing from the result")
        elif step not in expected:
            yield _structure(path + step, "in the result, but not expected")
    for step, value in expected.items():
        if step in result:
            yield from _walk(result[step], value, path + step, rules)


def _plain(value: object) -> object:
    """Convert an array to a tensor; return any other value unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Tensor) and value.is_nested:
        return list(value.unbind())
    return value


def _container(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, (list, tuple)):
        return "sequence"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dataclass"
    return "leaf"


def _parts(value: object, names: dict[int, str]) -> dict[str, object]:
    """The children of a container by the step that leads to each: `[0]`, `['key']`, `.field`."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {names.get(i, f"[{i}]"): item for i, item in enumerate(value)}
    assert dataclasses.is_dataclass(value)  # by _container
    return {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}


def _field_names(value: object) -> dict[int, str]:
    """Map positions to field names, for a namedtuple and torch.return_types; else empty."""
    names = getattr(value, "_fields", None)
    if names is None and hasattr(value, "n_sequence_fields"):
        names = getattr(type(value), "__match_args__", ())
    return {i: f".{name}" for i, name in enumerate(names or ())}


def _structure(path: str, message: str) -> Difference:
    return Difference(path, "structure", False, message)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor of {_name(value.dtype)} {list(value.shape)}"
    if isinstance(value, (list, tuple, Mapping)):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# Plain values.


def _values(result: object, expected: object, path: str, rules: _Rules) -> Difference:
    numbers = (int, float, complex)
    if (
        isinstance(result, numbers)
        and isinstance(expected, numbers)
        and not isinstance(result, bool)
        and not isinstance(expected, bool)
    ):
        return _numbers(result, expected, path, rules)
    try:
        same = result is expected or (
            isinstance(result, bool) == isinstance(expected, bool) and bool(result == expected)
        )
    # a foreign `==` may raise anything; then the values count as different
    except Exception as error:
        message = f"cannot be compared: {type(error).__name__}: {error}"
        return Difference(path, "value", False, message, result=result, expected=expected)
    message = "equal" if same else f"{_describe(result)} against {_describe(expected)}"
    return Difference(path, "value", same, message, result=result, expected=expected)


def _numbers(
    result: int | float | complex, expected: int | float | complex, path: str, rules: _Rules
) -> Difference:
    if isinstance(result, int) and isinstance(expected, int):
        rtol, atol = rules.of(torch.int64)
        gap: float = abs(result - expected)
        close = result == expected or gap <= atol + rtol * abs(expected)
    else:
        rtol, atol = rules.of(torch.float64)
        nans = result != result, expected != expected
        gap = 0.0 if result == expected or any(nans) else abs(result - expected)
        near = math.isfinite(gap) and gap <= atol + rtol * abs(expected)
        close = (all(nans) and rules.equal_nan) if any(nans) else result == expected or near
    message = "close" if close else f"{result!r} against {expected!r}"
    row = Difference(path, "value", close, message, result=result, expected=expected, count=1)
    relative = gap / abs(expected) if expected and gap else math.inf if gap else 0.0
    return dataclasses.replace(
        row, mismatched=int(not close), max_abs=float(gap), max_rel=float(relative)
    )


# Tensors.


def _tensors(result: torch.Tensor, expected: torch.Tensor, path: str, rules: _Rules) -> Difference:
    dtype, shape = _name(expected.dtype), tuple(expected.shape)
    if result.shape != expected.shape:
        message = f"shape {list(result.shape)} against {list(shape)}"
        return Difference(path, "shape", False, message, dtype, shape, expected.numel())
    if result.is_meta or expected.is_meta:
        row = Difference(path, "values", True, "no values (meta): shape and dtype only")
    else:
        row = _measure(_host(result), _host(expected), path, rules)
    row = dataclasses.replace(row, dtype=dtype, shape=shape, count=expected.numel())
    if rules.check_dtype and result.dtype != expected.dtype:
        message = f"dtype {_name(result.dtype)} against {dtype}; {row.message}"
        row = dataclasses.replace(row, kind="dtype", close=False, message=message)
    return row


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A plain strided tensor on the CPU with the same values."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg().contiguous()


def _measure(result: torch.Tensor, expected: torch.Tensor, path: str, rules: _Rules) -> Difference:
    if result.numel() == 0:
        return Difference(path, "values", True, "empty")
    rtol, atol = rules.of(result.dtype, expected.dtype)
    if torch.bool in (result.dtype, expected.dtype):
        rtol, atol = EXACT
    inexact = any(t.is_floating_point() or t.is_complex() for t in (result, expected))
    a, b = _array(result, inexact), _array(expected, inexact)
    with np.errstate(all="ignore"):  # nan and inf are valid data here
        gap = np.abs(a - b) if inexact else _integer_gap(a, b)
        nan_a, nan_b = _isnan(a, inexact), _isnan(b, inexact)
        finite = np.isfinite(a) & np.isfinite(b)
        ok = (a == b) | (finite & (gap <= atol + rtol * np.abs(b.astype(_wide(b)))))
        if rules.equal_nan:
            ok |= nan_a & nan_b
        nan_bad = nan_a != nan_b
        inf_bad = ~ok & ~finite & ~nan_a & ~nan_b
        size = np.where(finite, gap, 0)
        ratio = np.where(size > 0, size / np.abs(b.astype(_wide(b))), 0.0)
    position = _worst_position(ok, nan_bad, inf_bad, size)
    mismatched = int(np.count_nonzero(~ok))
    row = Difference(
        path,
        "values",
        mismatched == 0,
        "",
        mismatched=mismatched,
        max_abs=float(size.max()),
        max_rel=float(ratio.max()),
        max_ulp=_max_ulp(result, expected, finite),
        nan_mismatched=int(np.count_nonzero(nan_bad)),
        inf_mismatched=int(np.count_nonzero(inf_bad)),
        index=tuple(int(i) for i in np.unravel_index(position, result.shape)),
        result=a.reshape(-1)[position].item(),
        expected=b.reshape(-1)[position].item(),
    )
    return dataclasses.replace(row, message=_message(row, result.numel(), rtol, atol))


def _array(tensor: torch.Tensor, inexact: bool) -> Array:
    if tensor.is_complex():
        return tensor.to(torch.complex128).numpy()
    if inexact:
        return tensor.to(torch.float64).numpy()
    return (tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor).numpy()


def _wide(array: Array) -> type:
    return np.complex128 if array.dtype.kind == "c" else np.float64


def _isnan(array: Array, inexact: bool) -> Array:
    return np.isnan(array) if inexact else np.zeros(array.shape, dtype=bool)


def _integer_gap(a: Array, b: Array) -> Array:
    """|a - b| of integers, exact: subtraction modulo 2**64, the larger one first."""
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    return np.where(a > b, x - y, y - x)


def _worst_position(ok: Array, nan_bad: Array, inf_bad: Array, size: Array) -> int:
    """Return the flat index of a nan on one side only, else of an inf,
    else of the largest error beyond the tolerance.
    """
    for mask in (nan_bad, inf_bad):
        if mask.any():
            return int(np.argmax(mask))
    if ok.all():
        return int(np.argmax(size))
    return int(np.argmax(np.where(ok, -1.0, size.astype(np.float64))))


def _max_ulp(result: torch.Tensor, expected: torch.Tensor, finite: Array) -> int | None:
    """Return the largest number of representable steps between two finite values of one type."""
    if result.dtype != expected.dtype or not (result.is_floating_point() or result.is_complex()):
        return None
    if result.is_complex():
        result, expected = torch.view_as_real(result), torch.view_as_real(expected)
        finite = np.stack([finite, finite], axis=-1)
    sign_a, a = _sign_and_steps(result)
    sign_b, b = _sign_and_steps(expected)
    apart = np.where(sign_a == sign_b, np.maximum(a, b) - np.minimum(a, b), a + b)
    return int(np.where(finite, apart, np.uint64(0)).max())


_BITS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sign_and_steps(tensor: torch.Tensor) -> tuple[Array, Array]:
    """Split values into sign and distance from zero in representable steps
    (the bits below the sign).
    """
    width = tensor.element_size()
    bits = tensor.contiguous().view(_BITS[width]).numpy().view(f"u{width}").astype(np.uint64)
    top = np.uint64(1 << (8 * width - 1))
    return (bits & top) != 0, bits & (top - np.uint64(1))


def _message(row: Difference, count: int, rtol: float, atol: float) -> str:
    if row.close:
        return "equal" if row.max_abs == 0 else f"close, largest error {row.max_abs:.3g}"
    parts = [f"{row.mismatched} of {count} not close (rtol {rtol:g}, atol {atol:g})"]
    if row.nan_mismatched:
        parts.append(f"{row.nan_mismatched} nan on one side only")
    if row.inf_mismatched:
        parts.append(f"{row.inf_mismatched} inf on one side only")
    parts.append(f"largest error {row.max_abs:.3g}, relative {row.max_rel:.3g}")
    if row.max_ulp is not None:
        parts.append(f"{row.max_ulp} ulp")
    parts.append(f"at {list(row.index or ())}: {row.result!r} against {row.expected!r}")
    return ", ".join(parts)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
