"""`deeplink why-nan -- python train.py`: the kernel that made the first NaN, and its line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deeplink import settings
from deeplink.running import add_vendor
from deeplink.table import console
from deeplink.vendor import using
from op_tools.diagnosis.bisect import launch
from op_tools.diagnosis.nan import tool
from op_tools.diagnosis.report import html, readers

EPILOG = """
Every kernel's results are looked at. When a NaN reaches the loss, a value that the program reads,
or an optimizer, the way is followed back to the kernel that made it. A mask's -inf and steps that a
GradScaler skips accuse nobody. Status: 1 found, else the program's own.

examples:
  deeplink why-nan -- python train.py --lr 1e-3
  deeplink why-nan --steps 100- -- python train.py          from step 100 on
  deeplink why-nan --devices cpu -- python train.py         a program on the CPU
"""


def main(line: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="deeplink why-nan",
        description="Which kernel made the first NaN or Inf that did harm, of what, on which line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: why_nan")
    parser.add_argument("--steps", metavar="3-5", help="watch these training steps")
    parser.add_argument("--devices", metavar="KINDS", help="watch these devices, as cpu")
    add_vendor(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- python train.py …")
    given = parser.parse_args(list(line))
    command = launch.command_of(parser, given.command)
    folder = launch.folder(given.output, "why_nan")
    values = {settings.OP_TOOLS_RUN.name: "why-nan", settings.OP_TOOLS_RESULTS.name: str(folder)}
    if given.steps:
        values[settings.OP_TOOLS_STEPS.name] = given.steps
    if given.devices:
        values[settings.OP_TOOLS_DEVICES.name] = given.devices
    with using(given.vendor):
        status = launch.run(command, values)
    return _end(folder, status)


def _end(folder: Path, status: int) -> int:
    say = console().print
    found = tool.read(folder)
    if not found:
        say(f"why-nan: nothing was seen of the program, which ended with {status}", style="red")
        say("Hint: does it import torch, and use the device? `--devices cpu` watches the CPU.")
        return status or 2
    first = found[0]
    if len(found) > 1 and first["status"] == "found":
        say(f"why-nan: it began on rank {first['rank']}: {first['verdict']}", soft_wrap=True)
    html.offer(readers.read(folder), folder / "report.html")
    return 1 if first["status"] == "found" else status
