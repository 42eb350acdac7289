# SPDX-License-Identifier: Apache-2.0
"""The calibrated rule: compare each error with the error that rounding can explain.

    |result - reference| <= U * spacing(reference) + C * sigma

Over many elements, the size and the bias of the errors are compared with those of rounding, too.
`sigma` is the envelope of the call; the plain CPU run in the result's type is a second opinion.
Both are expensive, and computed only when the spacing alone does not explain the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deeplink.i18n import _
from deeplink.judge.evidence import Evidence
from deeplink.judge.formats import FORMATS, Format, spacing
from deeplink.judge.verdict import (
    Figures,
    Verdict,
    chunks,
    equal,
    name_of,
    place,
    wide,
    with_figures,
    worst_at,
)

SIGMAS = 8.0  # C
MANY = 256  # minimum number of elements for the statistical tests
STEPS = {True: 1.0, False: 2.0}  # U, of half types and of the others
RMS = {True: 1.25, False: 2.0}
BIAS = 0.15  # of half types: rounding to nearest has no bias
# factors on the CPU's own error (rms, largest) up to which a result counts as good as the CPU's
AS_GOOD = (1.25, 2.0)
AS_BAD = (3.0, 4.0)  # factors where the CPU itself exceeds the bound
# share of the elements, factor on their bound: more envelope runs may change the verdict
CLOSE = (0.02, 4.0)
HALF = 0.5000001  # of a step: up to here a value is correctly rounded
FEW = 32  # minimum number of elements of one binade for an estimate of the CPU's error in it


@dataclass(frozen=True)
class _Pair:
    """A result and its reference as flat float64 vectors."""

    y: Tensor
    r: Tensor
    step: Tensor  # spacing around r
    form: Format

    @property
    def error(self) -> Tensor:
        return self.y - self.r


@dataclass(frozen=True)
class _Finding:
    """The violation that a rule found: elements outside of the bound, or a statistic."""

    rule: str
    message: str
    where: Tensor  # flat indices of the elements; empty when the statistic is over all elements
    ratio: float | None = None  # statistic / limit


def judge(evidence: Evidence) -> Verdict:
    """Judge a floating or complex result."""
    result, reference = evidence.result, evidence.reference
    quick = _quick(evidence)
    if quick is not None:
        return quick
    plain = evidence.plain
    if plain is not None and _same(result, plain):
        return _passed(evidence, "as the CPU", None)
    pair = _pair(result, reference, evidence.unit)
    found = _outside(pair, None)
    if found is None:
        return _passed(evidence, "spacing", _allowed(pair, None))
    other = None if plain is None else _pair(plain, reference, evidence.unit)
    if other is not None and found.rule == "bound" and _as_good(pair, other, found.where):
        return _passed(evidence, "as good as the CPU", AS_GOOD[1] * _largest(other))
    sigma = _flat_sigma(evidence, evidence.sigma)
    if sigma is not None:
        found = _outside(pair, sigma)
        if found is not None and _is_close_call(pair, sigma, found):
            sigma = _flat_sigma(evidence, evidence.surer, sigma)
            found = _outside(pair, sigma)
        if found is None:
            verdict = _passed(evidence, "envelope", _allowed(pair, sigma))
            return replace(verdict, share=_share(pair, sigma))
    if other is not None:
        found = _excused(pair, other, sigma, found)
        if found is None:
            return _passed(evidence, "no worse than the CPU", AS_BAD[1] * _largest(other))
    return _failed(evidence, pair, sigma, found)


def _quick(evidence: Evidence) -> Verdict | None:
    """Accept a result that is the correctly rounded reference or next to it; else return None.

    Hot path: most correct results pass here.
    """
    result, reference = evidence.result, evidence.reference
    form = FORMATS[evidence.unit]
    if result.is_complex():
        return equal(result) if torch.equal(result, reference.to(result.dtype)) else None
    if evidence.unit != result.dtype:
        return None
    figures, off, squares = Figures(), 0, 0.0
    for y, r in chunks(result, reference):
        rounded = r.to(y.dtype)
        if torch.equal(y, rounded) or figures.add_one_step(y, rounded):
            continue
        r = r.double()
        scaled = (y.double() - r).div_(spacing(r, form))  # not in place: y may be float64
        squares += float(torch.dot(scaled, scaled))
        size = scaled.abs_()
        largest = float(size.max())
        if not largest <= STEPS[form.is_half]:  # also true for a nan
            return None
        figures.add(y, rounded)
        if form.is_half and largest > HALF:
            off += int(torch.count_nonzero(size > HALF))
    if figures.largest == 0.0:
        return equal(result)
    if not few(result.numel(), off, squares, form):
        return None
    step = float(spacing(torch.tensor([figures.expected], dtype=torch.float64), form))
    bound = (STEPS[form.is_half] + 0.5) * step
    return replace(figures.on(equal(result, "spacing")), bound=bound)


def next_to(count: int, largest: float, off: float, squares: float, form: Format) -> bool:
    """Whether results are the rounded reference or next to it, from statistics in steps of the
    type:
    the largest error, the number of elements that are not correctly rounded, the sum of squares.
    """
    return largest <= STEPS[form.is_half] and few(count, off, squares, form)  # false for a nan


def few(count: int, off: float, squares: float, form: Format) -> bool:
    """Whether the errors are so few that no distribution of them can
    violate the statistical rules.
    """
    if count < MANY:
        return True
    if 12 * squares > RMS[form.is_half] ** 2 * count:
        return False
    return not form.is_half or math.sqrt(12) * off / count <= BIAS


def _pair(result: Tensor, reference: Tensor, unit: torch.dtype) -> _Pair:
    form = FORMATS[unit]
    y, r = wide(result), wide(reference)
    size = r
    if reference.is_complex():  # the parts of a complex number are as exact as the whole
        size = reference.abs().double().unsqueeze(-1).expand(r.shape)
    return _Pair(y.reshape(-1), r.reshape(-1), spacing(size, form).reshape(-1), form)


def _is_close_call(pair: _Pair, sigma: Tensor, found: _Finding) -> bool:
    """Whether a violation may be an artefact of an envelope estimated from few runs: among
    thousands of elements, some have a much too small sample deviation.
    """
    if found.rule != "bound" or found.where.numel() > CLOSE[0] * pair.r.numel():
        return False
    at = found.where
    return bool((pair.error[at].abs() <= CLOSE[1] * _bound(pair, sigma)[at]).all())


def _flat_sigma(
    evidence: Evidence, sigma: Tensor | None, otherwise: Tensor | None = None
) -> Tensor | None:
    if sigma is None:
        return otherwise
    sigma = torch.nan_to_num(sigma.double(), nan=0.0, posinf=0.0)
    if evidence.reference.is_complex():
        sigma = sigma.unsqueeze(-1).expand(*sigma.shape, 2)
    return sigma.reshape(-1)


def _share(pair: _Pair, sigma: Tensor | None) -> float:
    """Return the share of the allowed error that the errors within the bound use."""
    error = pair.error
    each = torch.nan_to_num(error.abs() / _bound(pair, sigma), 0.0, 0.0)
    rms = _size_and_bias(pair, error, sigma)[0] / RMS[pair.form.is_half]
    return max(float(each.max()), rms if math.isfinite(rms) else 0.0)


# R1 and R3: each element.


def _bound(pair: _Pair, sigma: Tensor | None) -> Tensor:
    allowed = pair.step * STEPS[pair.form.is_half]
    return allowed if sigma is None else allowed + SIGMAS * sigma


def _outside(pair: _Pair, sigma: Tensor | None) -> _Finding | None:
    """Return the first rule that the pair violates, with or without an envelope."""
    error, bound = pair.error, _bound(pair, sigma)
    outside = ~(error.abs() <= bound) | pair.r.isinf()  # a nan counts as outside
    if bool(outside.any()):
        where = outside.nonzero().reshape(-1)
        found = _specials(pair, where) or _beyond(pair, where)
        if found is not None:
            return found
    return _statistics(pair, error, sigma)


def _specials(pair: _Pair, where: Tensor) -> _Finding | None:
    y, r = pair.y[where], pair.r[where]
    nan = y.isnan() != r.isnan()
    if bool(nan.any()):
        return _Finding(
            "nan", _elements(pair, _count(nan), _("are NaN on one side only")), where[nan]
        )
    infinite = (y.isinf() | r.isinf()) & ~_overflow_allowed(y, r, pair.form) & ~y.isnan()
    if bool(infinite.any()):
        return _Finding(
            "inf",
            _elements(pair, _count(infinite), _("are infinite on one side only")),
            where[infinite],
        )
    return None


def _overflow_allowed(y: Tensor, r: Tensor, form: Format) -> Tensor:
    """Accept infinities of equal sign,
    and infinity against a reference next to the largest number.
    """
    over = form.largest * (1 + form.roundoff)  # numbers from here on round to infinity
    near = 2 * form.roundoff
    same = r.sign() == y.sign()
    infinite = y.isinf() & (r.abs() >= over * (1 - near)) & same
    finite = ~y.isinf() & (r.abs() <= over * (1 + near)) & same
    return infinite | finite


def _beyond(pair: _Pair, where: Tensor) -> _Finding | None:
    y, r = pair.y[where], pair.r[where]
    excused = (y.isnan() & r.isnan()) | (y == r) | y.isinf() | r.isinf()
    excused |= (y == 0) & (r.abs() < pair.form.smallest_normal)  # flushed to zero
    left = where[~excused]
    if not left.numel():
        return None
    text = _elements(pair, left.numel(), _("differ by more than rounding allows"))
    return _Finding("bound", text, left)


def _elements(pair: _Pair, count: int, what: str) -> str:
    """Format `3 of 512 elements …`."""
    return _("{count:,} of {total:,} {total:element|elements} {what}").format(
        count=count, total=pair.y.numel(), what=what
    )


def _count(mask: Tensor) -> int:
    return int(mask.sum())


# R2: all elements together.


def _statistics(pair: _Pair, error: Tensor, sigma: Tensor | None) -> _Finding | None:
    if error.numel() < MANY:
        return None
    rms, bias = _size_and_bias(pair, error, sigma)
    half, nowhere = pair.form.is_half, torch.empty(0, dtype=torch.int64)
    if rms > RMS[half]:
        message = _("the errors are {rms:.3g} times those of rounding (limit {limit})").format(
            rms=rms, limit=RMS[half]
        )
        return _Finding("rms", message, nowhere, rms / RMS[half])
    limit = BIAS + 6 / math.sqrt(error.numel())
    if half and abs(bias) > limit:
        message = _(
            "the errors have a mean of {bias:.3g} rounding steps (limit {limit:.2g})"
        ).format(bias=bias, limit=limit)
        return _Finding("bias", message, nowhere, abs(bias) / limit)
    return None


def _size_and_bias(pair: _Pair, error: Tensor, sigma: Tensor | None) -> tuple[float, float]:
    """Return root mean square and signed mean of the errors, in units of the expected rounding
    error.

    Correctly rounded elements count in neither: a constant may lie far from its neighbours.
    """
    if sigma is None:
        scaled = error / pair.step * math.sqrt(12)
    else:
        scaled = error / torch.sqrt(pair.step**2 / 12 + (2 * sigma) ** 2)
    wrong = error.abs() > pair.step * HALF
    wrong &= scaled.isfinite()
    size = scaled[wrong]
    lean = float(torch.dot(size, pair.r[wrong].sign())) if size.numel() else 0.0
    count = error.numel()
    right = torch.where(wrong, 0.0, scaled).clamp_(-1.0, 1.0)
    right = torch.nan_to_num_(right)
    total = float(torch.dot(size, size)) + float(torch.dot(right, right))
    return math.sqrt(total / count), lean / count


# The CPU's own result as a second opinion.


def _same(result: Tensor, plain: Tensor) -> bool:
    if result.dtype != plain.dtype:
        return False
    if torch.equal(result, plain):
        return True
    nans = result.isnan()
    return bool(nans.any()) and bool(torch.where(nans, plain.isnan(), result == plain).all())


def _as_good(pair: _Pair, plain: _Pair, where: Tensor) -> bool:
    """Whether the errors equal those of the CPU, overall and among values of similar size."""
    mine, cpu = pair.error.abs(), plain.error.abs()
    if not (bool(mine.isfinite().all()) and bool(cpu.isfinite().all())):
        return False
    if float(mine.square().mean()) > AS_GOOD[0] ** 2 * float(cpu.square().mean()):
        return False
    binade = pair.r.contiguous().view(torch.int64).bitwise_right_shift(52) & 0x7FF
    largest = torch.zeros(2048, dtype=torch.float64).scatter_reduce_(0, binade, cpu, "amax")
    count = torch.bincount(binade, minlength=2048)
    at = binade[where]
    return bool(((count[at] >= FEW) & (mine[where] <= AS_GOOD[1] * largest[at])).all())


def _excused(pair: _Pair, plain: _Pair, sigma: Tensor | None, found: _Finding) -> _Finding | None:
    """Return what remains of a violation when the CPU's own run in the result's type
    violates the rule, too.
    """
    theirs = _outside(plain, sigma)
    if theirs is None:
        return found
    if found.where.numel():
        y, other = pair.y[found.where], plain.y[found.where]
        near = (y - other).abs() <= pair.step[found.where] * STEPS[pair.form.is_half]
        left = found.where[~(near | (y == other) | (y.isnan() & other.isnan()))]
        if not left.numel():
            return None
        found = replace(found, where=left)
    if found.rule in ("nan", "inf"):
        return found
    mine, cpu = _finite(pair.error.abs()), _finite(plain.error.abs())
    rms, largest = AS_BAD
    no_worse = float(mine.square().mean()) <= rms**2 * float(cpu.square().mean())
    no_worse = no_worse and float(mine.max()) <= largest * float(cpu.max())
    if found.rule == "bias" and no_worse and theirs.rule == "bound":
        return found  # inexact arithmetic gives no reason for a bias
    return None if no_worse else found


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


# Build the verdict.


def _passed(evidence: Evidence, rule: str, bound: float | None) -> Verdict:
    """Build a passing verdict. `bound` is the allowed error; None: the observed error."""
    verdict = with_figures(equal(evidence.result, rule), evidence.result, evidence.reference)
    return replace(verdict, bound=verdict.max_abs if bound is None else bound)


def _allowed(pair: _Pair, sigma: Tensor | None) -> float:
    """Return the bound of the element with the largest error, plus half a step, because `max_abs`
    is
    the difference to a reference that was rounded to the result's type.
    """
    worst = int(_finite(pair.error.abs()).argmax())
    return float(_bound(pair, sigma)[worst] + pair.step[worst] / 2)


def _largest(pair: _Pair) -> float:
    return float(_finite(pair.error.abs()).max())


def _failed(evidence: Evidence, pair: _Pair, sigma: Tensor | None, found: _Finding) -> Verdict:
    bound, error = _bound(pair, sigma), pair.error.abs()
    ratios = torch.nan_to_num(error / bound, nan=math.inf)
    candidates = found.where if found.where.numel() else torch.arange(ratios.numel())
    worst = int(candidates[int(ratios[candidates].argmax())])
    shape = tuple(evidence.result.shape)
    number = worst // 2 if evidence.result.is_complex() else worst
    index = place(number, shape)
    flat, expected = evidence.result.reshape(-1), evidence.reference.reshape(-1)
    observed, allowed = float(error[worst]), float(bound[worst])
    ratio = float(ratios[worst]) if found.ratio is None else found.ratio
    values = flat[number].item(), expected[number].item()
    text = _("{message}. {worst}").format(
        message=found.message, worst=worst_at(index, *values, observed, allowed)
    )
    verdict = Verdict(
        False,
        found.rule,
        text,
        name_of(evidence.result.dtype),
        shape,
        found.where.numel(),
        evidence.result.numel(),
        observed,
        allowed,
        ratio,
        index,
        flat[number].item(),
        expected[number].item(),
    )
    return with_figures(verdict, evidence.result, evidence.reference)
