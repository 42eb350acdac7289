# SPDX-License-Identifier: Apache-2.0
"""The judge's answer, and the figures that every rule reports beside it."""

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
    """Whether one result is right, and why not: it explains itself.

    `observed` is the error at `index`, `bound` what was allowed there, `ratio` one by the other.
    Of a result that passed by the calibrated rule, `bound` is what was allowed where `max_abs` is;
    0.0: nothing.
    `share` is, of what passed by the envelope, how much of what is allowed the errors take.
    `max_abs`, `max_rel` and `cosine` are against the reference in the result's own type, as the
    classic tables show them; `rule` is the one that failed, or that was enough to pass.
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
    """float32, without its "torch."."""
    return str(dtype).removeprefix("torch.")


def worst_at(
    index: tuple[int, ...], result: complex, expected: complex, error: float, tolerance: float
) -> str:
    """The element with the largest error, for a message."""
    return _(
        "Worst at {index}: got {result:.8g}, expected {expected:.8g} (error {error:.3g}, "
        "tolerance {tolerance:.3g})"
    ).format(index=list(index), result=result, expected=expected, error=error, tolerance=tolerance)


def refused(rule: str, message: str, result: Tensor, ratio: float = math.inf) -> Verdict:
    """A result that is wrong before any of its values is looked at."""
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
    """The result is the reference, rounded."""
    return Verdict(True, rule, "", name_of(result.dtype), tuple(result.shape), 0, result.numel())


def wide(tensor: Tensor) -> Tensor:
    """In float64; of a complex tensor, its parts along a last dimension."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.double()


def with_figures(verdict: Verdict, result: Tensor, reference: Tensor) -> Verdict:
    """The verdict with max_abs, max_rel and cosine, over the pairs where both are finite."""
    figures = Figures()
    for y, r in chunks(result, reference):
        figures.add(y, r.to(y.dtype))
    return figures.on(verdict)


CHUNK = 1 << 15  # elements: what is made of them on the way stays in the processor's cache


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one size, flat, in pieces that belong together."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    return zip(*(tensor.split(CHUNK) for tensor in flat), strict=True)


@dataclass
class Figures:
    """Largest errors and the angle between two vectors, piece by piece."""

    largest: float = 0.0
    relative: float = 0.0
    expected: float = 0.0  # the reference where the largest error is
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, y: Tensor, r: Tensor) -> None:
        """A piece of the result and of the reference, in the result's type."""
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
        """Adds a piece of float32 that is nowhere more than one step off; else False. Hot path."""
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
        """The verdict with these."""
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
    """The index of an element from its number in order."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
