"""`deeplink bisect|determinism -- python train.py …`: their command lines, and what they show."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.losses import PATTERN
from deeplink.running import add_vendor
from deeplink.table import console, table
from deeplink.vendor import using
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect import health_checks, launch
from op_tools.diagnosis.bisect.driver import Asked, Bisection
from op_tools.diagnosis.bisect.runner import Command
from op_tools.diagnosis.diff.cli import diff
from op_tools.diagnosis.diff.determinism import Repetition
from op_tools.diagnosis.result_files import Bisect, Determinism

STATUS = {"nothing": 0, "same": 0, "found": 1, "differs": 1}  # the others: 2
SHOWN = 40  # operators and places
EPILOG = """
The command runs as it is, then with everything on the CPU, then with fewer and fewer operators
there. Status: 0 nothing to find, 1 found, 2 the command does not run, or it is not clear.

checks:
  loss             the losses are those of everything on the CPU, or of --reference FILE (default)
  nan              no loss is nan or infinite
  exit             the command ends with status 0
  'loss < 0.5'     a Python expression of loss (the last), losses, status
  script:FILE      FILE LOG LOSSES.json ends with status 0

examples:
  {command} -- python train.py --steps 20
  {command} -- deeplink run train_cuda.py                a program written for CUDA
  {command} --check nan -- python train.py
  {command} --check 'losses[-1] < 0.1 * losses[0]' -- python train.py
  {command} --reference gpu_losses.json -- python train.py
  {command} --resume -- python train.py                  go on after Ctrl-C or a crash
