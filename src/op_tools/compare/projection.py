"""Checks a product of matrices on its device by a random projection, and waits for nothing.

C = A B is multiplied by V, which has 8 random columns of +1 and -1: C V has to equal A (B V). Each
of A, B and C is read by a product with few columns. The check finds a large error in any one
element. It does not find an error of every element that is smaller than rounding may be; a sample
that the host judges in float64 does.

What an error-free device may differ by
---------------------------------------
Row i of C - A B is a vector e of N errors. V is drawn independently of e, so each of the 8
differences of a row, (C V - A B V)[i] = e V, has the variance |e|^2, and by Hoeffding's inequality
its tail is not heavier than that of a normal distribution, whatever the errors are. So it is enough
to bound |e|. In units of u, which is half the distance from 1 to the next number of a type, with
c = |row i of C|, ab = |row i of A| |B| and m = ab / sqrt(K), which is c if terms do not cancel:

  rounding the result     u_C sqrt(r) c, r = sum(4^exponent) / sum(C^2), between 1/4 and 1, as an
                          element x errs by half an ulp, u 2^exponent(x), at most. `r` is measured
                          in a sample of the rows. The error of the addend of addmm is rounded too.
  summation in C          K terms that are all equal, one after another, err by u_sum K / 3 c:
                          in each binade, every addition may err by half an ulp in one direction.
                          Terms that cancel leave an error of their largest partial sum, which is
                          u_sum sqrt(K / 12) ab in the worst smooth sequence (a sine), for a
                          kernel that sums one after another. All kernels sum in blocks; a quarter
                          of that is allowed, and 1 u_sum ab, which is what a random sequence needs.
  this check              u_sum (sqrt(N) c + sqrt(N) m): its sums over N terms of random sign.
  rounded factors         where the program allows TF32, u_TF32 2 (c + m), for A and B, and u_TF32 c
                          for this check, as it is a product too.
  narrow partial sums     where the program allows them, S = K / 256 parts, 16 at most, are rounded:
                          u_C sqrt(1 + S / 2) max(c, m).
  underflow               sqrt(N) (smallest normal number of C, and K of the smallest of a sum).

Their squares add up to s^2. With z = (C V - A B V) / s, E z^2 <= 1. Two figures are judged:

  rms      The mean q of z^2 over the rows, for each of the 8 columns. If errors of the rows are
           unrelated, q hardly differs between the columns; if rows are equal, q varies like a
           square of a normal number. A product is wrong if mean(q) - 3 std(q) > 1, which happens
           to an error-free device with all errors at their bounds once in 25 million products.
  largest  The greatest mean of the 8 z^2 of a row. By the tail of a sum of squares (Hsu, Kakade
           and Zhang 2012), a row exceeds 1 + 2 sqrt(t / 8) + t / 4 with probability exp(-t); t is
           ln(rows / 1e-9).

Rows with elements whose squares underflow (below 1e-18) are allowed to be as large as that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from op_tools.compare import precision
from op_tools.core import graph_capture
from op_tools.core.call import Call

COLUMNS = 8
SAMPLED = 64  # rows whose exponents are measured
FEW = 32  # rows or columns, below which the mean over rows is not judged
ALARM = 1e-9  # probability that a product of an error-free device exceeds the limit of rows
PIECE = 1 << 24  # elements that are widened at a time, where a device has no product that widens
TINY = 2.0**-62  # squares of float32 below it lose digits
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_UNIT = {  # half the distance from 1 to the next number
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}


@dataclass(frozen=True)
class Finding:
    """A product that is wrong."""

    label: str  # what of the call: "result", "gradient of the input", …
    rms: float
    largest: float
    limit: float  # of `largest`
    row: int  # with the largest error, among the rows of all matrices of a batch
    rows: int
    non_finite: int  # rows that are not finite, of finite factors

    @property
    def message(self) -> str:
        """One sentence."""
        if self.non_finite:
            text = f"{self.non_finite} of {self.rows} rows are not finite, of finite factors"
        elif self.largest > self.limit:
            text = (
                f"row {self.row} of {self.rows} differs by {self.largest:.3g} times what rounding "
                f"explains (limit {self.limit:.2g})"
            )
        else:
            text = f"all rows differ by {self.rms:.3g} times what rounding explains"
        return text if self.label == "result" else f"{self.label}: {text}"


class Reading:
    """Numbers of a device on their way to the host."""

    def __init__(self, values: Tensor) -> None:
        self._event: Any = None
        self._values = values
        if values.device.type == "cpu":
            return
        self._values = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._event = torch.Event(values.device)
        self._event.record(torch.accelerator.current_stream(values.device))

    def done(self) -> bool:
        """Whether the numbers are there."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[Any]:
        """The numbers; waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.tolist()


class Pending:
    """A check that was launched."""

    def __init__(self, parts: list[_Part]) -> None:
        self._labels = [(part.label, part.rows, part.columns) for part in parts]
        self._reading = Reading(torch.stack([_figures(part) for part in parts]))

    def done(self) -> bool:
        """Whether the verdict is there without waiting for the device."""
        return self._reading.done()

    def verdict(self) -> Finding | None:
        """What is wrong; None: nothing. Waits for the device."""
        for (label, rows, columns), figures in zip(self._labels, self._reading.read(), strict=True):
            mean, deviation, largest, row, bad = figures
            limit = _limit(rows)
            coarse = mean - 3 * deviation > 1 and min(rows, columns) >= FEW
            if bad or largest > limit**2 or coarse:
                found = math.sqrt(mean), math.sqrt(largest)
                return Finding(label, *found, limit, int(row), rows, int(bad))
        return None


def covers(call: Call) -> bool:
    """Whether an operator is a product; some of its calls may not be covered all the same."""
    return call.operator in _PRODUCTS


def start(call: Call, result: Any) -> Pending | None:
    """Launches the check of a call that was just made, on its stream; None: it is not covered.

    Covered are mm, matmul, linear, addmm, bmm, baddbmm and convolutions with at least 16 channels
    for each group, in the forward pass at both levels and in the backward pass at the aten level.
    """
    product = _PRODUCTS.get(call.operator)
    if product is None or not call.given:
        return None
    first = call.given[0]
    if first.dtype not in FLOATS or any(t.layout != torch.strided for t in call.given):
        return None
    if graph_capture.captures(first.device.type)():
        return None
    with torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunction():
        autocast = torch.is_autocast_enabled(first.device.type)
        with torch.autocast(first.device.type, enabled=False) if autocast else nullcontext():
            parts = product(call, result)
            return Pending(parts) if parts else None


# What a call computes.


@dataclass(frozen=True)
class _Errors:
    """What may be wrong in a product, in relative units."""

    rounding: float  # of the result
    summing: float
    factors: float  # 0: they are not rounded
    sums: float  # of partial sums; 0: they are not rounded
    tiny: float  # the smallest normal number of the result


@dataclass(frozen=True)
class _Part:
    """One product, projected. The last dimension of each tensor has 8 elements or one."""

    label: str
    left: Tensor  # C V
    right: Tensor  # A B V
    size: Tensor  # norms of the rows of C
    bound: Tensor  # norms of the rows of A, times that of B
    extra: Tensor | None  # norms of the rows of what was added to the product
    ratio: Tensor  # of the error of rounding, to that of rounding each element to its neighbour
    inner: int  # terms of a sum
    columns: int
    errors: _Errors
    transforms: bool = False  # kernels may compute it by Winograd's or Fourier's transforms

    @property
    def rows(self) -> int:
        return self.left.numel() // COLUMNS


def _limit(rows: int) -> float:
    t = math.log(max(rows, 1) / ALARM)
    return math.sqrt(1 + 2 * math.sqrt(t / COLUMNS) + 2 * t / COLUMNS)


def _figures(part: _Part) -> Tensor:
    """mean and deviation of q, largest mean of a row, that row, rows that are not finite."""
    errors, inner, columns = part.errors, part.inner, part.columns
    c, ab = part.size, part.bound
    m = ab / math.sqrt(inner)
    cancelled = math.sqrt(inner / 12) / 4 + (32 if part.transforms else 1)
    sums = (inner / 3 + math.sqrt(columns)) * c + math.sqrt(columns) * m
    # hypot: a square may underflow
    scale = torch.hypot(c * (errors.rounding * part.ratio.sqrt()), sums * errors.summing)
    scale = torch.hypot(scale, ab * (errors.summing * cancelled))
    if part.extra is not None:  # the product may be rounded before the addition
        scale = torch.hypot(scale, (c + part.extra) * errors.rounding)
    if errors.factors:
        scale = torch.hypot(scale, (3 * c + 2 * m) * errors.factors)
    if errors.sums:
        parts = min(16, inner // 256)
        narrow = errors.sums * math.sqrt(1 + parts / 2)
        scale = torch.hypot(scale, torch.maximum(c, m) * narrow)
    floor = errors.tiny + inner * torch.finfo(c.dtype).tiny
    scale = scale + math.sqrt(columns) * floor
    finite = part.right.isfinite().all(-1, keepdim=True)
    broken = part.left.isfinite().all(-1, keepdim=True).logical_not()
    z = torch.where(finite & ~broken, (part.left - part.right) / scale, 0.0)
    squares = z.square().reshape(-1, COLUMNS)
    q, worst = squares.mean(0), squares.mean(1).max(0)
    # an element of the product is not larger than `ab`
    lowest = torch.finfo(torch.float32).max if errors.tiny < 1e-10 else 65504.0
    bad = (broken & finite.all() & (ab + _or_zero(part.extra) < lowest)).sum()
    found = [q.mean(), q.std(), worst.values, worst.indices, bad]
    return torch.stack([one.to(torch.float32) for one in found])


def _or_zero(extra: Tensor | None) -> Tensor | float:
    return 0.0 if extra is None else extra


def _errors(call: Call, result: Tensor, convolution: bool = False) -> _Errors:
    """How exact a call's device may be."""
    own = call.given[0]
    allowed = precision.now(call)
    rounded = allowed.convolution if convolution else allowed.matmul
    factors = 0.0
    if own.dtype is torch.float32 and result.dtype is torch.float32 and rounded is not None:
        factors = rounded.roundoff
    kind = str(result.dtype).removeprefix("torch.")
    narrow = any(sums.format == kind for sums in allowed.sums) and not convolution
    unit = _UNIT[result.dtype]
    summing = _UNIT[torch.float64 if own.dtype is torch.float64 else torch.float32]
    tiny = torch.finfo(result.dtype).tiny
    if result.dtype is torch.float16:
        tiny = torch.finfo(result.dtype).smallest_normal * unit * 2  # no device flushes them
    return _Errors(unit, summing, factors, unit if narrow else 0.0, tiny)


