# SPDX-License-Identifier: Apache-2.0
"""Published comparison standards, with the limits of their publishers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deeplink.compare import TOLERANCES
from deeplink.i18n import _
from deeplink.judge.evidence import Evidence
from deeplink.judge.formats import FORMATS, spacing
from deeplink.judge.verdict import Verdict, equal, name_of, place, wide, with_figures, worst_at

# allclose, as the classic tools: atol = rtol.
ALLCLOSE = {
    torch.float16: 1e-4,
    torch.complex32: 1e-4,
    torch.bfloat16: 1e-3,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float64: 1e-8,
    torch.complex128: 1e-8,
}
ASCEND = (5.0, 1.5, 1.5)  # double benchmark, grade L1: largest, mean and rms error over the CPU's
ASCEND_SINGLE = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-13}
ULP_SHARE = {True: (1.0, 0.001), False: (32.0, 0.05)}  # of half types and others: steps, share
ULP_MEAN = 64.0  # of float32


def allclose(evidence: Evidence, tolerance: tuple[float, float] | None = None) -> Verdict:
    """Compare by torch.allclose with the reference in the result's own type;
    `tolerance`: atol, rtol.
    """
    result = evidence.result
    if tolerance is None:
        default = ALLCLOSE.get(result.dtype, 1e-3 if result.dtype in FORMATS else 0.0)
        tolerance = (default, default)
    return _closeness(evidence, "allclose", *tolerance)


def torch_testing(evidence: Evidence) -> Verdict:
    """Compare by torch.testing.assert_close with its default tolerances."""
    rtol, atol = TOLERANCES.get(evidence.result.dtype, (0.0, 0.0))
    return _closeness(evidence, "torch", atol, rtol)


def _closeness(evidence: Evidence, rule: str, atol: float, rtol: float) -> Verdict:
    result, expected = evidence.result, evidence.reference.to(evidence.result.dtype)
    y, r = result.reshape(-1), expected.reshape(-1)
    if result.dtype not in FORMATS:  # integers: 1 - 2 of uint8 is not 255
        y, r = y.to(torch.int64), r.to(torch.int64)
    y, r = _host_wide(y), _host_wide(r)
    error, bound = (y - r).abs(), atol + rtol * r.abs()
    close = (error <= bound) | (y == r) | (y.isnan() & r.isnan())
    verdict = equal(result, rule)
    if not bool(close.all()):
        ratios = torch.nan_to_num(torch.where(close, 0.0, error / bound), nan=math.inf)
        worst = int(ratios.argmax())
        wrong = int((~close).sum())
        verdict = _failed(evidence, rule, worst, wrong, float(error[worst]), float(bound[worst]))
    return replace(with_figures(verdict, result, expected), atol=atol, rtol=rtol)


def _host_wide(values: Tensor) -> Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


def ascend(evidence: Evidence) -> Verdict:
    """Compare by the double benchmark:
    errors against float64 over those of the CPU in the same type.
    """
    result, plain = evidence.result, evidence.plain
    y, r = wide(result).reshape(-1), wide(evidence.reference).reshape(-1)
    mine = _errors(y, r)
    if plain is None:
        limit = ASCEND_SINGLE.get(result.dtype, 2.0**-13)
        limits, words = (10 * limit, limit, math.inf), _("allowed")
    else:
        cpu = _errors(wide(plain).reshape(-1), r)
        limits = tuple(k * max(x, 1e-300) for k, x in zip(ASCEND, cpu, strict=True))  # type: ignore[assignment]
        words = _("the CPU's times {factors}:").format(factors=ASCEND)
    ratios = [x / limit if limit else math.inf for x, limit in zip(mine, limits, strict=True)]
    if all(ratio <= 1 for ratio in ratios):
        return with_figures(equal(result, "ascend"), result, evidence.reference)
    gap = torch.nan_to_num((y - r).abs() / (r.abs() + 1e-7), nan=math.inf)
    worst = int(gap.argmax())
    verdict = _failed(evidence, "ascend", worst, 0, float(gap[worst]), limits[0], max(ratios))
    shown = " / ".join(f"{x:.3g}" for x in mine)
    allowed = " / ".join(f"{x:.3g}" for x in limits)
    text = _("largest / mean relative error and rms are {shown}; {words} {allowed}").format(
        shown=shown, words=words, allowed=allowed
    )
    verdict = replace(
        verdict, message=_("{text}; {message}").format(text=text, message=verdict.message)
    )
    return with_figures(verdict, result, evidence.reference)


def _errors(y: Tensor, r: Tensor) -> tuple[float, float, float]:
    """Return largest and mean relative error, and the root mean square of the error."""
    if not y.numel():
        return 0.0, 0.0, 0.0
    if bool((y.isfinite() != r.isfinite()).any()):
        return math.inf, math.inf, math.inf
    finite = y.isfinite()
    gap = (y - r)[finite]
    relative = gap.abs() / (r[finite].abs() + 1e-7)
    if not gap.numel():
        return 0.0, 0.0, 0.0
    return float(relative.max()), float(relative.mean()), math.sqrt(float(gap.square().mean()))


def ulp(evidence: Evidence) -> Verdict:
    """Compare the share of elements that are many steps of their type off
    with a limit or the CPU's.
    """
    result, form = evidence.result, FORMATS[evidence.unit]
    r = wide(evidence.reference).reshape(-1)
    steps = _steps(result, evidence)
    limit, share = ULP_SHARE[form.is_half]
    mine = _share(steps, limit)
    mean = float(steps.mean()) if steps.numel() else 0.0
    misplaced = bool(steps.isinf().any())  # a nan or an infinity on one side only
    if not misplaced and (mine < share or (not form.is_half and mean < ULP_MEAN)):
        return with_figures(equal(result, "ulp"), result, evidence.reference)
    plain = evidence.plain
    if plain is not None and not misplaced and mine <= _share(_steps(plain, evidence), limit):
        return with_figures(equal(result, "ulp"), result, evidence.reference)
    worst = int(steps.argmax())
    wrong, bound = int((steps > limit).sum()), limit * float(spacing(r, form)[worst])
    verdict = _failed(evidence, "ulp", worst, wrong, float(steps[worst]), bound, mine / share)
    text = _(
        "{mine:.2%} of the elements are more than {limit:g} steps off (allowed {share:.1%})"
    ).format(mine=mine, limit=limit, share=share)
    verdict = replace(
        verdict, message=_("{text}; {message}").format(text=text, message=verdict.message)
    )
    return with_figures(verdict, result, evidence.reference)


def _steps(result: Tensor, evidence: Evidence) -> Tensor:
    y, r = wide(result).reshape(-1), wide(evidence.reference).reshape(-1)
    rounded = wide(evidence.reference.to(evidence.result.dtype)).reshape(-1)
    steps = (y - rounded).abs() / spacing(r, FORMATS[evidence.unit])
    same = (y == rounded) | (y.isnan() & rounded.isnan())
    return torch.nan_to_num(torch.where(same, 0.0, steps), nan=math.inf)


def _share(steps: Tensor, limit: float) -> float:
    return float((steps > limit).double().mean()) if steps.numel() else 0.0


def _failed(
    evidence: Evidence,
    rule: str,
    worst: int,
    wrong: int,
    observed: float,
    bound: float,
    ratio: float | None = None,
) -> Verdict:
    result, shape = evidence.result, tuple(evidence.result.shape)
    number = worst
    if result.is_complex() and rule in ("ascend", "ulp"):
        number = worst // 2
    index = place(number, shape)
    value = result.reshape(-1)[number].item()
    expected = evidence.reference.reshape(-1)[number].item()
    text = _("At {index}: got {value:.8g}, expected {expected:.8g}").format(
        index=list(index), value=value, expected=expected
    )
    if wrong and rule in ("allclose", "torch"):
        text = _(
            "{wrong:,} of {total:,} {total:element|elements} {wrong:is|are} not close. "
        ).format(wrong=wrong, total=result.numel())
        text += worst_at(index, value, expected, observed, bound)
    if ratio is None:
        ratio = observed / bound if bound else math.inf
    return Verdict(
        False,
        rule,
        text,
        name_of(result.dtype),
        shape,
        wrong,
        result.numel(),
        observed,
        bound,
        ratio,
        index,
        value,
        expected,
    )


STANDARDS: dict[str, Callable[[Evidence], Verdict]] = {
    "allclose": allclose,
    "torch": torch_testing,
    "ascend": ascend,
    "ulp": ulp,
}
