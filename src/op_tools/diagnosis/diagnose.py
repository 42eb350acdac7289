# SPDX-License-Identifier: Apache-2.0
"""`deeplink diagnose train.py`: requests the symptom, and runs the right tools in order.

A symptom is a row of PLANS: a list of steps. Each step is a command that the user can run as well,
and that is shown. Each step has a folder of results, and one page at the end shows all results.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeplink import cli, settings
from deeplink.console import console
from deeplink.errors import DeeplinkError
from deeplink.i18n import _, translated
from deeplink.process import children
from deeplink.run.program import Program
from op_tools.diagnosis import conclusion
from op_tools.diagnosis.bisect import launch
from op_tools.diagnosis.report import html, readers
from op_tools.diagnosis.report.model import Content

Words = list[str]


@dataclass(frozen=True)
class Step:
    """One command of a plan, followed by the program."""

    folder: str
    why: str
    words: tuple[str, ...]  # of `python -m op_tools`
    settings: tuple[tuple[str, str], ...] = ()  # unless the user has set them
    enough: bool = False  # status 1 is a finding: the next steps are not needed


@dataclass(frozen=True)
class Taken:
    """A step that was run; the status of `run` is that of the program."""

    step: Step
    status: int
    wrote: bool  # something

    @property
    def found(self) -> bool:
        return self.step.words[0] != "run" and self.status == 1

    @property
    def broken(self) -> bool:
        if self.step.words[0] == "run":
            return not self.wrote
        return self.status not in (0, 1, 124, 130)


PERIOD = 0.5  # seconds between two checks of a running program
HANG = 60  # seconds without a step
RUN = ("run", "-o", "{folder}")
COMPARE = Step(
    "compare",
    _("every operator of two steps against the CPU in higher precision"),
    (*RUN, "--autocompare", "--steps", "0-1"),
)
BISECT = Step(
    "bisect",
    _("which operators, moved to the CPU, fix the loss"),
    ("bisect", "-o", "{folder}"),
    enough=True,
)
WHY_NAN = Step(
    "why_nan", _("the kernel that makes the first NaN"), ("why-nan", "-o", "{folder}"), enough=True
)
DETERMINISM = Step(
    "determinism", _("whether two runs give the same results"), ("determinism", "-o", "{folder}")
)
TIME = Step(
    "time",
    _("which operators take the time, forward and backward"),
    (*RUN, "--time", "--trace", "{folder}/trace.json"),
)
RECORD = Step(
    "recorder",
    _("loss, memory and time of each step; a hang with the stacks of all threads"),
    (*RUN, "--recorder"),
    settings=((settings.OP_RECORDER_HANG.name, str(HANG)),),
)
MEMORY = Step(
    "statistics",
    _("which modules' results take memory"),
    (*RUN, "--capture", "--level", "aten", "--steps", "0-1"),
    settings=((settings.OP_CAPTURE_MODE.name, "statistics"),),
)

# What people say, and what is done about it.
PLANS: dict[str, tuple[str, tuple[Step, ...]]] = {
    "loss": (
        _("the loss is wrong, or differs from another device's"),
        (COMPARE, BISECT, DETERMINISM),
    ),
    "nan": (_("there is a NaN or Inf"), (WHY_NAN, COMPARE)),
    "slow": (_("a step takes too long"), (TIME, RECORD)),
    "hang": (_("it stops without an error"), (RECORD,)),
    "memory": (_("it runs out of memory, or takes more and more"), (RECORD, MEMORY)),
}
# The use of time and memory, shown also without a finding.
COSTS: dict[str, Callable[[Content], Iterable[str]]] = {
    "slow": conclusion.times,
    "memory": conclusion.memory,
}


def diagnose(
    program: Program,
    symptom: str | None,
    output: Path | None,
    timeout: float | None,
    dry_run: bool,
) -> int:
    """Run the steps; returns the exit code: 1 a finding, 0 none, 2 a step failed."""
    chosen = symptom or ask(input)
    steps = PLANS[chosen][1]
    if dry_run:
        for step in steps:
            _show(_order(step, Path(step.folder), program))
        return 0
    folder = launch.folder(output, "diagnosis")
    return _end(folder, _taken(steps, folder, program, timeout), chosen)


def ask(answer: Callable[[str], str]) -> str:
    """Read the symptom, a number or a word, from stdin; DeeplinkError if stdin is
    not interactive.
    """
    say = console().print
    words = list(PLANS)
    say(_("What is wrong?"))
    for number, word in enumerate(words, 1):
        say(f"  {number}  {word:<7} {PLANS[word][0]}")
    while True:
        try:
            said = answer(translated(_("number or word: "))).strip().lower()
        except EOFError:
            raise DeeplinkError(
                _("stdin is not interactive, so the symptom cannot be entered."),
                _("pass --symptom {names}").format(names="|".join(words)),
            ) from None
        if said in words:
            return said
        if said.isdigit() and 1 <= int(said) <= len(words):
            return words[int(said) - 1]
        say(_("no such symptom: {said!r}").format(said=said))


def _taken(
    steps: Sequence[Step], folder: Path, program: Program, limit: float | None
) -> list[Taken]:
    """Run the steps until one suffices, or until Ctrl-C."""
    taken: list[Taken] = []
    say = console().print
    for number, step in enumerate(steps, 1):
        order = _order(step, folder / step.folder, program)
        say(f"\n[{number}/{len(steps)}] {step.why}", style="bold")
        _show(order)
        begun = time.monotonic()
        try:
            status = _run(order, folder / step.folder, limit)
        except KeyboardInterrupt:
            say(_("stopped; these are the findings so far"), style="yellow")
            taken.append(Taken(step, 130, True))
            break
        took = time.monotonic() - begun
        say(
            _("[{number}/{count}] status {status}, {took:.0f} s").format(
                number=number, count=len(steps), status=status, took=took
            ),
            style="dim",
        )
        taken.append(Taken(step, status, (folder / step.folder).is_dir()))
        if step.enough and status == 1:
            break
    return taken


@dataclass(frozen=True)
class Order:
    """A step for a program: the text to show, the command, and its settings."""

    shown: Words
    line: Words
    values: dict[str, str]


def _order(step: Step, folder: Path, program: Program) -> Order:
    """The command of a step for a program. A program that is no script or module of Python is
    started unchanged, with the tools in its environment.
    """
    own = [word.replace("{folder}", str(folder)) for word in step.words]
    values = {name: value for name, value in step.settings if name not in _given()}
    is_python = program.kind != "command"
    if step.words[0] != "run":
        words = [*own, *(program.words if is_python else ["--", *program.line])]
        return Order(["deeplink", *words], [sys.executable, "-m", "deeplink", *words], values)
    if is_python:
        nested = (program.name, *program.arguments[:1]) == ("deeplink", "run")
        words = [*own, *(program.arguments[1:] if nested else program.words)]
        start = [sys.executable, *program.python, "-m", "ditorch"]
        return Order(["deeplink", *words], [*start, *words], values)
    values |= cli.parse("run", [*own[1:], "-m", "program"]).values
    return Order(program.line, program.line, {settings.DITORCH.name: "1", **values})


def _given() -> set[str]:
    """The settings of the user, which are not changed."""
    return {setting.name for setting in settings.table() if setting.is_set()}


def _run(order: Order, folder: Path, limit: float | None) -> int:
    begun = time.monotonic()
    try:
        child = children.start(order.line, env=settings.environment(order.values))
    except OSError as error:
        raise DeeplinkError(
            _("{line!r} cannot be started: {strerror}.").format(
                line=order.line[0], strerror=error.strerror
            )
        ) from None
    try:
        while True:
            try:
                return child.wait(PERIOD)
            except subprocess.TimeoutExpired:
                pass
            if limit is not None and time.monotonic() - begun > limit:
                reason = _("it took longer than {limit:.0f} s").format(limit=limit)
            elif _hangs(folder):
                reason = _("it hangs")
            else:
                continue
            console().print(_("{reason}, and was ended").format(reason=reason), style="yellow")
            children.end(child)
            return 124
    except KeyboardInterrupt:  # it reaches the child, too
        children.end(child)
        raise


def _hangs(folder: Path) -> bool:
    """Whether the recorder has reported a hang, and the program has made no progress for as long
    again.
    """
    told = list(folder.glob("recorder/*_hang-step*.jsonl"))
    if not told:
        return False
    last = max(file.stat().st_mtime for file in folder.glob("recorder/*.jsonl"))
    wanted = settings.OP_RECORDER_HANG
    return time.time() - last > (wanted.get() if wanted.is_set() else HANG)


def _show(order: Order) -> None:
    given = [f"{name}={value}" for name, value in order.values.items()]
    text = shlex.join([*given, *order.shown]).replace(sys.executable, "python")
    console().print(f"$ {text}", style="cyan", soft_wrap=True)


def _end(folder: Path, taken: Sequence[Taken], symptom: str) -> int:
    say = console().print
    say()
    stopped = any(each.status == 130 for each in taken)
    broken = [each for each in taken if each.broken]
    for each in broken:
        text = _("{folder}: it ended with status {status}; see its output above").format(
            folder=each.step.folder, status=each.status
        )
        say(text, style="yellow", soft_wrap=True)
    try:
        content = readers.read(folder)
    except DeeplinkError:
        say(_("nothing was recorded of the program"), style="red")
        say(_("Hint: does it start, import torch and use the device? Run it by itself first."))
        return 130 if stopped else 2
    bad = [each for each in content.findings if each.level == "bad"]
    wrong = [row for row in content.rows if row.state == "wrong"]
    found = bool(bad or wrong or any(each.found for each in taken))
    for line, style in conclusion.lines(content):
        say(line, style=style, soft_wrap=True)
    costs = list(COSTS[symptom](content)) if symptom in COSTS else []
    for line in costs:
        say(line, soft_wrap=True)
    if not found and not costs:
        style = "yellow" if broken else "green"
        say(
            _("nothing wrong was found") + (_(", as far as it went") if broken else ""), style=style
        )
    html.offer(content, folder / "report.html")
    if stopped:
        return 130
    return 1 if found else 2 if broken else 0