def _argument(call: Call, place: int, *names: str, default: Any = None) -> Any:
    if len(call.args) > place:
        return call.args[place]
    return next((call.kwargs[name] for name in names if name in call.kwargs), default)


def _mm(call: Call, result: Any) -> list[_Part]:
    first, second = _argument(call, 0, "input", "self"), _argument(call, 1, "mat2", "other")
    return _product(call, first, second, result)


def _linear(call: Call, result: Any) -> list[_Part]:
    first, weight = _argument(call, 0, "input"), _argument(call, 1, "weight")
    bias = _argument(call, 2, "bias")
    if weight.dim() != 2:
        return []
    return _product(call, first, weight.t(), result, bias)


def _matmul(call: Call, result: Any) -> list[_Part]:
    first, second = _argument(call, 0, "input"), _argument(call, 1, "other")
    if first.dim() == 0 or second.dim() == 0 or result.dim() == 0:
        return []
    if first.dim() == 1:
        first, result = first[None], result.unsqueeze(-1 if second.dim() == 1 else -2)
    if second.dim() == 1:
        second, result = second[:, None], result.unsqueeze(-1)
    return _product(call, first, second, result)


def _addmm(call: Call, result: Any) -> list[_Part]:
    added, first = _argument(call, 0, "input", "self"), _argument(call, 1, "mat1", "batch1")
    second = _argument(call, 2, "mat2", "batch2")
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    if not isinstance(added, Tensor):
        return []
    if beta and added.untyped_storage()._cdata == result.untyped_storage()._cdata:
        return []  # in place: what was added is gone
    return _product(call, first, second, result, added if beta else None, alpha, beta)


