"""Whether figures that a device took of a result say that it is right, and the verdict then."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch

from deeplink.judge import Verdict
from deeplink.judge.calibrated import next_to
from deeplink.judge.formats import FORMATS
from deeplink.judge.verdict import name_of
from op_tools.accepted import Accepted
from op_tools.device_pairs import Figures

OUTLIER = 1.6  # times more that the largest error may be than what `Accepted` allows


@dataclass(slots=True, eq=False)  # hot path
class Result:
    """What is known of a result beside its figures."""

    shape: torch.Size
    dtype: torch.dtype
    unit: torch.dtype  # whose spacing counts
    kind: Hashable  # what results have in common whose errors are alike


@dataclass(slots=True, eq=False)  # hot path: an `Item`, whose verdict is made when it is asked for
class Right:
    """A part of a call that is right."""

    label: str
    shape: torch.Size
    dtype: torch.dtype
    rule: str
    found: Figures

    @property
    def verdict(self) -> Verdict:
        return Verdict(
            True,
            self.rule,
            "",
            name_of(self.dtype),
            tuple(self.shape),
            0,
            self.shape.numel(),
            max_abs=self.found.gap,
            max_rel=self.found.relative,
            cosine=self.found.cosine,
        )


def one_step(dtype: torch.dtype, unit: torch.dtype, found: Figures) -> str:
    """The rule by which a float32 within one step is right; the host's judge takes it so, too."""
    if dtype is torch.float32 and unit is dtype and found.beyond <= 0.0:  # a nan is not
        return "equal" if found.gap == 0.0 else "spacing"
    return ""


def rule_of(result: Result, found: Figures, accepted: Accepted) -> str:
    """The rule by which a result is right; "" where the host has to look."""
    count, unit = result.shape.numel(), result.unit
    known = one_step(result.dtype, unit, found)
    if known:
        return known
    if next_to(count, found.steps, found.off, found.steps_squared, FORMATS[unit]):
        return "equal" if found.gap == 0.0 else "spacing"
    if not found.size > 0.0:
        return ""
    largest = found.largest / math.sqrt(found.size / count)
    mean = math.sqrt(found.squared / found.size)
    # the largest of many errors differs more from call to call than their mean
    fits = accepted.allows(result.kind, largest / OUTLIER, mean)
    return "as accepted before" if fits else ""


def worst_of(
    label: str, results: Iterable[tuple[Result, Figures]], accepted: Accepted
) -> Right | None:
    """Of results that are all right the one that is farthest off; else None."""
    worst: Right | None = None
    for result, found in results:
        rule = rule_of(result, found, accepted)
        if not rule:
            return None
        if worst is None or not found.relative <= worst.found.relative:
            worst = Right(label, result.shape, result.dtype, rule, found)
    return worst
