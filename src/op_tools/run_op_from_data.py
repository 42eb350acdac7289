# SPDX-License-Identifier: Apache-2.0
"""`run_op_from_data`: replay captured calls, time them, and check them; one bad case stops none."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:
    # `python op_tools/run_op_from_data.py` puts this folder first on sys.path, where its modules
    # could shadow others. Put its parent there.
    _folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != _folder]
    if os.path.dirname(_folder) not in map(os.path.realpath, sys.path):
        sys.path.insert(0, os.path.dirname(_folder))

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from deeplink import cli
from deeplink.commands.common import write_json
from deeplink.compare import Difference, worst
from deeplink.console import console
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run.run_folder import latest
from op_tools.capture.encoding import Recorded
from op_tools.compare.eligibility import NoReferenceError
from op_tools.core import op_names, terminal
from op_tools.replay import (
    Case,
    Prepared,
    Replayed,
    ReplayError,
    differences,
    home,
    load_cases,
    target_device,
    verdicts,
)
from op_tools.replay.console import (
    BAD,
    Outcome,
    framework,
    save_times,
    show_case,
    show_time,
    summary,
    worst_first,
    write_junit,
)
from op_tools.replay.export_script import export
from op_tools.timing.aggregate import call_text, text_of
from op_tools.timing.clock import clock_for

FLAGS = ("--only_run_forward", "--sync_time_measure", "--acc_check")


@dataclass(frozen=True)
class Plan:
    """The options of the command, for each case."""

    run_times: int = 1
    forward_only: bool = False
    timed: bool = False
    against: str = "captured"
    device: str | None = None
    trust: Sequence[str] = ()
    first: int = 1  # the number of the first run
    shows_check: bool = False  # prints the tables of the comparison with float64


def run_case(case: Case, plan: Plan) -> Outcome:
    """Run and check one case; an error becomes its outcome."""
    name = case.name
    try:
        recorded = case.load()
        name = recorded.name
        return _checked(case, recorded, plan)
    except Exception as error:  # one bad case must not stop the rest
        text = error.message if isinstance(error, DeeplinkError) else f"{error}"
        first = " ".join(text.split())[:300]
        kind = "" if isinstance(error, ReplayError) else f"{type(error).__name__}: "
        return Outcome(case.where, name or "?", "error", f"{kind}{first}")


def _checked(case: Case, recorded: Recorded, plan: Plan) -> Outcome:
    device = torch.device(plan.device) if plan.device else home(recorded)
    prepared = Prepared(recorded, device, plan.trust, not plan.forward_only)
    replayed = prepared.run()
    record = None
    if plan.against == "float64":  # before other runs change the arguments
        record = verdicts.record_of(prepared, replayed, plan.first, plan.trust)
    elif terminal.verbose() and not plan.timed:
        show_case(prepared, replayed)
    forward, backward = _repeated(prepared, plan)
    outcome = Outcome(
        *(case.where, recorded.name, "ok"),
        device=str(device),
        forward=forward,
        backward=backward,
        first=plan.first,
        shapes=_shapes(prepared, replayed) if plan.timed else (),
    )
    may_vary = op_names.is_random(recorded.name)
    if replayed.random or (may_vary and not _deterministic(replayed, prepared)):
        return replace(outcome, status="not comparable", message=_("it generates random numbers"))
    if plan.against == "captured" and not recorded.has_output:
        return replace(outcome, status="ran", message=_("no output was captured to compare with"))
    if record is None:
        on_cpu = plan.against == "cpu"
        expected = Prepared(recorded, torch.device("cpu"), plan.trust).run() if on_cpu else None
        return _outcome(outcome, differences(recorded, replayed, expected))
    try:
        items = verdicts.compared(record, replayed, recorded, plan.shows_check)
    except NoReferenceError as error:
        return replace(outcome, status="not comparable", message=str(error))
    return _outcome(outcome, [verdicts.difference(item) for item in items])


def _deterministic(replayed: Replayed, prepared: Prepared) -> bool:
    """Whether a second run has equal results: dropout in evaluation does, `empty` does not."""
    if op_names.last(prepared.recorded.name) in op_names.UNINITIALISED:
        return False
    prepared.fresh()
    return all(row.close for row in differences(prepared.recorded, replayed, prepared.run()))


def _outcome(outcome: Outcome, rows: Sequence[Difference]) -> Outcome:
    if not rows:
        return replace(outcome, status="ran", message=_("it returns nothing to compare"))
    bad = [row for row in rows if not row.close]
    exact = all(row.max_abs == 0 and row.close for row in rows)
    largest = worst(rows)
    message = (
        _("{path}: {message}").format(path=largest.path, message=largest.message)
        if largest is not None and bad
        else ""
    )
    return replace(
        outcome,
        status="FAILED" if bad else "ok",
        message=message or (_("bit by bit") if exact else _("close")),
        bitwise=exact,
        rows=tuple(rows),
    )


# Runs, and their times.


def _repeated(prepared: Prepared, plan: Plan) -> tuple[list[float], list[float]]:
    """Run the call `run_times` times; return the times in ms if the plan requests them."""
    forward: list[float] = []
    backward: list[float] = []
    for number in range(plan.first, plan.first + plan.run_times):
        prepared.fresh()
        with prepared.modes():
            result, took = _timed(prepared.forward, prepared.device)
        forward.append(took)
        if plan.timed:
            show_time(prepared, "forward", number, result, took)
        if prepared.wants_backward:
            result, took = _timed(partial(prepared.backward, result), prepared.device)
            backward.append(took)
            if plan.timed:
                show_time(prepared, "backward", number, result, took)
    return (forward, backward) if plan.timed else ([], [])


def _shapes(prepared: Prepared, replayed: Replayed) -> tuple[str, ...]:
    """The last columns of the file of times."""
    recorded = prepared.recorded
    arguments = call_text(recorded.name, prepared.args, prepared.kwargs)
    if replayed.gradients is None:
        return arguments, text_of(replayed.result), "-", "-"
    sides = replayed.gradients, recorded.grad_outputs or []
    gradients = (text_of([g for g in side if g is not None]) for side in sides)
    return arguments, text_of(replayed.result), *gradients


def _timed(action: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    clock = clock_for(device, "sync")
    start = clock.mark()
    result = action()
    return result, clock.between(start, clock.mark())


# The command.


def replay(
    directory: str,
    *,
    run_times: int,
    only_run_forward: bool,
    sync_time_measure: bool,
    acc_check: bool,
    device: str | None,
    against: str | None,
    json_file: str,
    junit: Path | None,
    export_to: Path | None,
    trust: tuple[str, ...],
) -> int:
    """The work of `deeplink replay`; the exit code."""
    chosen = against or ("float64" if acc_check else "captured")
    plan = Plan(
        *(run_times, only_run_forward, sync_time_measure, chosen, device),
        trust=trust,
        shows_check=acc_check,
    )
    try:
        cases = load_cases(str(latest(Path(directory))))
        if device is not None:
            plan = replace(plan, device=_chosen(device))
    except (DeeplinkError, ValueError, OSError) as error:
        hint = _("name what a capture wrote, as op_tools_results/op_capture_results.")
        message = error.message if isinstance(error, DeeplinkError) else str(error)
        raise DeeplinkError(message, getattr(error, "hint", "") or hint) from None
    terminal.write(f"ditorch.framework: {framework(plan.device)}")
    outcomes: list[Outcome] = []
    screen = console(stderr=True)
    for case in track(cases, "replay", console=screen, disable=not screen.is_terminal):
        terminal.write(case.where)
        done = sum(len(outcome.forward) for outcome in outcomes)
        outcomes.append(run_case(case, replace(plan, first=done + 1)))
    if sync_time_measure:
        save_times(outcomes)
    summary(outcomes)
    if json_file:
        write_json([o.as_dict() for o in worst_first(outcomes)], json_file)
    if junit is not None:
        write_junit(junit, outcomes)
    if export_to is not None:
        _export(export_to, cases, outcomes)
    return int(any(outcome.status in BAD for outcome in outcomes))


def _chosen(wanted: str) -> str:
    """The device for --device, checked once before any case runs."""
    name = str(target_device(wanted))
    if name != wanted:
        terminal.write(
            _("run_op_from_data: torch has no {wanted} here: {name} represents it").format(
                wanted=wanted, name=name
            )
        )
    return name


def _export(path: Path, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> None:
    """Write the worst case that can be exported."""
    by_place = {case.where: case for case in cases}
    problems = []
    for outcome in sorted(worst_first(outcomes), key=lambda o: o.status == "not comparable"):
        try:
            data = export(by_place[outcome.where].load(), path)
        except Exception as error:  # a file may be damaged in any way
            problems.append(f"{outcome.where}: {error}")
            continue
        terminal.write(
            _("{path} and {name} written: {where}").format(
                path=path, name=data.name, where=outcome.where
            )
        )
        return
    terminal.write(
        _("--export {path}: no case can be a script. {problems}").format(
            path=path, problems=problems[0]
        )
    )


def arguments(line: Sequence[str]) -> list[str]:
    """The command line, with the oldest `--only_run_forward True` as a plain flag."""
    words: list[str] = []
    for word in line:
        if words and words[-1] in FLAGS and word.lower() in ("true", "false", "1", "0"):
            if word.lower() in ("false", "0"):
                words.pop()
            continue
        words.append(word)
    return words


def main() -> None:
    """The console script: `deeplink replay` under its older name."""
    sys.exit(cli.status(["replay", *arguments(sys.argv[1:])]))


if __name__ == "__main__":
    main()
