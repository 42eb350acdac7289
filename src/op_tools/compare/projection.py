# SPDX-License-Identifier: Apache-2.0
"""Checks a product of matrices on its device by a random projection, without waiting.

C = A B is multiplied by V, which has 8 random columns of +1 and -1: C V has to equal A (B V). Each
of A, B and C is read by a product with few columns. The check finds a large error in any one
element. It does not find an error of every element that is smaller than rounding may be; a sample
that the host judges in float64 does.

What an error-free device may differ by
---------------------------------------
Row i of C - A B is a vector e of N errors. V is random and independent of e, so each of the 8
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
                          u_C sqrt(1 + S / 2) max(c, m). Of gradients of convolutions in float16,
                          torch's own kernels of the CPU round S parts: one for each place of a
                          filter, or for each image.
  underflow               sqrt(N) (smallest normal number of C, and K of the smallest of a sum).

Their squares add up to s^2. With z = (C V - A B V) / s, E z^2 <= 1. Two metrics are judged:

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
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deeplink.i18n import _
from op_tools.compare import precision
from op_tools.compare.eligibility import argument
from op_tools.compare.inputs import Transfer, stream_of, upload
from op_tools.core import graph_capture
from op_tools.core.call import Call
from op_tools.tensors import finite

COLUMNS = 8
BATCH = 32  # checks that are launched together
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
Tag = TypeVar("Tag")


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
            text = _(
                "{non_finite} of {rows} {rows:row|rows} {non_finite:is|are} not finite, "
                "of finite factors"
            )
        elif self.largest > self.limit:
            text = _(
                "row {row} of {rows} differs by {largest:.3g} times what rounding explains "
                "(limit {limit:.2g})"
            )
        else:
            text = _("all rows differ by {rms:.3g} times what rounding explains")
        text = text.format(**vars(self))
        if self.label != "result":
            text = _("{label}: {text}").format(label=self.label, text=text)
        return text


class Reading:
    """Numbers of a device that are copied to the host."""

    def __init__(self, values: Tensor) -> None:
        self._transfer = Transfer(is_late=True)
        self._values = self._transfer.copy(values)
        self._transfer.launched()

    def done(self) -> bool:
        """Whether the copy is complete."""
        return self._transfer.is_complete()

    def read(self) -> list[Any]:
        """The numbers; waits for the device."""
        self._transfer.wait()
        return self._values.tolist()


class Pending:
    """The check of a call: its products are projected, and judged by `launch` with others."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts: list[_Part] = parts
        self._metrics: list[tuple[str, int, int, Reading, int]] = []

    def done(self) -> bool:
        """Whether the verdict is available without waiting for the device."""
        launch([self])
        return all(reading.done() for _, _, _, reading, _ in self._metrics)

    def verdict(self) -> Finding | None:
        """The wrong product; None: there is none. Waits for the device."""
        launch([self])
        for label, rows, columns, reading, at in self._metrics:
            mean, deviation, largest, row, bad = reading.read()[at]
            limit = _limit(rows)
            coarse = mean - 3 * deviation > 1 and min(rows, columns) >= FEW
            if bad or largest > limit**2 or coarse:
                found = math.sqrt(mean), math.sqrt(largest)
                return Finding(label, *found, limit, int(row), rows, int(bad))
        return None


def launch(pending: Sequence[Pending]) -> None:
    """Compute the metrics of checks, those of products of one shape together, and copy them to the
    host, on the current stream: kernels of each check alone would take longer than its product.
    """
    groups: dict[Hashable, list[tuple[Pending, _Part]]] = {}
    for check in pending:
        for part in check._parts:
            groups.setdefault(part.kind, []).append((check, part))
        check._parts = []
    for members in groups.values():
        parts = [part for _, part in members]
        with _quiet(parts[0].left.device.type):
            reading = Reading(_metrics(parts))
        for at, (check, part) in enumerate(members):
            check._metrics.append((part.label, part.rows, part.columns, reading, at))


