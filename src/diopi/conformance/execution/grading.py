# SPDX-License-Identifier: Apache-2.0
"""Grades: A is as exact as rounding allows, B is usable but notable, F is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink.judge import Verdict, judge, same_choice
from deeplink.judge.formats import FORMATS
from diopi.conformance.cases.sample import Sample

# for half types and others: factor on the bound up to which a result is B
LOOSER = {True: 4.0, False: 8.0}
STATISTICAL = ("rms", "bias")
SPECIAL = ("nan", "inf")
DISTINCT = ("sort", "argsort", "topk", "msort")
# ops whose results are indices of values: among equal values either is correct
CHOOSES = frozenset(
    (*DISTINCT, *"max min argmax argmin cummax cummin median nanmedian kthvalue mode".split())
)
ORDER = "ABF"


@dataclass(frozen=True)
class Judged:
    """One result of a call, graded."""

    grade: str
    verdict: Verdict
    note: str = ""

    @property
    def message(self) -> str:
        return f"{self.verdict}{f' ({self.note})' if self.note else ''}"


def grade(
    result: Tensor,
    reference: Tensor,
    plain: Callable[[], Tensor | None],
    sigma: Callable[[], Tensor | None],
) -> Judged:
    """Grade a result; the CPU's own run can raise a result to B, never to A."""
    result, reference = result.clone(), reference.clone()  # a judge may compute in place
    if result.dtype not in FORMATS:
        verdict = judge(result, reference, run_plain=plain)
        return Judged("A" if verdict.passed else "F", verdict)
    verdict = judge(result.clone(), reference, run_envelope=sigma)
    if verdict.passed:
        return Judged("A", verdict)
    lenient = judge(result.clone(), reference, run_plain=plain, run_envelope=sigma)
    if lenient.passed:
        return Judged("B", verdict, f"{lenient.rule}, in this type")
    looser = LOOSER[FORMATS[result.dtype].is_half]
    if verdict.rule == "bound" and verdict.ratio <= looser:
        return Judged("B", verdict, f"within {looser:g} times the bound")
    if verdict.rule in STATISTICAL and verdict.ratio <= 2.0:
        return Judged("B", verdict, "each within its bound")
    return Judged("F", verdict)


def worse(grades: Sequence[str]) -> str:
    """Return the worst of some grades; A for none."""
    return max(grades, key=ORDER.index, default="A")


def chose_equal(name: str, sample: Sample, result: Tensor, reference: Tensor) -> bool:
    """Whether indices differ only among equal values, where any of them is correct."""
    chooses = "max_pool" in name or name.partition(".")[0] in CHOOSES
    if not chooses or result.dtype != torch.int64 or not sample.tensors:
        return False
    values = sample.tensors[0].detach()
    if "max_pool" in name:
        flat = [t.flatten(2 if t.dim() > 2 else 1) for t in (values, result, reference)]
        return same_choice(flat[0], flat[1], flat[2], -1)
    distinct = name.partition(".")[0] in DISTINCT
    for dim in _dims(sample):
        try:
            if same_choice(values, result, reference, dim, distinct):
                return True
        except (RuntimeError, IndexError):  # not along this dimension
            continue
    return False


def _dims(sample: Sample) -> list[int | None]:
    given: list[Any] = [sample.kwargs.get("dim"), *sample.args[1:], -1, None]
    return [dim for dim in given if dim is None or isinstance(dim, int)]