def _product(
    call: Call,
    first: Any,
    second: Any,
    result: Any,
    added: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> list[_Part]:
    """alpha * first @ second + beta * added."""
    if not all(isinstance(one, Tensor) for one in (first, second, result)):
        return []
    if first.dtype != second.dtype or result.dtype not in FLOATS or not result.numel():
        return []
    inner, columns = second.shape[-2:]
    if not inner:
        return []
    errors = _errors(call, result)
    if result.dtype in (torch.float16, torch.bfloat16) and first.dtype is torch.float32:
        # autocast
        first, second = first.to(result.dtype), second.to(result.dtype)
        added = None if added is None else added.to(result.dtype)
    if second.dim() > 2:
        if first.shape[:-2] != second.shape[:-2]:
            return []
        if first.dim() > 3:
            second, first = second.flatten(0, -3), first.flatten(0, -3)
        ours = result.reshape(*first.shape[:-1], columns)
    else:
        first = first if first.dim() == 2 else first.reshape(-1, inner)
        ours = result.reshape(-1, columns)
    wide = torch.float64 if first.dtype is torch.float64 else torch.float32
    signs = _signs(columns, first)
    left = _times(ours, _signs_as(signs, ours.dtype), 1)
    inside = _times(second, signs, 1)
    right = _times(first, inside, 3)
    bound = _norms(first, -1) * _norms(second, (-2, -1))
    extra = None
    if alpha != 1:
        right, bound = right * alpha, bound * abs(alpha)
    if added is not None:
        held = added.to(wide)
        if held.dim() < 3 and left.dim() == 2 and result.dim() > 2 and held.dim() > 1:
            return []
        whole = held.shape[-1] == columns
        projected = held @ signs.to(wide) if whole else held * signs.to(wide).sum(0)
        right = right + beta * projected
        extra = _norms(held, -1) * (abs(beta) * (1 if whole else math.sqrt(columns)))
    return [
        _Part(
            "result", left, right, _norms(ours, -1), bound, extra, _ratio(ours), inner, columns,
            errors,
        )
    ]  # fmt: skip


# Convolutions. Each is the product of patches of an image and of filters, for each group.


@dataclass(frozen=True)
class _Shape:
    """How a convolution is made: what its backward pass is made by, too."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def __call__(self, image: Tensor, filters: Tensor, groups: int) -> Tensor:
        return torch.convolution(
            image, filters, None, self.stride, self.padding, self.dilation, False,
            [0] * len(self.stride), groups,
        )  # fmt: skip

    def transposed(self, image: Tensor, filters: Tensor, groups: int, size: list[int]) -> Tensor:
        """The gradient of an image of this size."""
        given = zip(image.shape[2:], size, filters.shape[2:], strict=True)
        left = [
            there - ((here - 1) * stride - 2 * padding + dilation * (width - 1) + 1)
            for (here, there, width), stride, padding, dilation in zip(
                given, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        return torch.convolution(
            image, filters, None, self.stride, self.padding, self.dilation, True, left, groups
        )


def _conv(call: Call, result: Any) -> list[_Part]:
    """torch.nn.functional.conv1d, conv2d and conv3d."""
    image, filters = _argument(call, 0, "input"), _argument(call, 1, "weight")
    stride, dilation = (
        _argument(call, place, name, default=1) for place, name in ((3, "stride"), (5, "dilation"))
    )
    padding, groups = (
        _argument(call, 4, "padding", default=0),
        _argument(call, 6, "groups", default=1),
    )
    if isinstance(padding, str):
        return []
    shape = _shape(filters, stride, padding, dilation, groups)
    return _convolved(call, image, filters, _argument(call, 2, "bias"), shape, result)


def _convolution(call: Call, result: Any) -> list[_Part]:
    """aten.convolution."""
    image, filters, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    if transposed:
        return []
    shape = _shape(filters, stride, padding, dilation, groups)
    return _convolved(call, image, filters, bias, shape, result)


def _shape(filters: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> _Shape:
    def listed(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * (filters.dim() - 2) if len(values) == 1 else values

    return _Shape(listed(stride), listed(padding), listed(dilation), groups)


def _convolved(
    call: Call, image: Tensor, filters: Tensor, bias: Tensor | None, shape: _Shape, result: Tensor
) -> list[_Part]:
    groups, places = shape.groups, filters.dim() - 2
    columns, inner = len(filters) // groups, filters[0].numel()
    if not _fits(image, filters, result, columns, inner) or image.dim() != places + 2:
        return []
    errors = _errors(call, result, convolution=True)
    image, filters = (_narrowed(one, result) for one in (image, filters))
    signs = _signs(columns, filters)
    left = _projected(result, groups, _signs_as(signs, result.dtype))
    flat = filters.reshape(groups, columns, inner).transpose(1, 2)
    inside = _times(flat, signs, 1)  # groups, inner, 8
    skinny = inside.transpose(1, 2).reshape(groups * COLUMNS, *filters.shape[1:])
    right = _by_parts(image, skinny, lambda x, w: shape(x, w, groups))
    right = right.view(len(image), groups, COLUMNS, -1).transpose(2, 3)
    ones = torch.ones_like(skinny[:groups, :1])
    patches = shape(_energy(image, groups), ones, groups).flatten(2).amax(2)
    bound = patches.clamp_min(0).sqrt()[..., None] * _norms(flat, (-2, -1))[:, 0]
    extra = None
    if bias is not None:
        held = _narrowed(bias, result).to(left.dtype).view(groups, 1, columns)
        right = right + held @ signs.to(left.dtype)
        extra = _norms(held, -1)
    return [_conv_part("result", left, right, result, groups, bound, extra, inner, columns, errors)]


def _conv_part(
    label: str,
    left: Tensor,
    right: Tensor,
    result: Tensor,
    groups: int,
    bound: Tensor,
    extra: Tensor | None,
    inner: int,
    columns: int,
    errors: _Errors,
) -> _Part:
    grouped = result.reshape(len(result), groups, columns, -1)
    size = _norms(grouped, 2).transpose(2, 3)
    ratio = _ratio(grouped[0].transpose(1, 2).reshape(-1, columns))
    return _Part(
        label, left, right, size, bound[..., None], extra, ratio, inner, columns, errors, True
    )


def _convolution_backward(call: Call, result: Any) -> list[_Part]:
    """The gradients of an image and of filters."""
    flown, image, filters, _, stride, padding, dilation, transposed, _, groups = call.args[:10]
    if transposed:
        return []
    shape = _shape(filters, stride, padding, dilation, groups)
    parts = []
    if result[0] is not None:
        parts += _image_gradient(call, flown, image, filters, shape, result[0])
    if result[1] is not None:
        parts += _filter_gradient(call, flown, image, filters, shape, result[1])
    return parts


def _image_gradient(
    call: Call, flown: Tensor, image: Tensor, filters: Tensor, shape: _Shape, result: Tensor
) -> list[_Part]:
    groups, columns = shape.groups, filters.shape[1]
    inner = filters.numel() // columns // groups
    if not _fits(flown, filters, result, columns, inner):
        return []
    signs = _signs(columns, filters)
    left = _projected(result, groups, _signs_as(signs, result.dtype))
    flat = filters.flatten(2).transpose(1, 2)  # output channels, places, columns
    inside = _times(flat.reshape(-1, columns), signs, 1).view(*flat.shape[:2], COLUMNS)
    skinny = inside.transpose(1, 2).reshape(len(filters), COLUMNS, *filters.shape[2:])
    size = list(image.shape[2:])
    right = _by_parts(flown, skinny, lambda x, w: shape.transposed(x, w, groups, size))
    right = right.view(len(image), groups, COLUMNS, -1).transpose(2, 3)
    ones = torch.ones_like(skinny[:groups, :1])
    patches = shape.transposed(_energy(flown, groups), ones, groups, size).flatten(2).amax(2)
    by_group = _norms(filters.reshape(groups, -1), 1)[:, 0]
    bound = patches.clamp_min(0).sqrt() * by_group
    errors = _errors(call, result, convolution=True)
    label = "gradient of the input"
    bound = bound[..., None]
    return [_conv_part(label, left, right, result, groups, bound, None, inner, columns, errors)]


def _filter_gradient(
    call: Call, flown: Tensor, image: Tensor, filters: Tensor, shape: _Shape, result: Tensor
) -> list[_Part]:
    groups = shape.groups
    columns, inner = len(filters) // groups, flown.numel() // flown.shape[1]
    if not _fits(image, flown, result, columns, inner):
        return []
    signs = _signs(columns, flown)
    grouped = result.reshape(groups, columns, -1).transpose(1, 2)
    left = _times(grouped, _signs_as(signs, result.dtype), 1)
    wide = left.dtype
    skinny = _projected(flown, groups, signs).transpose(2, 3)
    skinny = skinny.reshape(len(flown), groups * COLUMNS, *flown.shape[2:])
    empty = skinny.new_empty(groups * COLUMNS, *filters.shape[1:])
    right = torch.zeros_like(empty)
    for at, some in _chunks(image):
        right += torch.ops.aten.convolution_backward(
            skinny[at : at + len(some)], some.to(wide), empty, None, shape.stride, shape.padding,
            shape.dilation, False, [0] * len(shape.stride), groups, [False, True, False],
        )[1]  # fmt: skip
    right = right.view(groups, COLUMNS, -1).transpose(1, 2)
    channels = _norms(image.transpose(0, 1).flatten(1), 1).view(groups, -1, 1)
    rows = channels.expand(-1, -1, math.prod(filters.shape[2:])).reshape(groups, -1, 1)
    of_flown = _norms(flown.transpose(0, 1).reshape(groups, -1), 1)
    errors = _errors(call, result, convolution=True)
    factor = precision.now(call).convolution
    if factor is not None:  # the projected gradient has more digits than are left of it
        errors = replace(errors, factors=max(errors.factors, factor.roundoff))
    return [
        _Part(
            "gradient of the weight", left, right, _norms(grouped, -1), rows * of_flown[:, None],
            None, _ratio(grouped), inner, columns, errors, True,
        )
    ]  # fmt: skip


def _fits(first: Tensor, second: Tensor, result: Tensor, columns: int, inner: int) -> bool:
    """Whether a convolution is much larger than one with 8 channels in each group."""
    plain = result.dtype in FLOATS and first.dtype == second.dtype
    return plain and columns >= 2 * COLUMNS and inner > 0 and bool(result.numel())


def _narrowed(tensor: Tensor, result: Tensor) -> Tensor:
    """As autocast does with a factor."""
    narrow = result.dtype in (torch.float16, torch.bfloat16) and tensor.dtype is torch.float32
    return tensor.to(result.dtype) if narrow else tensor


def _projected(image: Tensor, groups: int, signs: Tensor) -> Tensor:
    """Channels of each group times the signs: images, groups, places, 8."""
    places = image.reshape(len(image) * groups, image.shape[1] // groups, -1).transpose(1, 2)
    return _times(places, signs, 1).view(len(image), groups, -1, COLUMNS)


def _chunks(image: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Some images at a time, if they are to be widened."""
    step = max(1, PIECE * len(image) // max(1, image.numel()))
    for at in range(0, len(image), step):
        yield at, image[at : at + step]


def _by_parts(
    image: Tensor, filters: Tensor, convolve: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """A convolution of a wide type. The filters of a narrow image are split into three, each of
    which has no more digits than TF32 leaves.
    """
    pieces = [filters]
    if image.dtype not in (torch.float32, torch.float64):
        first = filters.bfloat16().float()
        second = (filters - first).bfloat16().float()
        pieces = [first, second, filters - first - second]
    found = []
    for _, some in _chunks(image):
        some = some.to(filters.dtype)
        found.append(sum((convolve(some, each) for each in pieces[1:]), convolve(some, pieces[0])))
    return torch.cat(found)


def _energy(image: Tensor, groups: int) -> Tensor:
    """Sums of squares over the channels of each group."""
    grouped = image.reshape(len(image), groups, -1, *image.shape[2:])
    return _norms(grouped, 2).squeeze(2).square()


# Products with few columns, and norms.


def _times(many: Tensor, few: Tensor, pieces: int) -> Tensor:
    """`many @ few` in float32 (of float64, in float64). `pieces`: what `few` is split into, as many
    as its digits need in the type of `many`; one, if it has no more digits than that type.
    """
    if many.dtype in (torch.float32, torch.float64):
        return torch.matmul(many, few.to(many.dtype))
    if _widens(many):
        return _widening(many, few, pieces)
    few = few.float()
    flat = many.numel() // max(1, many.shape[-2]) if many.dim() == 2 else many[0].numel()
    if many.numel() <= PIECE:
        return torch.matmul(many.float(), few)
    step = max(1, PIECE // flat)
    shared = few.dim() == 2
    return torch.cat(
        [
            torch.matmul(
                many[at : at + step].float(),
                few if shared else few[at : at + step],
            )
            for at in range(0, len(many), step)
        ]
    )


def _widening(many: Tensor, few: Tensor, pieces: int) -> Tensor:
    """By the product of narrow factors that sums and returns float32."""
    scale: Tensor | None = None
    if pieces > 1:
        if many.dtype is torch.float16:  # its range is short
            scale = torch.exp2(14 - few.abs().amax().clamp_min(TINY).log2().ceil())
            few = few * scale
        parts = []
        for _ in range(pieces):
            parts.append(few.to(many.dtype))
            few = few - parts[-1].to(few.dtype)
        few = torch.cat(parts, -1)
    few = few.to(many.dtype)
    if many.dim() == 2:
        found = torch.mm(many, few, out_dtype=torch.float32)
    else:
        few = few if few.dim() == 3 else few.expand(len(many), -1, -1)
        found = torch.bmm(many, few, out_dtype=torch.float32)
    if pieces > 1:
        found = found.unflatten(-1, (pieces, COLUMNS)).sum(-2)
    return found if scale is None else found / scale


_widening_devices: dict[tuple[str, torch.dtype], bool] = {}


def _widens(many: Tensor) -> bool:
    """Whether a device has products of narrow factors with results in float32."""
    key = many.device.type, many.dtype
    known = _widening_devices.get(key)
    if known is None:
        try:
            one = torch.ones(16, 16, dtype=many.dtype, device=many.device)
            torch.mm(one, one, out_dtype=torch.float32)
            torch.bmm(one[None], one[None], out_dtype=torch.float32)
            known = True
        except (RuntimeError, TypeError, NotImplementedError):
            known = False
        _widening_devices[key] = known
    return known


def _norms(tensor: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Norms over dimensions, which stay with one element, and are not smaller than squares need."""
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    found: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=wide)
    every = (dims,) if isinstance(dims, int) else dims
    count = math.prod(tensor.shape[dim] for dim in every)
    return found.clamp_min(TINY * math.sqrt(count))


def _ratio(result: Tensor) -> Tensor:
    """sum(4^exponent) / sum(x^2) of a row, on average over a sample of rows."""
    flat = result.reshape(-1, result.shape[-1]) if result.dim() > 2 else result
    step = max(1, len(flat) // SAMPLED)
    some = flat[_random.randrange(step) :: step][:SAMPLED].to(torch.float32)
    below = torch.exp2(some.abs().log2().floor())
    whole = some.square().sum(-1)
    ratios = below.square().sum(-1) / whole
    usable = ratios.isfinite() & (whole > 1e-30)
    found = torch.where(usable, ratios, 1.0).mean()
    return found.clamp(0.25, 1.0)


# Random signs, which are the program's generators' none.

_random = random.Random(0x5EED)
_pools: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _signs(count: int, like: Tensor) -> Tensor:
    """`count` rows of 8 signs on a tensor's device, in its type: another part of a pool each time.

    A pool is uploaded when it is used first, and when more rows than it has are wanted.
    """
    key = like.device, like.dtype
    pool = _pools.get(key)
    if pool is None or len(pool) < 2 * count:
        generator = torch.Generator(device="cpu").manual_seed(_random.getrandbits(60))
        size = 1 << max(14, (2 * count - 1).bit_length())
        drawn = torch.randint(
            0, 2, (size, COLUMNS), generator=generator, device="cpu", dtype=torch.int8
        )
        pool = _pools[key] = (drawn * 2 - 1).to(like.dtype).to(like.device)
    at = _random.randrange(len(pool) - count)
    return pool[at : at + count]


def _signs_as(signs: Tensor, dtype: torch.dtype) -> Tensor:
    return signs if signs.dtype is dtype else signs.to(dtype)


_Maker = Callable[[Call, Any], list[_Part]]
_PRODUCTS: dict[str, _Maker] = {
    "mm": _mm,
    "bmm": _mm,
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