class Checks(Generic[Tag]):
    """Checks of calls' whole results, by numbers that their device computes.

    BATCH calls are read together, when the device has computed them; nothing waits for it. `note`
    is called with the tag of each call, its wrong product, and its numbers.
    """

    def __init__(self, note: Callable[[Tag, Finding | None, list[float]], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._added: list[tuple[Tag, Pending | None, Sequence[Tensor]]] = []
        self._launched: deque[tuple[list[tuple[Tag, Pending | None, int]], Reading | None]]
        self._launched = deque()

    def add(self, tag: Tag, product: Pending | None, numbers: Sequence[Tensor] = ()) -> None:
        """Add a call. `numbers`: tensors of float32, of one dimension."""
        with self._lock:
            self._added.append((tag, product, numbers))

    def advance(self, *, at_once: bool = False, wait: bool = False) -> None:
        """Launch the pending checks if they fill a batch, and call `note` for those that are read.

        `at_once`: launch them in any case; `wait`: and wait for all.
        """
        with self._lock:
            if self._added and (at_once or wait or len(self._added) >= BATCH):
                self._launch()
            while self._launched and (wait or self._is_read()):
                calls, reading = self._launched.popleft()
                numbers = iter(() if reading is None else reading.read())
                for tag, product, count in calls:
                    finding = None if product is None else product.verdict()
                    self._note(tag, finding, [next(numbers) for _ in range(count)])

    def _is_read(self) -> bool:
        calls, reading = self._launched[0]
        if reading is not None:  # it was launched last
            return reading.done()
        return all(product is None or product.done() for _, product, _ in calls)

    def _launch(self) -> None:
        added, self._added = self._added, []
        launch([product for _, product, _ in added if product is not None])
        numbers = [number for _, _, own in added for number in own]
        reading = None
        if numbers:
            with _quiet(numbers[0].device.type):
                reading = Reading(torch.cat([one.to(numbers[0].device) for one in numbers]))
        calls = [(tag, product, sum(map(len, own))) for tag, product, own in added]
        self._launched.append((calls, reading))


def greatest(tensors: Sequence[Tensor]) -> Tensor | None:
    """The greatest magnitude of tensors on the device of the first one, on that device. It is not
    finite where one of them is not. None: they have no floating numbers.
    """
    some = [t for t in tensors if t.device == tensors[0].device and finite.has_numbers(t)]
    if not some:
        return None
    sizes = [size.to(torch.float32) for size in finite.greatest(some)]
    return sizes[0] if len(sizes) == 1 else torch.stack(sizes).amax()


@contextmanager
def _quiet(kind: str) -> Iterator[None]:
    """Hide the kernels of a check from autograd, autocast and the modes of the program."""
    with torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunction():
        if not torch.is_autocast_enabled(kind):
            yield
            return
        with torch.autocast(kind, enabled=False):
            yield


def covers(call: Call) -> bool:
    """Whether an operator is a product; some of its calls may not be covered all the same."""
    return call.operator in _PRODUCTS


def start(call: Call, result: Any) -> Pending | None:
    """Launch the check of a finished call, on its stream; None: it is not covered.

    Covered are mm, matmul, linear, addmm, bmm, baddbmm and convolutions with at least 16 channels
    for each group, in the forward pass at both levels and in the backward pass at the aten level.
    """
    product = _PRODUCTS.get(call.operator)
    if product is None or not call.inputs:
        return None
    first = call.inputs[0]
    if first.dtype not in FLOATS or any(t.layout != torch.strided for t in call.inputs):
        return None
    if graph_capture.captures(first.device.type)():
        return None
    with _quiet(first.device.type):
        parts = product(call, result)
    return Pending(parts) if parts else None


# What a call computes.


@dataclass(frozen=True)
class _Errors:
    """The relative errors that a product may have."""

    rounding: float  # of the result
    summing: float
    factors: float  # 0: they are not rounded
    sums: float  # of partial sums; 0: they are not rounded
    parts: int  # of a sum that are rounded; 0: by the number of its terms
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
    sample: Tensor  # some rows of C
    inner: int  # terms of a sum
    columns: int
    errors: _Errors
    transforms: bool = False  # kernels may compute it by Winograd's or Fourier's transforms

    @property
    def rows(self) -> int:
        return self.left.numel() // COLUMNS

    @property
    def kind(self) -> Hashable:
        """The key of products whose metrics are computed together."""
        return self.left.device, self.left.dtype, self.rows, self.sample.shape, self.extra is None

    @property
    def terms(self) -> list[float]:
        """The factors of the norms of a row: see `_metrics`."""
        errors, inner, columns = self.errors, self.inner, self.columns
        cancelled = math.sqrt(inner / 12) / 4 + (32 if self.transforms else 1)
        parts = errors.parts or min(16, inner // 256)
        return [
            errors.rounding,
            errors.summing * (inner / 3 + math.sqrt(columns)),
            errors.summing * math.sqrt(columns / inner),
            errors.summing * cancelled,
            3 * errors.factors,
            2 * errors.factors / math.sqrt(inner),
            errors.sums * math.sqrt(1 + parts / 2),
            1 / math.sqrt(inner),
            math.sqrt(columns) * (errors.tiny + inner * torch.finfo(self.left.dtype).tiny),
            # an element of the product is not larger than `bound`
            torch.finfo(torch.float32).max if errors.tiny < 1e-10 else 65504.0,
        ]


def _limit(rows: int) -> float:
    t = math.log(max(rows, 1) / ALARM)
    return math.sqrt(1 + 2 * math.sqrt(t / COLUMNS) + 2 * t / COLUMNS)


def _metrics(parts: list[_Part]) -> Tensor:
    """Of each product: mean and deviation of q, largest mean of a row, that row, and how many rows
    are not finite.
    """

    def rows(tensors: list[Tensor], width: int) -> Tensor:
        shapes = [(*part.left.shape[:-1], width) for part in parts]
        pairs = zip(tensors, shapes, strict=True)
        return torch.stack([tensor.expand(shape).reshape(-1, width) for tensor, shape in pairs])

    left = rows([part.left for part in parts], COLUMNS)
    right = rows([part.right for part in parts], COLUMNS)
    c, ab = rows([part.size for part in parts], 1), rows([part.bound for part in parts], 1)
    terms = torch.tensor([part.terms for part in parts], dtype=left.dtype, device="cpu")
    terms = upload(terms, left.device)[:, None, :, None]
    rounding, summed_c, summed_ab, cancelled, factor_c, factor_ab, sums, root, floor, lowest = (
        terms.unbind(2)
    )
    ratio = _ratio(torch.stack([part.sample for part in parts]))[:, None, None]
    # hypot: a square may underflow
    scale = torch.hypot(c * rounding * ratio.sqrt(), c * summed_c + ab * summed_ab)
    scale = torch.hypot(scale, ab * cancelled)
    most = ab
    if parts[0].extra is not None:  # the product may be rounded before the addition
        extra = rows([part.extra for part in parts if part.extra is not None], 1)
        scale, most = torch.hypot(scale, (c + extra) * rounding), ab + extra
    if any(part.errors.factors for part in parts):
        scale = torch.hypot(scale, c * factor_c + ab * factor_ab)
    if any(part.errors.sums for part in parts):
        scale = torch.hypot(scale, torch.maximum(c, ab * root) * sums)
    finite = right.abs().amax(-1, keepdim=True) < math.inf
    broken = (left.abs().amax(-1, keepdim=True) < math.inf).logical_not()
    z = torch.where(finite & ~broken, (left - right) / (scale + floor), 0.0)
    squares = z.square()
    q, worst = squares.mean(1), squares.mean(2).max(1)
    mean = q.mean(1)
    deviation = ((q - mean[:, None]).square().sum(1) / (COLUMNS - 1)).sqrt()
    bad = (broken & finite.all(1, keepdim=True) & (most < lowest)).sum((1, 2))
    found = [mean, deviation, worst.values, worst.indices, bad]
    return torch.stack([one.to(torch.float32) for one in found], 1)


def _errors(call: Call, result: Tensor, convolution: bool = False, parts: int = 0) -> _Errors:
    """The errors that a call's device may make. `parts`: of a sum that kernels of float16 round."""
    own = call.inputs[0]
    allowed = precision.now(call)
    rounded = allowed.convolution if convolution else allowed.matmul
    factors = 0.0
    if own.dtype is torch.float32 and result.dtype is torch.float32 and rounded is not None:
        factors = rounded.roundoff
    kind = str(result.dtype).removeprefix("torch.")
    parts = parts if result.dtype is torch.float16 else 0
    narrow = any(sums.format == kind for sums in allowed.sums) and not convolution
    unit = _UNIT[result.dtype]
    summing = _UNIT[torch.float64 if own.dtype is torch.float64 else torch.float32]
    tiny = torch.finfo(result.dtype).tiny
    if result.dtype is torch.float16:
        tiny = torch.finfo(result.dtype).smallest_normal * unit * 2  # no device flushes them
    return _Errors(unit, summing, factors, unit if narrow or parts else 0.0, parts, tiny)


def _linear(call: Call, result: Any) -> list[_Part]:
    first, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    bias = argument(call, 2, "bias")
    if weight.dim() != 2:
        return []
    return _product(call, first, weight.t(), result, bias)


def _matmul(call: Call, result: Any) -> list[_Part]:
    first, second = argument(call, 0, "input", "self"), argument(call, 1, "mat2", "other")
    if first.dim() == 0 or second.dim() == 0 or result.dim() == 0:
        return []
    if first.dim() == 1:
        first, result = first[None], result.unsqueeze(-1 if second.dim() == 1 else -2)
    if second.dim() == 1:
        second, result = second[:, None], result.unsqueeze(-1)
    return _product(call, first, second, result)


def _addmm(call: Call, result: Any) -> list[_Part]:
    added, first = argument(call, 0, "input", "self"), argument(call, 1, "mat1", "batch1")
    second = argument(call, 2, "mat2", "batch2")
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
    first, second = _narrowed(first, result), _narrowed(second, result)
    added = None if added is None else _narrowed(added, result)
    inner, columns = second.shape[-2:]
    if first.dtype != second.dtype or result.dtype not in FLOATS or not result.numel() or not inner:
        return []
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
    left = _times(ours, signs.to(ours.dtype), 1)
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
            "result", left, right, _norms(ours, -1), bound, extra, _sample(ours), inner, columns,
            _errors(call, result),
        )
    ]  # fmt: skip


Size = Sequence[int]

# Convolutions. Each is the product of patches of an image and of filters, for each group.


@dataclass(frozen=True)
class _Shape:
    """The parameters of a convolution and of its backward pass."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def __call__(self, image: Tensor, filters: Tensor, groups: int) -> Tensor:
        return torch.convolution(
            image, filters, None, self.stride, self.padding, self.dilation, False,
            [0] * len(self.stride), groups,
        )  # fmt: skip

    def backward(
        self, grad: Tensor, image: Tensor, filters: Tensor, groups: int, mask: list[bool]
    ) -> list[Tensor]:
        """The gradients of the image and of the filters."""
        found: list[Tensor] = torch.ops.aten.convolution_backward(
            grad, image, filters, None, self.stride, self.padding, self.dilation, False,
            [0] * len(self.stride), groups, mask,
        )  # fmt: skip
        return found

    def image_gradient(self, grad: Tensor, filters: Tensor, groups: int, size: Size) -> Tensor:
        """The gradient of an image of this size."""
        shape = len(grad), groups * filters.shape[1], *size
        image = grad.new_empty(1).expand(shape)
        return self.backward(grad, image, filters, groups, [True, False, False])[0]


def _conv(call: Call, result: Any) -> list[_Part]:
    """torch.nn.functional.conv1d, conv2d and conv3d, and aten.convolution."""
    transposed = False
    if call.operator == "convolution":
        image, filters, bias, *options, transposed, _, groups = call.args[:9]
    else:
        named = ("input", None), ("weight", None), ("bias", None), ("stride", 1), ("padding", 0)
        given = enumerate((*named, ("dilation", 1), ("groups", 1)))
        image, filters, bias, *options, groups = (
            argument(call, place, name, default=default) for place, (name, default) in given
        )
    if transposed or isinstance(options[1], str):
        return []
    stride, padding, dilation = options
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
    groups, columns, inner = shape.groups, len(filters) // shape.groups, filters[0].numel()
    if not _fits(image, filters, result, columns, inner) or image.dim() != filters.dim():
        return []
    image, filters = _narrowed(image, result), _narrowed(filters, result)
    signs = _signs(columns, filters)
    flat = filters.reshape(groups, columns, inner).transpose(1, 2)
    inside = _times(flat, signs, 1)  # groups, inner, 8
    skinny = inside.transpose(1, 2).reshape(groups * COLUMNS, *filters.shape[1:])
    norms = _norms(flat, (-2, -1))[:, 0, 0]
    part = _by_channels(call, "result", image, skinny, norms, shape, groups, result, signs, inner)
    if bias is None:
        return [part]
    held = _narrowed(bias, result).to(part.left.dtype).view(groups, 1, columns)
    right = part.right + held @ signs.to(part.left.dtype)
    return [replace(part, right=right, extra=_norms(held, -1))]


def _by_channels(
    call: Call,
    label: str,
    image: Tensor,
    skinny: Tensor,
    norms: Tensor,
    convolve: Callable[[Tensor, Tensor, int], Tensor],
    groups: int,
    result: Tensor,
    signs: Tensor,
    inner: int,
    parts: int = 0,
) -> _Part:
    """A convolution whose channels are projected. `skinny`: the filters times the signs, `norms`:
    those of the filters of each group.
    """
    columns = result.shape[1] // groups
    left = _projected(result, groups, signs.to(result.dtype))
    right = _by_parts(image, skinny, lambda x, w: convolve(x, w, groups))
    right = right.view(len(image), groups, COLUMNS, -1).transpose(2, 3)
    ones = torch.ones_like(skinny[:groups, :1])
    patches = convolve(_energy(image, groups), ones, groups).flatten(2).amax(2)
    bound = (patches.clamp_min(0).sqrt() * norms)[..., None, None]
    grouped = result.reshape(len(result), groups, columns, -1)
    size, sample = _norms(grouped, 2).transpose(2, 3), _sample(grouped.transpose(2, 3))
    errors = _errors(call, result, convolution=True, parts=parts)
    return _Part(label, left, right, size, bound, None, sample, inner, columns, errors, True)


def _convolution_backward(call: Call, result: Any) -> list[_Part]:
    """The gradients of an image and of filters."""
    grad, image, filters, _, stride, padding, dilation, transposed, _, groups = call.args[:10]
    if transposed:
        return []
    shape = _shape(filters, stride, padding, dilation, groups)
    parts = []
    if result[0] is not None:
        parts += _image_gradient(call, grad, image, filters, shape, result[0])
    if result[1] is not None:
        parts += _filter_gradient(call, grad, image, filters, shape, result[1])
    return parts


def _image_gradient(
    call: Call, grad: Tensor, image: Tensor, filters: Tensor, shape: _Shape, result: Tensor
) -> list[_Part]:
    groups, columns = shape.groups, filters.shape[1]
    inner = filters.numel() // columns // groups
    if not _fits(grad, filters, result, columns, inner):
        return []
    signs = _signs(columns, filters)
    flat = filters.flatten(2).transpose(1, 2)  # output channels, places, columns
    inside = _times(flat.reshape(-1, columns), signs, 1).view(*flat.shape[:2], COLUMNS)
    skinny = inside.transpose(1, 2).reshape(len(filters), COLUMNS, *filters.shape[2:])
    norms = _norms(filters.reshape(groups, -1), 1)[:, 0]
    convolve = partial(shape.image_gradient, size=image.shape[2:])
    label = _("gradient of the input")
    operands = grad, skinny, norms, convolve, groups, result, signs, inner
    return [_by_channels(call, label, *operands, parts=math.prod(filters.shape[2:]))]


def _filter_gradient(
    call: Call, grad: Tensor, image: Tensor, filters: Tensor, shape: _Shape, result: Tensor
) -> list[_Part]:
    groups = shape.groups
    columns, inner = len(filters) // groups, grad.numel() // grad.shape[1]
    if not _fits(image, grad, result, columns, inner):
        return []
    signs = _signs(columns, grad)
    grouped = result.reshape(groups, columns, -1).transpose(1, 2)
    left = _times(grouped, signs.to(result.dtype), 1)
    wide = left.dtype
    skinny = _projected(grad, groups, signs).transpose(2, 3)
    skinny = skinny.reshape(len(grad), groups * COLUMNS, *grad.shape[2:])
    empty = skinny.new_empty(groups * COLUMNS, *filters.shape[1:])
    right = torch.zeros_like(empty)
    for at, some in _chunks(image):
        flowing = skinny[at : at + len(some)]
        right += shape.backward(flowing, some.to(wide), empty, groups, [False, True, False])[1]
    right = right.view(groups, COLUMNS, -1).transpose(1, 2)
    channels = _norms(image.transpose(0, 1).flatten(1), 1).view(groups, -1, 1)
    rows = channels.expand(-1, -1, math.prod(filters.shape[2:])).reshape(groups, -1, 1)
    of_grad = _norms(grad.transpose(0, 1).reshape(groups, -1), 1)
    errors = _errors(call, result, convolution=True, parts=len(image))
    factor = precision.now(call).convolution
    if factor is not None:  # the projected gradient has more digits than are left of it
        errors = replace(errors, factors=max(errors.factors, factor.roundoff))
    return [
        _Part(
            _("gradient of the weight"), left, right, _norms(grouped, -1), rows * of_grad[:, None],
            None, _sample(grouped), inner, columns, errors, True,
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
    """Some images or rows at a time, which are to be widened, with the index of the first."""
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
    for _size, some in _chunks(image):
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
        return _matrix_product(many, few.to(many.dtype))
    if _widens(many.device.type, many.dtype):
        return _widening(many, few, pieces)
    few = few.float()
    found = []
    for at, some in _chunks(many):
        factor = few if few.dim() == 2 else few[at : at + len(some)]
        found.append(_matrix_product(some.float(), factor))
    return found[0] if len(found) == 1 else torch.cat(found)


def _matrix_product(many: Tensor, few: Tensor) -> Tensor:
    """`many @ few`. A transposed `many` is the second factor of the transposed product, in which
    both are contiguous: a device that reads strides incorrectly must not repeat that in its check.
    """
    if many.is_contiguous() or not many.mT.is_contiguous():
        return torch.matmul(many, few)
    few = few.mT.expand(*many.shape[:-2], -1, -1).contiguous()
    return torch.matmul(few, many.mT).mT.contiguous()


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


@cache
def _widens(kind: str, dtype: torch.dtype) -> bool:
    """Whether a device has products of narrow factors with results in float32."""
    try:
        one = torch.ones(16, 16, dtype=dtype, device=kind)
        torch.mm(one, one, out_dtype=torch.float32)
        torch.bmm(one[None], one[None], out_dtype=torch.float32)
        return True
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _norms(tensor: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Norms over dimensions, which stay with one element, and are not smaller than squares need."""
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    found: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=wide)
    every = (dims,) if isinstance(dims, int) else dims
    count = math.prod(tensor.shape[dim] for dim in every)
    return found.clamp_min(TINY * math.sqrt(count))


