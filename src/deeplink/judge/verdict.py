# SPDX-License-Identifier: Apache-2.0
"""The verdict of a judge, and the metrics that every rule reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deeplink.i18n import _


@dataclass(frozen=True)
class Verdict:
    """Whether one result is correct; `str()` gives the explanation.

    `observed` is the error at `index`, `bound` the error that was allowed there, `ratio` their
    quotient.
    For a result that passed by the calibrated rule, `bound` is the allowed error at the position of
    `max_abs`; 0.0: none.
    `share` is the share of the allowed error that a result uses which passed by the envelope.
    `max_abs`, `max_rel` and `cosine` are against the reference in the result's own type, as in the
    published tables of op_tools; `rule` is the rule that failed or that accepted the result.
    """

    passed: bool
    rule: str
    message: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    wrong: int = 0
    count: int = 0
    observed: float = 0.0
    bound: float = 0.0
    ratio: float = 0.0
    index: tuple[int, ...] | None = None
    result: Any = None
    expected: Any = None
    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    atol: float | None = None
    rtol: float | None = None
    share: float = 0.0

    def __str__(self) -> str:
        return self.message or (_("equal") if self.rule == "equal" else _("as close as it must be"))


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type without its "torch."."""
    return str(dtype).removeprefix("torch.")


def worst_at(
    index: tuple[int, ...], result: complex, expected: complex, error: float, tolerance: float
) -> str:
    """Format the element with the largest error for a message."""
    return _(
        "Worst at {index}: got {result:.8g}, expected {expected:.8g} (error {error:.3g}, "
        "tolerance {tolerance:.3g})"
    ).format(index=list(index), result=result, expected=expected, error=error, tolerance=tolerance)


def refused(rule: str, message: str, result: Tensor, ratio: float = math.inf) -> Verdict:
    """Build the verdict on a result that is incorrect whatever its values."""
    return Verdict(
        False,
        rule,
        message,
        name_of(result.dtype),
        tuple(result.shape),
        count=result.numel(),
        wrong=result.numel(),
        ratio=ratio,
        max_abs=math.inf,
        max_rel=math.inf,
        cosine=math.nan,
    )


def equal(result: Tensor, rule: str = "equal") -> Verdict:
    """Build the verdict on a result that equals the rounded reference."""
    return Verdict(True, rule, "", name_of(result.dtype), tuple(result.shape), 0, result.numel())


def wide(tensor: Tensor) -> Tensor:
    """Convert to float64; a complex tensor gets a last dimension for its parts."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.double()


def with_figures(verdict: Verdict, result: Tensor, reference: Tensor) -> Verdict:
    """Return the verdict with max_abs, max_rel and cosine over the pairs where both are finite."""
    figures = Figures()
    for y, r in chunks(result, reference):
        figures.add(y, r.to(y.dtype))
    return figures.on(verdict)


CHUNK = 1 << 15  # elements per chunk, so that temporaries stay in the processor's cache


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of equal size, flattened, into corresponding chunks."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    return zip(*(tensor.split(CHUNK) for tensor in flat), strict=True)


@dataclass
class Figures:
    """Largest errors of and the angle between two vectors, accumulated chunk by chunk."""

    largest: float = 0.0
    relative: float = 0.0
    expected: float = 0.0  # the reference at the position of the largest error
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, y: Tensor, r: Tensor) -> None:
        """Add a chunk of the result and of the reference, in the result's type."""
        y, r = _at_least_float32(y), _at_least_float32(r)
        gap = (y - r).abs_()
        largest = float(gap.max())
        if not math.isfinite(largest):
            finite = gap.isfinite()
            y, r, gap = y[finite], r[finite], gap[finite]
            largest = float(gap.max()) if gap.numel() else 0.0
        if largest:
            if largest > self.largest:
                self.expected = float(r[gap.argmax()])
            relative = float((gap / y.abs().add_(1e-6)).max())
            self.relative = max(self.relative, relative)
            self.largest = max(self.largest, largest)
        found = (torch.dot(y, y), torch.dot(y, r), torch.dot(r, r))
        yy, yr, rr = self.products
        self.products = yy + float(found[0]), yr + float(found[1]), rr + float(found[2])

    def add_one_step(self, y: Tensor, r: Tensor) -> bool:
        """Add a float32 chunk whose elements are at most one step off;
        else return False. Hot path.
        """
        if y.dtype != torch.float32:
            return False
        gap = (y - r).abs_()
        largest = float(gap.max())
        if not largest < math.inf or not bool((gap <= r.abs().mul_(2.0**-23)).all()):
            return False
        if largest > self.largest:
            self.largest, self.expected = largest, float(r[gap.argmax()])
        self.relative = max(self.relative, float(gap.div_(y.abs().add_(1e-6)).max()))
        return True

    def on(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the accumulated metrics."""
        yy, yr, rr = self.products
        lengths = math.sqrt(yy) * math.sqrt(rr)
        if self.largest == 0.0 or self.products == (0.0, 0.0, 0.0):
            cosine = 1.0
        elif lengths == 0.0 or not math.isfinite(lengths):
            cosine = math.nan
        else:
            cosine = min(1.0, max(-1.0, yr / lengths))
        return replace(verdict, max_abs=self.largest, max_rel=self.relative, cosine=cosine)


def _at_least_float32(tensor: Tensor) -> Tensor:
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    if tensor.is_complex() or not tensor.is_floating_point():
        return wide(tensor).reshape(-1)
    return tensor.float()


def place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Convert a flat index to an index of the shape."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
