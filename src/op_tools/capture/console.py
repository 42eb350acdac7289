# SPDX-License-Identifier: Apache-2.0
"""The tables that OpCapture shows of a call, as the classic tools do."""

from __future__ import annotations

from typing import Any

import torch

from op_tools.capture.encoding import Header
from op_tools.core import terminal
from op_tools.core.call import Call
from op_tools.core.gradients import Gradients
from op_tools.tensors.snapshot import Snapshot

Rows = list[tuple[object, ...]]


def input_rows(call: Call) -> Rows:
    """The rows of the arguments. Call it before the operator, which may write them."""
    return terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)


def show(call: Call, stamp: str, rows: Rows, result: Any) -> None:
    """Show the program's line, then the table of arguments and results."""
    title = f"{call.name}    forward_id:{call.id}/{stamp}    {call.where}"
    rows = rows + terminal.tensor_rows(f"{call.name} outputs", result)
    terminal.say(
        "\n".join([title, terminal.call_table(rows, terminal.TENSOR_COLUMNS), "", "", "", ""])
    )


def show_gradients(header: Header, found: Gradients) -> None:
    """Show the gradients of the results and of the arguments of a call."""
    name = header["name"]
    rows = _gradient_rows(f"{name} grad_output", found.outputs)
    rows += _gradient_rows(f"{name} grad_inputs", found.inputs)
    table = terminal.grid(terminal.TENSOR_COLUMNS[:-1], rows)
    terminal.say("\n".join([f"{name} forward_id:{header['id']}", table, "", "", "", ""]))


def _gradient_rows(label: str, found: list[Any]) -> Rows:
    single = sum(isinstance(taken, Snapshot) for taken in found) == 1
    return [
        (
            label if single else f"{label}[{place}]",
            taken.device,
            str(taken.dtype).removeprefix("torch."),
            torch.Size(taken.shape).numel(),
            str(taken.shape),
            str(taken.stride),
            False,
            "torch.strided",
            taken.data_ptr,
        )
        for place, taken in enumerate(found)
        if isinstance(taken, Snapshot)
    ]
