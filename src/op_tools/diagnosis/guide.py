"""`deeplink diagnose -- python train.py`: asks what is wrong, runs the right tools in their order.

A symptom is a row of PLANS: the steps to take. Each step is a command that can be run by hand, and
is shown as such; what it wrote lies in a folder of its own, and one page at the end shows it all.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeplink import settings
from deeplink.table import console
from op_tools.diagnosis import launching
from op_tools.diagnosis.report import page, readers

Words = list[str]


@dataclass(frozen=True)
class Step:
    """One command of a plan. `{program}` stands for what is diagnosed."""

    folder: str
    why: str
    words: tuple[str, ...]  # of `python -m op_tools`
    program: bool = True
    settings: tuple[str, ...] = ()  # NAME=value, of the environment
    enough: bool = False  # status 1 means found: what follows is not needed


RUN = ("run", "--results", "{folder}")
COMPARE = Step(
    "compare",
    "every operator of two steps against the CPU in higher precision",
    (*RUN, "--autocompare", "--steps", "0-1"),
)
BISECT = Step(
    "bisect",
    "which operators, put on the CPU, make it well",
    ("bisect", "--to", "{folder}"),
    enough=True,
)
WHY_NAN = Step(
    "why_nan", "the kernel that makes the first NaN", ("why-nan", "-o", "{folder}"), enough=True
)
DETERMINISM = Step(
    "determinism", "whether it is the same twice", ("determinism", "--to", "{folder}")
)
TIME = Step(
    "time",
    "which operators take the time, forward and backward",
    (*RUN, "--time", "--trace", "{folder}/trace.json"),
)
RECORD = Step(
    "recorder",
    "loss, memory and time of each step; a hang with the stacks of all threads",
    (*RUN, "--recorder"),
    settings=("OP_RECORDER_HANG=60",),
)
MEMORY = Step(
    "statistics",
    "which modules' results take memory",
    (*RUN, "--capture", "--level", "aten", "--steps", "0-1"),
    settings=("OP_CAPTURE_MODE=statistics",),
)

# What people say, and what is done about it.
PLANS: dict[str, tuple[str, tuple[Step, ...]]] = {
    "loss": ("the loss is wrong, or differs from another device's", (COMPARE, BISECT, DETERMINISM)),
    "nan": ("there is a NaN or Inf", (WHY_NAN, COMPARE)),
    "slow": ("a step takes too long", (TIME, RECORD)),
    "hang": ("it stops without an error", (RECORD,)),
    "memory": ("it runs out of memory, or takes more and more", (RECORD, MEMORY)),
}

EPILOG = """
examples:
  deeplink diagnose -- python train.py                    asks
  deeplink diagnose --symptom nan -- python train.py      asks nothing
  deeplink diagnose --symptom slow --dry-run -- python train.py   what would be run
"""


def main(line: Sequence[str]) -> int:
    """The exit code: 1 when something was found, 0 when nothing is wrong."""
    parser = argparse.ArgumentParser(
        prog="deeplink diagnose",
        description="Asks what is wrong with a program, and runs the right tools in their order.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--symptom", choices=tuple(PLANS), help="what is wrong; else it is asked")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: diagnosis")
    parser.add_argument("--timeout", type=float, help="seconds for each step at most")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- python train.py …")
    given = parser.parse_args(list(line))
    program = launching.command_of(parser, given.command)
    symptom = given.symptom or ask(parser, input)
    steps = PLANS[symptom][1]
    if given.dry_run:
        for step in steps:
            _show(step, _words(step, Path(step.folder), program))
        return 0
    folder = launching.folder(given.output, "diagnosis")
    settings.activate_children()  # a program written for CUDA runs on the device at hand
    found = 1 in _statuses(steps, folder, program, given.timeout)
    return _end(folder, found)


def ask(parser: argparse.ArgumentParser, answer: Callable[[str], str]) -> str:
    """The symptom, by its number or its word; an error where nobody can answer."""
    say = console().print
    words = list(PLANS)
    say("What is wrong?")
    for number, word in enumerate(words, 1):
        say(f"  {number}  {word:<7} {PLANS[word][0]}")
    while True:
        try:
            said = answer("number or word: ").strip().lower()
        except EOFError:
            parser.error(f"nobody answers; say --symptom {'|'.join(words)}")
        if said in words:
            return said
        if said.isdigit() and 1 <= int(said) <= len(words):
            return words[int(said) - 1]
        say(f"not one of them: {said!r}")


def _statuses(
    steps: Sequence[Step], folder: Path, program: Words, limit: float | None
) -> list[int]:
    """Runs the steps until one is enough; their statuses."""
    found = []
    for number, step in enumerate(steps, 1):
        words = _words(step, folder / step.folder, program)
        console().print(f"\n[{number}/{len(steps)}] {step.why}", style="bold")
        _show(step, words)
        begun = time.monotonic()
        status = _run(step, words, limit)
        took = time.monotonic() - begun
        console().print(f"[{number}/{len(steps)}] status {status}, {took:.0f} s", style="dim")
        found.append(status)
        if step.enough and status == 1:
            break
    return found


def _words(step: Step, folder: Path, program: Words) -> Words:
    """The command line of a step. `run` takes a script and starts Python itself."""
    own = [word.replace("{folder}", str(folder)) for word in step.words]
    if step.words[0] != "run":
        return [*own, "--", *program]
    is_python = program[0] == sys.executable or Path(program[0]).name.startswith("python")
    if is_python:
        return [*own, *program[1:]]
    return [*own, *program]


def _run(step: Step, words: Words, limit: float | None) -> int:
    environment = [f"{setting}" for setting in step.settings]
    module = "ditorch" if words[0] == "run" else "op_tools"
    line = [sys.executable, "-m", module, *words]
    if environment:
        line = ["env", *environment, *line]
    try:
        return subprocess.run(line, check=False, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        console().print(f"it took longer than {limit:.0f} s, and was ended", style="yellow")
        return 124


def _show(step: Step, words: Words) -> None:
    shown = [*step.settings, "deeplink", *words]
    text = shlex.join(shown).replace(sys.executable, "python")
    console().print(f"$ {text}", style="cyan", soft_wrap=True)


def _end(folder: Path, found: bool) -> int:
    content = readers.read(folder)
    bad = [each for each in content.findings if each.level == "bad"]
    wrong = [row for row in content.rows if row.state == "wrong"]
    say = console().print
    say()
    for each in bad[:5]:
        say(each.title, style="bold red", soft_wrap=True)
        for line in each.lines[:3]:
            say(f"  {line}", soft_wrap=True)
    if not bad and wrong:
        worst = max(wrong, key=lambda row: row.error)
        where = f" in {worst.module}" if worst.module else ""
        say(f"{worst.op} is wrong{where} ({worst.site})", style="bold red", soft_wrap=True)
    if not (bad or wrong or found):
        say("nothing wrong was found", style="green")
    output = folder / "report.html"
    page.write(content, output, Path())
    say(f"report: {output}", soft_wrap=True)
    return 1 if bad or wrong or found else 0
