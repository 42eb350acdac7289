# SPDX-License-Identifier: Apache-2.0
"""The problem report of each wrong operator: place, common property, workaround, next step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deeplink.i18n import _
from op_tools.core.call import Call
from op_tools.core.pattern import KINDS_AT_MOST, Description, Evidence, describe
from op_tools.core.problem import Problem, run_command

if TYPE_CHECKING:
    from op_tools.compare.console import Failure

PENDING = 4096  # described calls whose verdicts may be pending
KINDS_OF_EACH = 64  # of calls of an operator that are kept where every operator is described


class Patterns:
    """Describes the calls of each operator after its first wrong one. Not thread-safe.

    `every`: also the calls of operators without a wrong one, for a tool that checks few calls.
    """

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._evidence: dict[str, Evidence] = {}
        self._described: dict[int, Description] = {}  # by the id of the call

    def before(self, call: Call) -> None:
        """Describe a call whose operator has been wrong; its arguments may be written later."""
        if self._every or call.name in self._evidence:
            while len(self._described) >= PENDING:
                self._described.pop(next(iter(self._described)))
            self._described[call.id] = describe(call.args, call.kwargs)

    def judged(self, name: str, call: int, passed: bool) -> None:
        """Count a verdict on a call, by its operator and its id."""
        description = self._described.get(call)
        if not passed or description is not None:
            kinds = KINDS_OF_EACH if self._every else KINDS_AT_MOST
            evidence = self._evidence.setdefault(name, Evidence(kinds))
            if description is not None:
                evidence.add(description, passed)

    def of(self, name: str) -> str:
        """What the wrong calls of an operator have in common; empty: nothing that is known."""
        evidence = self._evidence.get(name)
        return "" if evidence is None else evidence.pattern()


def problems(
    failures: Sequence[Failure], pattern: Callable[[str], str], count: int
) -> dict[str, Problem]:
    """One verdict for each wrong operator, the worst first, by its name; `count` at most."""
    worst: dict[str, Failure] = {}
    for failure in failures:
        known = worst.get(failure.name)
        if known is None or failure.verdict.ratio > known.verdict.ratio:
            worst[failure.name] = failure
    ordered = sorted(worst.values(), key=lambda failure: -failure.verdict.ratio)[:count]
    return {one.name: _problem(one, failures, pattern(one.name)) for one in ordered}


def _problem(worst: Failure, failures: Sequence[Failure], pattern: str) -> Problem:
    own = [failure for failure in failures if failure.name == worst.name]
    saved = next((failure.saved for failure in [worst, *own] if failure.saved), "")
    places = len({(failure.site, failure.module) for failure in own})
    module = _(", module {module}").format(module=worst.module) if worst.module else ""
    more = _(" (the worst of {places} places)").format(places=places) if places > 1 else ""
    return Problem(
        _("{name}, {item} {direction}: {message}").format(
            **vars(worst), message=worst.verdict.message
        ),
        _("{where}{module}, step {step}{more}").format(
            where=worst.where, module=module, step=worst.step, more=more
        ),
        (pattern,) if pattern else (),
        run_command("fallback", worst.name),
        f"python -m op_tools.run_op_from_data {saved} --acc_check" if saved else "",
    )


def write(path: Path, found: Mapping[str, Problem]) -> None:
    """Write the verdicts by operator, for `deeplink bisect` and reports."""
    content = {name: problem.as_dict() for name, problem in found.items()}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
