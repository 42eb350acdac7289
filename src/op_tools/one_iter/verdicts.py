# SPDX-License-Identifier: Apache-2.0
"""Verdicts on a unit's results and gradients: equal to the record, or correct by the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from deeplink.i18n import _
from deeplink.judge import Verdict, judge
from deeplink.judge.formats import FORMATS
from deeplink.precision import EXACT, Precision
from op_tools.compare.eligibility import WIDE, NoReferenceError
from op_tools.compare.host_verdicts import (
    Evidence,
    Item,
    RecordedCall,
    rounding_noise,
    unchanged,
    verdict_on,
)
from op_tools.compare.rerun import Rerun, Run
from op_tools.core.call import Call
from op_tools.one_iter.layer_function import Given, Made, Unit

STANDARD = "calibrated"
NOISE = 32  # roundoffs


@dataclass(frozen=True)
class Case:
    """A unit with its record, on the host, in the order of its results and leaves."""

    unit: Unit
    name: str
    given: Given
    seeds: list[Tensor | None]  # gradients of the results, from which the backward pass starts
    results: list[Tensor | None]
    gradients: list[Tensor | None]
    result_labels: list[str]
    gradient_labels: list[str]
    autocast: torch.dtype | None = None
    precision: Precision = EXACT  # the precision of float32 on the device


def judged(case: Case, made: Made) -> tuple[list[Item], list[Item]]:
    """Judge the results and the gradients."""
    again = _Again(case)
    forward = [
        Item(label, _verdict(again, mine, recorded, place, again.forward))
        for place, (label, mine, recorded) in enumerate(
            zip(case.result_labels, made.results, case.results, strict=True)
        )
    ]
    backward = [
        Item(label, _verdict(again, mine, recorded, place, again.backward))
        for place, (label, mine, recorded) in enumerate(
            zip(case.gradient_labels, made.gradients, case.gradients, strict=True)
        )
        if mine is not None
    ]
    return forward, backward


def _verdict(
    again: _Again, mine: Tensor, recorded: Tensor | None, place: int, side: _Side
) -> Verdict:
    if recorded is not None:
        verdict = judge(mine, recorded)
        if verdict.passed:
            return replace(verdict, rule="as recorded")
        if _is_noise(mine, recorded):
            return replace(unchanged(mine), rule="as recorded, but for rounding")
    reference = side.reference
    if reference is None:
        if recorded is None:
            return Verdict(True, "not compared", _("neither recorded nor computed on the host"))
        return judge(mine, recorded, standard="torch")
    theirs = reference[place]
    if theirs is None:
        theirs = torch.zeros(mine.shape, dtype=torch.float64)
    return verdict_on(again.taken, mine, theirs, side, place, STANDARD)


def _is_noise(mine: Tensor, recorded: Tensor) -> bool:
    """Whether every difference is rounding of sums in another order, relative to a typical element.

    It saves an expensive run for most correct results. Not for half types, whose rounding is
    coarse.
    """
    if mine.dtype != recorded.dtype or mine.shape != recorded.shape:
        return False
    if mine.dtype not in (torch.float32, torch.float64):
        return False
    recorded = recorded.detach()
    largest = (mine - recorded).abs().max()  # a nan is above any limit
    typical = recorded.abs().median()
    return bool(largest <= NOISE * FORMATS[mine.dtype].roundoff * typical)


class _Again:
    """The unit on the host in float64, run when a verdict needs it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        given = case.given
        call = Call(0, case.name, case.unit, given.as_tuple(), {})
        requires = frozenset(id(leaf) for leaf in given.flat() if leaf.requires_grad)
        self.again = Rerun(call, requires, writes=False, types=WIDE, autocast=case.autocast)
        self.again.precision = case.precision
        self.again.draws_nothing = True  # the unit has its own seeds
        self.taken = RecordedCall(self.again, None, [], wants_gradient=bool(requires))
        self.forward = _Forward(self)
        self.backward = _Backward(self)

    @cached_property
    def run(self) -> Run | None:
        """Run the unit; None: the host cannot run it."""
        try:
            return self.again.reference(grad=self.taken.wants_gradient)
        except NoReferenceError:
            return None


class _Side(Evidence):
    """The arguments of `verdict_on`: the record as the plain run, and the effect of rounding."""

    def __init__(self, again: _Again) -> None:
        self._again = again

    @property
    def reference(self) -> Sequence[Tensor | None] | None:
        raise NotImplementedError

    def once(self) -> Sequence[Tensor | None]:
        raise NotImplementedError

    def noise(self, samples: int | None) -> list[Tensor | None] | None:
        assert self.reference is not None  # computed when needed
        centre = [None if tensor is None else tensor.detach() for tensor in self.reference]
        return rounding_noise(self._again.again, self.once, centre, samples)


class _Forward(_Side):
    @property
    def plain(self) -> list[Tensor | None]:
        return self._again.case.results

    @property
    def reference(self) -> Sequence[Tensor | None] | None:
        run = self._again.run
        return None if run is None else run.results

    def once(self) -> Sequence[Tensor | None]:
        again = self._again.again
        return again.run(again.types, grad=False).results


class _Backward(_Side):
    @property
    def plain(self) -> list[Tensor | None]:
        return self._again.case.gradients

    @cached_property
    def reference(self) -> Sequence[Tensor | None] | None:
        run = self._again.run
        return None if run is None else run.gradients(self._again.case.seeds)

    def once(self) -> Sequence[Tensor | None]:
        again = self._again.again
        return again.run(again.types, grad=True).gradients(self._again.case.seeds)
