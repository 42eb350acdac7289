# SPDX-License-Identifier: Apache-2.0
"""Decide whether a result is correct: two tensors and a rounding model in, one verdict out. Pure.

    verdict = judge(result, reference, run_envelope=…, run_plain=…)
    if not verdict.passed:
        print(verdict)  # 3 of 512 elements differ by more than rounding allows. Worst at [0, 7]: …

The default is the calibrated rule (`calibrated.py`); `standards.py` has the named rules.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deeplink.i18n import _
from deeplink.judge import calibrated
from deeplink.judge.envelope import envelope
from deeplink.judge.evidence import Evidence
from deeplink.judge.exact import exactly, same_choice
from deeplink.judge.formats import is_inexact
from deeplink.judge.standards import STANDARDS, allclose
from deeplink.judge.verdict import Verdict, equal, name_of, refused

__all__ = ["NAMES", "Evidence", "Verdict", "envelope", "judge", "same_choice"]

NAMES = ("calibrated", *STANDARDS)


def judge(
    result: Tensor,
    reference: Tensor,
    *,
    standard: str = "calibrated",
    tolerance: tuple[float, float] | None = None,
    run_plain: Callable[[], Tensor | None] = lambda: None,
    run_envelope: Callable[[], Tensor | None] = lambda: None,
    run_surer: Callable[[], Tensor | None] = lambda: None,
    computed_in: torch.dtype | None = None,
) -> Verdict:
    """Judge a result against a reference, both on the CPU; `Evidence` explains the other arguments.

    With a `tolerance` (atol, rtol) torch.allclose decides, whatever the standard. Without one,
    integers and bools are correct only when they are equal.
    """
    result, reference = result.detach(), reference.detach()
    if result.dtype == torch.complex32:  # torch cannot compare it
        result, computed_in = result.to(torch.complex64), torch.complex32
    if result.shape != reference.shape:
        text = _("shape {shape}, expected {expected}").format(
            shape=list(result.shape), expected=list(reference.shape)
        )
        return refused("shape", text, result)
    if not _same_kind(result.dtype, reference.dtype):
        text = _("dtype {dtype}, expected {expected}").format(
            dtype=name_of(result.dtype), expected=name_of(reference.dtype)
        )
        return refused("dtype", text, result)
    if not result.numel():
        return equal(result)
    evidence = Evidence(result, reference, run_plain, run_envelope, computed_in, run_surer)
    if tolerance is not None and result.dtype != torch.bool:
        return allclose(evidence, tolerance)
    if not is_inexact(result.dtype):
        return exactly(evidence)
    if standard == "calibrated":
        return calibrated.judge(evidence)
    return STANDARDS[standard](evidence)


def _same_kind(result: torch.dtype, reference: torch.dtype) -> bool:
    """Whether the types are comparable: a floating reference may be wider than its result."""
    if is_inexact(result) and is_inexact(reference):
        return result.is_complex == reference.is_complex
    return result == reference
