# SPDX-License-Identifier: Apache-2.0
"""The content of a line of the flight recorder: for the file, for people, and the next command."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import torch

from deeplink.console import console
from deeplink.i18n import _
from op_tools.core.problem import is_notebook, with_line
from op_tools.diagnosis.flight_recorder.measurements import Figures

PAGE = os.sysconf("SC_PAGE_SIZE")


def next_command(step: int) -> str:
    """The command that locates the kernel: it checks all kernels of the steps around the event."""
    steps = f"{max(0, step - 1)}-"
    if is_notebook():
        return with_line("WhyNan", steps=steps)
    return f"deeplink why-nan --steps {steps} -- {shlex.join(['python', *sys.argv])}"


def tell(event: dict[str, Any]) -> None:
    say = console(stderr=True).print
    say(
        _("FlightRecorder: {event}: {text}").format(event=event["event"], text=event["text"]),
        style="red",
        soft_wrap=True,
    )
    if "next" in event:
        say(
            _("Hint: for the line, from the last checkpoint: {next}").format(next=event["next"]),
            soft_wrap=True,
        )


def memory() -> dict[str, int]:
    """Bytes of the process, and of the device if the query does not synchronize."""
    found = {}
    try:
        with open("/proc/self/statm") as file:
            found["process"] = int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        pass
    accelerator = torch.accelerator.current_accelerator()
    module = torch.get_device_module(accelerator.type) if accelerator is not None else None
    if module is not None and hasattr(module, "memory_allocated") and module.is_initialized():
        found["device"] = int(module.memory_allocated())
    return found


def bad_names(figures: dict[str, Figures]) -> list[str]:
    return [name for name, found in figures.items() if found[2]]


def edge(names: Sequence[str], grads: dict[str, Figures]) -> str:
    """The extent of bad gradients in the order of the model."""
    bad = [at for at, name in enumerate(names) if name in grads and grads[name][2]]
    text = _(
        "{count} of {total} {total:gradient|gradients} {count:is|are} bad, that of "
        "{name} the last of them"
    ).format(count=len(bad), total=len(names), name=names[bad[-1]])
    behind = bad[-1] + 1
    if behind < len(names):
        text += _("; that of {name} is good: it began in the backward pass between the two").format(
            name=names[behind]
        )
    return text


def first_bad(line: dict[str, Any]) -> str:
    """The first module with a bad result, in the order of the step."""
    bad = bad_names(line["modules"])
    return (
        _("; the first module with a bad result: {module}").format(module=bad[0].partition(" ")[2])
        if bad
        else ""
    )


def shown(line: dict[str, Any]) -> dict[str, Any]:
    """A line for the file: without empty fields, with nan and inf as null."""
    found = {key: value for key, value in line.items() if value != {} and value is not None}
    if "loss" in found:
        loss = line["loss"].get("loss")
        found["loss"] = loss if loss is not None and math.isfinite(loss) else None
    return found
