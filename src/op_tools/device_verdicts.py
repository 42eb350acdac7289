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


@dataclass(frozen=True)
class Result:
    """What is known of a result beside its figures."""

    shape: torch.Size
    dtype: torch.dtype
    unit: torch.dtype  # whose spacing counts
    kind: Hashable  # what results have in common whose errors are alike


def rule_of(result: Result, found: Figures, accepted: Accepted) -> str:
    """The rule by which a result is right; "" where the host has to look."""
    count, unit = result.shape.numel(), result.unit
    # the host's judge takes one step of a float32 as it is, too
    one_step = unit == result.dtype == torch.float32 and found.beyond <= 0.0
    if one_step or next_to(count, found.steps, found.off, found.steps_squared, FORMATS[unit]):
        return "equal" if found.gap == 0.0 else "spacing"
    if not found.size > 0.0:
        return ""
    largest = found.largest / math.sqrt(found.size / count)
    mean = math.sqrt(found.squared / found.size)
    # the largest of many errors differs more from call to call than their mean
    fits = accepted.allows(result.kind, largest / OUTLIER, mean)
    return "as accepted before" if fits else ""


def right(result: Result, rule: str, found: Figures) -> Verdict:
    """The verdict on a result that is right by a rule."""
    return Verdict(
        True,
        rule,
        "",
        name_of(result.dtype),
        tuple(result.shape),
        0,
        result.shape.numel(),
        max_abs=found.gap,
        max_rel=found.relative,
        cosine=found.cosine,
    )


def worst_of(
    results: Iterable[tuple[Result, Figures]], accepted: Accepted
) -> tuple[Result, str, Figures] | None:
    """Of results that are all right the one that is farthest off, with its rule; else None."""
    worst: tuple[Result, str, Figures] | None = None
    for result, found in results:
        rule = rule_of(result, found, accepted)
        if not rule:
            return None
        if worst is None or not found.relative <= worst[2].relative:
            worst = result, rule, found
    return worst
