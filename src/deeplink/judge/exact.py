# SPDX-License-Identifier: Apache-2.0
"""Exact comparison of integers, bools and indices of values."""

from __future__ import annotations

import torch
from torch import Tensor

from deeplink.i18n import _
from deeplink.judge.evidence import Evidence
from deeplink.judge.verdict import Verdict, equal, name_of, place


def exactly(evidence: Evidence) -> Verdict:
    """Require each element to equal the reference or the CPU's result in the same type.

    The CPU's result counts where an integer was truncated from a computed value: `x // y`, `x > y +
    z`.
    """
    result, expected = evidence.result, evidence.reference
    if expected.dtype != result.dtype:
        expected = expected.to(result.dtype)
    if torch.equal(result, expected):
        return equal(result)
    wrong = result != expected
    plain = evidence.plain
    if plain is not None:
        wrong &= result != plain.to(result.dtype)
        if not bool(wrong.any()):
            return equal(result, "as the CPU")
    where = wrong.reshape(-1).nonzero().reshape(-1)
    first = int(where[0])
    index, count = place(first, tuple(result.shape)), where.numel()
    a, b = (t.reshape(-1)[first].item() for t in (result, expected))
    text = _(
        "{count:,} of {total:,} {total:element|elements} {count:is|are} not equal. First "
        "at {index}: "
    ).format(count=count, total=result.numel(), index=list(index))
    text += _("got {a}, expected {b}").format(a=a, b=b)
    gap = abs(int(a) - int(b))
    return Verdict(
        False,
        "exact",
        text,
        name_of(result.dtype),
        tuple(result.shape),
        count,
        result.numel(),
        float(gap),
        0.0,
        float("inf"),
        index,
        a,
        b,
        max_abs=float(_largest_gap(result, expected)),
        max_rel=float(gap / (abs(int(a)) + 1e-6)),
        cosine=float("nan"),
    )


def _largest_gap(result: Tensor, expected: Tensor) -> int:
    """Return the largest |result - expected|, without the wrap-around of unsigned types."""
    gaps = (result.double() - expected.double()).abs()
    return int(gaps.max())


def same_choice(
    values: Tensor, result: Tensor, expected: Tensor, dim: int | None, distinct: bool = False
) -> bool:
    """Whether two tensors of indices select equal values; among ties any index is correct.

    `dim` None: indices into the flattened values. `distinct`: no element may be selected twice.
    """
    if result.shape != expected.shape or values.is_complex():
        return False
    if torch.equal(result, expected):
        return True
    if dim is None or values.dim() == 0:
        values, dim = values.reshape(-1), 0
        result, expected = result.reshape(-1), expected.reshape(-1)
    elif result.dim() == values.dim() - 1:
        result, expected = result.unsqueeze(dim), expected.unsqueeze(dim)
    if bool((result < 0).any()) or bool((result >= values.shape[dim]).any()):
        return False
    if distinct and bool((result.sort(dim).values.diff(dim=dim) == 0).any()):
        return False
    mine, theirs = values.gather(dim, result), values.gather(dim, expected)
    return bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())
