# SPDX-License-Identifier: Apache-2.0
"""A trial: the vendor's run of a case, the expected results, and its grades."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deeplink.judge.verdict import name_of
from deeplink.testing.samples import UNINITIALISED
from diopi.conformance.cases.case import Case, Finding
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.execution.expected import Expected
from diopi.conformance.execution.grading import SPECIAL, Judged, chose_equal, grade
from diopi.conformance.execution.running import Run, host, run
from diopi.conformance.execution.subject import Subject

Findings = list[Finding] | None  # None: the check does not apply
ROUGH = 64.0  # factor on the bound up to which the CPU's extra roundings are accepted


@dataclass
class Trial:
    """One case on one vendor, and its grades so far."""

    case: Case
    callee: Callee
    sample: Sample
    subject: Subject
    expected: Expected
    found: Run
    judged: list[Judged] = field(default_factory=list)

    def again(self, **changes: Any) -> Run:
        """Run the call once more on the vendor."""
        with self.subject.active():
            return run(self.subject.takes(self.callee), self.sample, self.subject.device, **changes)

    @property
    def comparable(self) -> bool:
        """Whether values can be compared at all."""
        plain = self.expected.plain
        drops = self.sample.kwargs.get("dropout_p", 0.0) or 0.0
        draws = plain.drew or self.callee.draws or drops > 0
        return not (draws or self.callee.name in UNINITIALISED)

    def grade(
        self,
        what: str,
        result: Tensor,
        place: int,
        cpu: Callable[[], list[Tensor]] | None = None,  # the CPU's run of this form
    ) -> list[Finding]:
        """Return the finding on one result; empty for grade A."""
        wanted = self.expected
        plain = wanted.plain_results[place]
        is_finer = place > 0 and finer(result, plain)
        if (result.dtype != plain.dtype and not is_finer) or result.shape != plain.shape:
            text = f"{kind(result)}, expected {kind(plain)}"
            return [Finding(what, text)]
        judged = self._graded(result, place, lambda: self._cpus(place, cpu))
        return self.note(what, judged, result, wanted.results[place])

    def _graded(self, result: Tensor, place: int, plain: Callable[[], Tensor]) -> Judged:
        wanted = self.expected
        return grade(
            wanted.stored_as(wanted.picked(result)),
            wanted.results[place],
            lambda: wanted.stored_as(wanted.picked(plain())),
            lambda: at(wanted.sigma, place),
        )

    def _cpus(self, place: int, cpu: Callable[[], list[Tensor]] | None) -> Tensor:
        """Return the CPU's own result: in the requested form,
        unless the CPU is far off in that form.
        """
        plain = self.expected.plain_results[place]
        if cpu is None and self.sample.laid:
            cpu = self._laid
        if cpu is None:
            return plain
        result = cpu()[place]
        return result if bearable(self._graded(result, place, lambda: plain)) else plain

    def _laid(self) -> list[Tensor]:
        """Return the CPU's own results for arguments in the layout of the vendor's."""
        return [host(tensor) for tensor in self.expected.plain.tensors]

    def grade_gradient(self, gradient: Tensor, wanted: Tensor, place: int) -> Judged:
        """Grade the gradient of one argument."""
        return self._gradient(gradient, wanted, place, lambda: self._cpus_gradient(wanted, place))

    def _gradient(
        self, gradient: Tensor, wanted: Tensor, place: int, plain: Callable[[], Tensor | None]
    ) -> Judged:
        expected = self.expected

        def cpus() -> Tensor | None:
            found = plain()
            return None if found is None else expected.stored_as(found)

        result = expected.stored_as(expected.picked(gradient))
        return grade(result, wanted, cpus, lambda: at(expected.gradient_sigma, place))

    def _cpus_gradient(self, wanted: Tensor, place: int) -> Tensor | None:
        expected = self.expected
        plain = expected.plain_gradients[place]
        if plain is None or not self.sample.laid:
            return None if plain is None else expected.picked(plain)
        settled = expected.picked(plain)
        laid = expected.plain.gradients(expected.seeds)[place]
        if laid is None:
            return settled
        judged = self._gradient(host(laid), wanted, place, lambda: settled)
        return expected.picked(host(laid)) if bearable(judged) else settled

    def grade_written(self, place: int, result: Tensor, plain: Tensor) -> list[Finding]:
        """Return the finding on an argument that the op writes."""
        reference = self.expected.given[place]

        def sigma() -> Tensor | None:
            return at(self.expected.given_sigma, place)

        result = self.expected.stored_as(result)
        plain = self.expected.stored_as(plain)

        def sound() -> Tensor | None:
            return plain if bearable(grade(plain, reference, lambda: None, sigma)) else None

        judged = grade(result, reference, sound, sigma)
        return self.note("inputs", judged, result, reference)

    def note(self, what: str, judged: Judged, result: Tensor, reference: Tensor) -> list[Finding]:
        """Record a grade, and return its finding."""
        if judged.grade == "F" and chose_equal(self.callee.name, self.sample, result, reference):
            judged = Judged("A", judged.verdict, "equal values")
        self.judged.append(judged)
        if judged.grade == "A":
            return []
        name = "specials" if judged.verdict.rule in SPECIAL and what == "values" else what
        return [Finding(name, judged.message, judged.grade)]


def bearable(judged: Judged) -> bool:
    """Whether the CPU's error is rounding, not a mistake."""
    return judged.grade != "F" or judged.verdict.ratio <= ROUGH


def at(values: Sequence[Tensor | None] | None, place: int) -> Tensor | None:
    """Return the value at an index; None where there is none."""
    return values[place] if values is not None and place < len(values) else None


def kind(tensor: Tensor) -> str:
    """Describe the dtype and shape of a tensor."""
    return f"{name_of(tensor.dtype)} {list(tensor.shape)}"


def finer(mine: Tensor, wanted: Tensor) -> bool:
    """Whether a tensor is kept in float32 next to results of a half type."""
    return mine.dtype == torch.float32 and wanted.dtype in (torch.float16, torch.bfloat16)


def line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())[:300]
