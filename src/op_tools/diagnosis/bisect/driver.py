# SPDX-License-Identifier: Apache-2.0
"""`deeplink bisect`: the operators that fix the loss of a program when they run on the CPU.

    found = Bisection(Function(train, ["train"]), folder).run()
    print(found["verdict"])

Runs: the unchanged program (observed), all operators on the CPU, all of them in float64 for the
effect of rounding on the loss, then the search. The file bisect.json is written after each run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from deeplink.i18n import _
from deeplink.run.loss_log import Loss
from op_tools.core import spelling
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect import launch, repro_script
from op_tools.diagnosis.bisect.ddmin import Exhausted, Search
from op_tools.diagnosis.bisect.health_checks import (
    Check,
    LossCheck,
    Seen,
    is_decided,
    judged,
    tolerance_of,
)
from op_tools.diagnosis.bisect.reroute_tool import WIDE_ON_CPU, Plan, Where
from op_tools.diagnosis.bisect.runner import Command, Runner, Until, evidence_in
from op_tools.diagnosis.result_files import Bisect, BisectRun, Guilty, Place

SHOWN = 16  # of the last losses of a run that are kept
SEARCHING = ("search", "places", "as it is, again")  # purposes of runs that end early
LOOSE = 0.1  # relative: with a larger effect of rounding, the program is not reproducible
Status = Literal["found", "nothing", "program", "unclear", "broken"]
Tell = Callable[[str], None]


class Ended(Exception):
    """The end of the search, with its status and its verdict."""

    def __init__(self, status: Status, verdict: str) -> None:
        super().__init__(verdict)
        self.status, self.verdict = status, verdict


@dataclass(frozen=True)
class Asked:
    """The options of the user."""

    check: Check | None = None  # None: the losses of a run on the CPU
    reference: Sequence[Loss] | None = None  # reference losses from a file
    tolerance: float | None = None  # relative, of a loss; None: the effect of rounding
    instead: str = "cpu"
    level: str = "aten"
    suspects: bool = True
    places: bool = True
    script: bool = True
    at_most: int = 60  # runs of the search


class Bisection:
    """One search. `tell` gets a line for each run."""

    def __init__(
        self,
        runner: Runner,
        folder: Path,
        asked: Asked | None = None,
        tell: Tell = lambda line: None,
    ) -> None:
        self._runner, self._folder, self._tell = runner, folder, tell
        self._asked = asked or Asked()
        self._check = self._asked.check
        self._begun = time.monotonic()
        self._left = 0
        self._made: list[tuple[Seen, BisectRun]] = []
        self._most = 0  # losses of a run
        self._places: Counter[Where] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        self.found: Bisect = {
            "kind": "bisect",
            "version": result_files.VERSION,
            "command": runner.line,
            "made": result_files.made(),
            "check": self._check.described() if self._check is not None else {"kind": "loss"},
            "instead": self._asked.instead,
            "level": self._asked.level,
            "status": "running",
            "verdict": "",
            "candidates": [],
            "suspects": [],
            "guilty": [],
            "fix": "",
            "runs": [],
            "seconds": 0.0,
        }

    def run(self) -> Bisect:
        """Run the search; the result is written to bisect.json, too."""
        try:
            self._search()
        except Ended as end:
            self.found["status"], self.found["verdict"] = end.status, end.verdict
        self._save()
        return self.found

    def _search(self) -> None:
        plain = self._once(_("as it is"), Plan(level=self._asked.level), self._asked.suspects)
        self._must_run(plain, "")
        doubtful = plain.ended and self._check is not None and self._check.by_losses
        if self._check is not None and not doubtful and self._passes(plain):
            self._nothing()
        everything = self._once(_("everything"), self._plan(everything=True))
        self._must_run(everything, _(" with everything on the CPU"), len(plain.losses))
        self._places = plain.counts.could or everything.counts.could  # a crash leaves none
        by_name: Counter[str] = Counter()
        for where, count in self._places.items():
            by_name[where[0]] += count
        if not by_name:
            raise Ended("broken", NO_TOOLS)
        self.found["candidates"] = sorted(by_name)
        self.found["suspects"] = [name for name in plain.suspects if name in by_name]
        check: Check = self._check or self._loss_check(plain, everything)
        self._check = check
        self.found["check"] = check.described()
        if not self._passes(everything):
            raise Ended("program", _is_the_programs(judged(check, everything, self._most)[1]))
        ops = self._by_bits(plain) if self._passes(plain) else self._faulty_ops()
        self._must_fail_again()
        self.found["guilty"] = [
            Guilty(
                op=op,
                calls=by_name[op],
                places=self._all_places([op]),
                script="",
                capture="",
                evidence=evidence_in(self._folder, op),
            )
            for op in ops
        ]
        if self._asked.places:
            self._narrow(ops)
        if self._asked.script:
            repro_script.scripts(self._runner, self._folder, self.found, len(self.found["runs"]))
        if self._asked.instead == "cpu" and isinstance(self._runner, Command):
            self.found["fix"] = launch.with_tools(
                self._runner.line, ["--fallback", ",".join(ops), *self._level_of(ops)]
            )
        raise Ended("found", self._told(ops))

    # The check.

    def _loss_check(self, plain: Seen, everything: Seen) -> LossCheck:
        reference = self._asked.reference or everything.losses
        source = "a file" if self._asked.reference else "everything on the CPU"
        if not reference or not plain.losses:
            raise Ended("broken", NO_LOSS)
        if self._asked.tolerance is not None:
            wide = [self._asked.tolerance * abs(loss.value) for loss in reference]
            return LossCheck(reference, wide, source)
        exact = LossCheck(reference, [0.0] * len(reference), source)
        if exact(plain)[0]:
            return exact
        wide_plan = self._plan(everything=True, instead=WIDE_ON_CPU)
        again = self._once(_("rounding"), wide_plan)
        self._must_run(again, _(" with everything on the CPU in float64"), len(plain.losses))
        allowed = tolerance_of(everything.losses, again.losses) or [0.0]
        made = LossCheck(reference, allowed, source)
        size = max(abs(loss.value) for loss in reference)
        self.found["runs"][-1]["reason"] = _(
            "measured rounding tolerance for the loss: {max:.3g}"
        ).format(max=max(allowed))
        if max(allowed) > LOOSE * size and made(plain)[0]:
            raise Ended("unclear", NOT_THE_SAME.format(share=max(allowed) / max(size, 1e-30)))
        return made

    def _passes(self, seen: Seen) -> bool:
        assert self._check is not None  # it is made before
        passed, reason = judged(self._check, seen, self._most)
        self._note(seen, "passed" if passed else "failed", reason)
        return passed

    def _nothing(self) -> NoReturn:
        """End the search: the unchanged program is correct, perhaps only under the tools."""
        bare = self._once(_("as it is, without tools"), None)
        if not self._passes(bare):
            assert self._check is not None
            raise Ended(
                "unclear",
                ONLY_BARE.format(
                    reason=judged(self._check, bare, self._most)[1], level=self._asked.level
                ),
            )
        raise Ended("nothing", _("Nothing to find: the program is correct as it is."))

    def _by_bits(self, plain: Seen) -> list[str]:
        """Search by the bits of the loss, where the loss of the unchanged program is correct:
        suspects are the cause if all differences from the CPU are theirs.
        """
        suspects, within = self.found["suspects"], self._check
        if not isinstance(within, LossCheck):
            self._nothing()
        exact = LossCheck(within.reference, [0.0] * len(within.reference), within.source)
        if not suspects or exact(plain)[0] or self._asked.tolerance is not None:
            self._nothing()
        self._check = exact
        if not self._try("search", frozenset(suspects), None):
            names = ", ".join(suspects)
            raise Ended("nothing", WITHIN.format(names=names))
        self.found["check"] = {**exact.described(), "within rounding": True}
        return self._faulty_ops()

    def _must_fail_again(self) -> None:
        """Run the unchanged program again if only the first run has failed, perhaps by chance."""
        if any(r["purpose"] == "search" and r["outcome"] != "passed" for r in self.found["runs"]):
            return
        if self._passes(self._once("as it is, again", self._plan())):
            raise Ended("unclear", BY_CHANCE)

    # The search.

    def _faulty_ops(self) -> list[str]:
        search = Search(
            sorted(self.found["candidates"]),
            lambda some: self._try("search", cast("frozenset[str]", some), None),
            at_most=self._asked.at_most,
            left=self._set_left,
        )
        suspects = self.found["suspects"]
        few = suspects if len(suspects) <= len(self.found["candidates"]) // 2 else []
        try:
            return cast("list[str]", search.run(few))
        except Exhausted as error:
            smallest = ", ".join(map(str, error.smallest[:20]))
            raise Ended(
                "unclear", TOO_MANY.format(count=self._asked.at_most, names=smallest)
            ) from None

    def _narrow(self, ops: list[str]) -> None:
        """The needed places among those of the operators, if few runs suffice to find them."""
        places = [where for where in self._places if where[0] in ops]
        search = Search(
            places,
            lambda some: self._try("places", frozenset(ops), cast("frozenset[Where]", some)),
            at_most=max(2, (len(places) - 1).bit_length() + 2),
            left=self._set_left,
        )
        try:
            needed = cast("list[Where]", search.run()) if len(places) > 1 else places
        except Exhausted:
            return  # in many of them
        for faulty in self.found["guilty"]:
            chosen = [where for where in needed if where[0] == faulty["op"]]
            faulty["places"] = [_place(where, self._places[where]) for where in chosen]

    def _try(self, purpose: str, ops: frozenset[str], places: frozenset[Hashable] | None) -> bool:
        chosen = None if places is None else tuple(sorted(cast("frozenset[Where]", places)))
        return self._passes(self._once(purpose, self._plan(tuple(sorted(ops)), chosen)))

    def _plan(
        self,
        ops: tuple[str, ...] = (),
        places: tuple[Where, ...] | None = None,
        everything: bool = False,
        instead: str = "",
    ) -> Plan:
        return Plan(instead or self._asked.instead, self._asked.level, everything, ops, places)

    def _all_places(self, ops: Sequence[str]) -> list[Place]:
        return [_place(w, count) for w, count in self._places.items() if w[0] in ops]

    # One run.

    def _once(self, purpose: str, plan: Plan | None, suspects: bool = False) -> Seen:
        number = len(self.found["runs"]) + 1
        ops = [] if plan is None else list(plan.ops)
        candidates = len(self.found["candidates"])
        what = (
            _("testing {count} of {candidates} {candidates:operator|operators}").format(
                count=len(ops), candidates=candidates
            )
            if ops
            else purpose
        )
        total = f"/{number + self._left}+" if self._left > 1 else ""
        self._tell(_("run {number}{total}: {what}").format(number=number, total=total, what=what))
        seen = self._runner(plan, number, suspects, self._until(purpose))
        self._most = max(self._most, len(seen.losses))
        chosen = [] if plan is None else [_place(w, 0) for w in plan.places or ()]
        outcome = ("timeout" if seen.exit == 124 else "broken") if seen.problem else "passed"
        self.found["runs"].append(
            BisectRun(
                number=number,
                purpose=purpose,
                ops=ops,
                places=chosen,
                outcome=cast("Any", outcome),
                reason=seen.problem,
                losses=cast("list[float | None]", seen.values[-SHOWN:]),
                seconds=round(seen.seconds, 3),
                log=str(seen.log or ""),
            )
        )
        self._made.append((seen, self.found["runs"][-1]))
        self._save()
        return seen

    def _until(self, purpose: str) -> Until | None:
        """The condition that ends a run of the search early, by its losses."""
        check, most = self._check, self._most
        if check is None or purpose not in SEARCHING:
            return None
        text = f"{check.described()} of {most}"
        return Until(lambda losses: is_decided(check, losses, most), text)

    def _note(self, seen: Seen, outcome: str, reason: str) -> None:
        """Record the verdict of the check on a run."""
        for made, run in self._made:
            if made is seen:
                self._tell(
                    _("run {number} {outcome}: {reason}").format(
                        number=run["number"], outcome=outcome, reason=reason
                    )
                )
                if run["outcome"] != "timeout":
                    run["outcome"], run["reason"] = cast("Any", outcome), reason
        self._save()

    def _must_run(self, seen: Seen, when: str, losses: int = 1) -> None:
        """End the search if a run broke off before it had this many losses."""
        asked = self._asked.check
        if asked is not None and asked.kind == "exit":
            return
        by_losses = asked is None or asked.by_losses
        if (seen.problem and not by_losses) or (seen.ended and len(seen.losses) < max(1, losses)):
            raise Ended(
                "broken",
                _("The program does not run{when}: {ended}.{last_lines}").format(
                    when=when, ended=seen.ended, last_lines=seen.last_lines
                ),
            )

    def _set_left(self, count: int) -> None:
        self._left = count

    def _save(self) -> None:
        self.found["seconds"] = round(sum(run["seconds"] for run in self.found["runs"]), 3)
        result_files.write(self.found, self._folder / result_files.FILES["bisect"])

    def _level_of(self, ops: Sequence[str]) -> list[str]:
        """The command-line option for the level, if the names do not imply it."""
        level = self._asked.level
        return [] if spelling.level_of("FALLBACK", ops) == level else ["--level", level]

    def _told(self, ops: list[str]) -> str:
        names = _(" and ").join(ops) if len(ops) < 3 else ", ".join(ops)
        these = (
            _("this operator")
            if len(ops) == 1
            else _("these {count} operators").format(count=len(ops))
        )
        on_cpu, by_loss = self._asked.instead == "cpu", self._asked.check is None
        if on_cpu and by_loss:
            text = _("Cause: {names}. Moving only {these} to the CPU fixes the loss ({tested}).")
        elif on_cpu:
            text = _(
                "Cause: {names}. Moving only {these} to the CPU makes the check pass ({tested})."
            )
        elif by_loss:
            text = _(
                "Cause: {names}. Computing only {these} in {instead} fixes the loss ({tested})."
            )
        else:
            text = _(
                "Cause: {names}. Computing only {these} in {instead} makes the check pass "
                "({tested})."
            )
        tested = _("{count} {count:operator|operators} tested in {runs} {runs:run|runs}").format(
            count=len(self.found["candidates"]), runs=len(self.found["runs"])
        )
        return text.format(names=names, these=these, instead=self._asked.instead, tested=tested)


def _place(where: Where, calls: int) -> Place:
    return Place(module=where[1], site=where[2], direction=where[3], calls=calls)


def _is_the_programs(reason: str) -> str:
    return _(
        "The program also fails with all operators on the CPU ({reason}): the cause is "
        "not an operator of the device, but the program, its data, or code that calls no "
        "operator."
    ).format(reason=reason)


NO_LOSS = _(
    "No loss was found in what the program printed. Pass --loss-pattern REGEX with a "
    "group for the number, call deeplink.observe_loss(loss) in the program, or use "
    "another --check."
)
NO_TOOLS = _(
    "The tools saw no operator on a device. The command must be Python with this "
    "torch, and it must use the device; `deeplink run train.py` shows whether it "
    "does."
)
NOT_THE_SAME = _(
    "Two correct runs of the program differ by {share:.0%} of the loss, more than the "
    "fault does. Set all seeds (torch.manual_seed), run fewer steps, or pass "
    "--tolerance."
)
ONLY_BARE = _(
    "The program fails only without the tools ({reason}): with them torch uses other "
    "kernels at the level {level}. Try --level api."
)
WITHIN = _(
    "Nothing to find by the loss: it is correct within rounding. A comparison of "
    "single calls reports {names}; `deeplink run --autocompare train.py` shows by how "
    "much."
)
BY_CHANCE = _(
    "The failure did not repeat, with every operator on the device: it is "
    "intermittent. Run more steps, or use `deeplink determinism`."
)
TOO_MANY = _(
    "The search did not end within {count} {count:run|runs}; the smallest set that "
    "passes: {names}. Raise "
    "--max-runs."
)
