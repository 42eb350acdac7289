"""Errors that the whole rule has accepted of earlier calls: one like them needs no second look.

Where a result is right only within the envelope, that is drawn for each kind of call first and then
now and again; between, an error that is no larger than accepted ones passes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deeplink.judge.verdict import CHUNK, Verdict, equal, with_figures

FIRST, EVERY = 2, 64  # calls of a kind that are judged by the whole rule, and then every so many-th
LARGER = 1.25  # times an error that was accepted: the largest of many differ so much by chance
WITHIN, MOST = 0.5, 4.0  # or so that half of the bound is left, as far as that is known
# rules that look far
DRAWN = ("envelope", "as the CPU", "as good as the CPU", "no worse than the CPU")


@dataclass
class _Errors:
    """How large errors may be, the largest and the mean one, as parts of the size of what is
    right.
    """

    largest: float = 0.0
    mean: float = 0.0
    calls: int = 0


class Accepted:
    """What was accepted in one run of the tool, by kind of call and part of it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Errors] = {}
        self.changes = 0  # of what is accepted
        self._lock = threading.Lock()

    def verdict(self, kind: Hashable, result: Tensor, reference: Tensor) -> Verdict | None:
        """The verdict on a result whose errors are like accepted ones; else None."""
        with self._lock:
            known = self._known.get(kind)
            if known is None:
                return None
            known.calls += 1
            if known.calls <= FIRST or known.calls % EVERY == 0:
                return None
            limits = known.largest, known.mean
        if result.shape != reference.shape:
            return None
        largest, mean, size = _errors(result, reference)
        if not (largest <= limits[0] and mean <= limits[1]):  # a nan is not
            return None
        verdict = with_figures(equal(result, "as accepted before"), result, reference)
        return replace(verdict, bound=max(verdict.max_abs, limits[0] * size))

    def allows(self, kind: Hashable, largest: float, mean: float) -> bool:
        """Whether errors are like accepted ones; it is not counted as a look."""
        limits = self.limits(kind)
        return largest <= limits[0] and mean <= limits[1]  # a nan is not

    def limits(self, kind: Hashable) -> tuple[float, float]:
        """The largest and the mean error that pass; nothing does where none was accepted."""
        with self._lock:
            known = self._known.get(kind)
            return (-1.0, -1.0) if known is None else (known.largest, known.mean)

    def add(self, kind: Hashable, result: Tensor, reference: Tensor, verdict: Verdict) -> None:
        """Remembers the errors of a result that passed only after a long look."""
        if not verdict.passed or verdict.rule not in DRAWN:
            return
        largest, mean, _ = _errors(result, reference)
        if not math.isfinite(largest + mean):
            return
        times = LARGER
        if verdict.share > 0.0:
            times = max(LARGER, min(WITHIN / verdict.share, MOST))
        with self._lock:
            known = self._known.setdefault(kind, _Errors())
            limits = max(known.largest, times * largest), max(known.mean, times * mean)
            self.changes += limits != (known.largest, known.mean)
            known.largest, known.mean = limits


def _errors(result: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """The largest and the mean error as parts of the size of the reference, and that size."""
    largest = squares = size = 0.0
    y, r = (t.detach().reshape(-1) for t in (result, reference))
    for a, b in zip(y.split(CHUNK), r.split(CHUNK), strict=True):
        b = b.double()
        gap = a.double().sub(b)
        squares += float(torch.dot(gap, gap))
        size += float(torch.dot(b, b))
        top = float(gap.abs_().max())
        largest = top if not top <= largest else largest  # a nan stays
    if not size > 0.0:
        return math.inf, math.inf, 0.0
    typical = math.sqrt(size / y.numel())
    return largest / typical, math.sqrt(squares / size), typical