"""


def main(word: str, line: Sequence[str]) -> int:
    """The status of one of the commands; an error of ours is shown by its text."""
    try:
        return COMMANDS[word](f"deeplink {word}", line)
    except DeeplinkError as error:
        console(stderr=True).print(str(error), style="red", soft_wrap=True)
        return 2


def bisect(command: str, line: Sequence[str]) -> int:
    """The status of `deeplink bisect`."""
    given = _parsed(_bisect_parser(command), line)
    folder = Path(given.to).resolve()
    try:
        reference = None
        if given.reference:
            reference = health_checks.read_reference(Path(given.reference), given.loss_pattern)
        asked = Asked(
            health_checks.parse(given.check),
            reference,
            given.tolerance,
            given.instead,
            given.level,
            given.suspects,
            given.places,
            given.script,
            given.max_runs,
        )
        pattern, resume = given.loss_pattern, given.resume
        runner = Command(given.line, folder, pattern, given.timeout, resume, given.fresh)
        with using(given.vendor), contextlib.closing(runner):
            found = Bisection(runner, folder, asked, tell=_say).run()
    except KeyboardInterrupt:
        return _stopped(command, folder)
    except OSError as error:
        return _failed(folder, error)
    show_bisect(found, folder)
    return STATUS.get(found["status"], 2)


def determinism(command: str, line: Sequence[str]) -> int:
    """The status of `deeplink determinism`."""
    given = _parsed(_determinism_parser(command), line)
    folder = Path(given.to).resolve()
    try:
        runner = Command(given.line, folder, PATTERN, given.timeout)
        with using(given.vendor):
            found = Repetition(runner, folder, given.level, _say).run()
    except KeyboardInterrupt:
        return _stopped(command, folder)
    except OSError as error:
        return _failed(folder, error)
    show_determinism(found, folder)
    return STATUS.get(found["status"], 2)


def _say(line: str) -> None:
    console(stderr=True).print(line, style="dim", soft_wrap=True)


def _stopped(command: str, folder: Path) -> int:
    text = f"stopped; what was found so far is in {folder}. Hint: go on with {command} --resume …"
    console(stderr=True).print(text, style="yellow", soft_wrap=True)
    return 130


def _failed(folder: Path, error: OSError) -> int:
    text = (
        f"{folder} cannot be written: {error.strerror or error}."
        + " What was found so far is there." * (folder / result_files.FILES["bisect"]).exists()
        + "\nHint: name a folder with --to DIR that you may write and that has room."
    )
    console(stderr=True).print(text, style="red", soft_wrap=True)
    return 2


# What is shown.


def show_bisect(found: Bisect, folder: Path) -> None:
    """The verdict, and what it rests on."""
    out = console()
    rows = [
        (
            str(run["number"]),
            run["purpose"],
            str(len(run["ops"]) or ""),
            run["outcome"],
            f"{run['seconds']:.1f} s",
            run["reason"],
        )
        for run in found["runs"]
    ]
    columns = ("run", "what", "ops elsewhere", "outcome", "time", "why")
    out.print(table("The runs", columns, rows))
    for guilty in found["guilty"]:
        cells = [
            (
                place["module"] or "(no module)",
                place["site"],
                place["direction"],
                str(place["calls"]),
            )
            for place in guilty["places"][:SHOWN]
        ]
        title = f"{guilty['op']}: {guilty['calls']} calls in a run, of them needed"
        out.print(table(title, ("module", "line", "direction", "calls"), cells))
        if guilty["script"]:
            out.print(f"alone: deeplink run {guilty['script']}", soft_wrap=True)
    style = {"found": "bold red", "nothing": "green"}.get(found["status"], "bold yellow")
    out.print(found["verdict"], style=style, soft_wrap=True)
    if found["fix"]:
        out.print(f"Fix until the device is repaired: {found['fix']}", soft_wrap=True)
    out.print(f"everything: {folder / result_files.FILES['bisect']}", soft_wrap=True)


def show_determinism(found: Determinism, folder: Path) -> None:
    """The first call that differs, and both of its results."""
    out = console()
    cells = [
        (
            one["label"],
            f"{one['dtype']}{one['shape']}",
            " / ".join(one["hash"]),
            "" if one["differing"] is None else str(one["differing"]),
            "" if one["max_abs"] is None else f"{one['max_abs']:.3g}",
        )
        for one in found["tensors"]
    ]
    if cells:
        columns = ("result", "type", "hashes", "differing", "largest difference")
        out.print(table("The first that differs", columns, cells))
    style = {"differs": "bold red", "same": "green"}.get(found["status"], "bold yellow")
    out.print(found["verdict"], style=style, soft_wrap=True)
    for kept in found["kept"]:
        out.print(f"kept: {kept}", soft_wrap=True)
    out.print(f"everything: {folder / result_files.FILES['determinism']}", soft_wrap=True)


# The command lines.


def _parsed(parser: argparse.ArgumentParser, line: Sequence[str]) -> argparse.Namespace:
    given = parser.parse_args(list(line))
    given.line = launch.command_of(parser, given.line)
    pattern = getattr(given, "loss_pattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        parser.error(f"--loss-pattern {pattern!r}: {error}")
    return given


def _parser(command: str, about: str, epilog: str, folder: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        usage=f"{command} [options] -- python train.py …",
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("line", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--to", default=folder, metavar="DIR", help=f"where files go ({folder})")
    parser.add_argument("--level", choices=("aten", "api"), default="aten", help="of operators")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds for one run")
    add_vendor(parser)
    return parser


def _bisect_parser(command: str) -> argparse.ArgumentParser:
    about = "Which operators, run on the CPU, make a program well again: by as few runs as needed."
    parser = _parser(command, about, EPILOG.format(command=command), "bisect_results")
    add = parser.add_argument
    add("--check", default="loss", metavar="CHECK", help="what is well; see below")
    add("--reference", metavar="FILE", help="the right losses: JSON, or what a program printed")
    add("--tolerance", type=float, metavar="R", help="relative; default: what rounding does")
    add("--loss-pattern", default=PATTERN, metavar="REGEX", help="of a printed loss")
    add("--instead", choices=("cpu", "float64", "float32"), default="cpu",
        help="the CPU, or on the device in a wider type")  # fmt: skip
    add("--max-runs", type=int, default=60, metavar="N", help="of the search (60)")
    add("--resume", action="store_true", help="take the runs that were made before")
    add("--fresh", action="store_true", help="a new Python for each run: import torch each time")
    add("--no-suspects", dest="suspects", action="store_false", help="compare no calls in run 1")
    add("--no-places", dest="places", action="store_false", help="do not ask in which modules")
    add("--no-script", dest="script", action="store_false", help="write no script")
    return parser


def _determinism_parser(command: str) -> argparse.ArgumentParser:
    about = "Run a program twice: the first operator that gives other bits from the same arguments."
    epilog = f"""
Status: 0 the two runs are the same, 1 they differ, 2 the command does not run.

example:
  {command} -- python train.py --steps 3
"""
    return _parser(command, about, epilog, "determinism_results")


COMMANDS = {"bisect": bisect, "diff": diff, "determinism": determinism}
