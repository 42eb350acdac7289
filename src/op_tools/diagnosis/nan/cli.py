# SPDX-License-Identifier: Apache-2.0
"""`deeplink why-nan -- python train.py`: the kernel with the first NaN, and its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deeplink import settings
from deeplink.console import console
from deeplink.i18n import _
from op_tools.diagnosis.bisect import launch
from op_tools.diagnosis.nan import tool
from op_tools.diagnosis.report import html, readers


def why_nan(line: list[str], output: Path | None, values: Mapping[str, str]) -> int:
    """Run `deeplink why-nan` with settings; returns the exit code."""
    folder = launch.folder(output, "why_nan")
    own = {settings.OP_TOOLS_RUN.name: "why-nan", settings.OP_TOOLS_RESULTS.name: str(folder)}
    return _end(folder, launch.run(line, {**values, **own}))


def _end(folder: Path, status: int) -> int:
    say = console().print
    found = tool.read(folder)
    if not found:
        say(
            _("why-nan: nothing was seen of the program, which ended with {status}").format(
                status=status
            ),
            style="red",
        )
        say(_("Hint: does it import torch, and use the device? `--devices cpu` watches the CPU."))
        return status or 2
    first = found[0]
    if len(found) > 1 and first["status"] == "found":
        say(
            _("why-nan: it began on rank {rank}: {verdict}").format(
                rank=first["rank"], verdict=first["verdict"]
            ),
            soft_wrap=True,
        )
    html.offer(readers.read(folder), folder / "report.html")
    return 1 if first["status"] == "found" else status