def _sample(result: Tensor) -> Tensor:
    """A copy of some rows of a result, from all of its matrices."""
    wanted = max(4, min(SAMPLED, PIECE // 128 // result.shape[-1]))
    each = max(1, int(wanted ** (1 / (result.dim() - 1))))
    for dim in range(result.dim() - 1):
        step = max(1, result.shape[dim] // each)
        places = [slice(None)] * dim
        result = result[(*places, slice(_random.randrange(step), None, step))][
            (*places, slice(each))
        ]
    return result.to(torch.float32, copy=True).reshape(-1, result.shape[-1])


def _ratio(samples: Tensor) -> Tensor:
    """sum(4^exponent) / sum(x^2) of a row, on average over the rows of each sample."""
    below = torch.exp2(samples.abs().log2().floor())
    whole = samples.square().sum(-1)
    ratios = below.square().sum(-1) / whole
    usable = ratios.isfinite() & (whole > 1e-30)
    found: Tensor = torch.where(usable, ratios, 1.0).mean(-1)
    return found.clamp(0.25, 1.0)


# Random signs, which are the program's generators' none.

_random = random.Random(0x5EED)
_pools: dict[tuple[torch.device, int, torch.dtype], Tensor] = {}


def _signs(count: int, like: Tensor) -> Tensor:
    """`count` rows of 8 signs on a tensor's device, in its type: another part of a pool each time.

    A pool is uploaded when it is used first, and when more rows than it has are wanted.
    """
    key = *stream_of(like.device), like.dtype
    pool = _pools.get(key)
    if pool is None or len(pool) < 2 * count:
        generator = torch.Generator(device="cpu").manual_seed(_random.getrandbits(60))
        size = 1 << max(14, (2 * count - 1).bit_length())
        drawn = torch.randint(
            0, 2, (size, COLUMNS), generator=generator, device="cpu", dtype=torch.int8
        )
        pool = _pools[key] = upload((drawn * 2 - 1).to(like.dtype), like.device)
    at = _random.randrange(len(pool) - count)
    return pool[at : at + count]


_Maker = Callable[[Call, Any], list[_Part]]
_PRODUCTS: dict[str, _Maker] = {
    "mm": _matmul,
    "bmm": _matmul,
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _conv,
    "convolution_backward": _convolution_backward,
}
