# SPDX-License-Identifier: Apache-2.0
"""The tables that OpCapture prints of a call, in the format of the classic tools."""

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


def show_gradients(header: Header, gradients: Gradients) -> None:
    """Show the gradients of the results and of the arguments of a call."""
    name = header["name"]
    rows = _gradient_rows(f"{name} grad_output", gradients.outputs)
    rows += _gradient_rows(f"{name} grad_inputs", gradients.inputs)
    table = terminal.grid(terminal.TENSOR_COLUMNS[:-1], rows)
    terminal.say("\n".join([f"{name} forward_id:{header['id']}", table, "", "", "", ""]))


def _gradient_rows(label: str, gradients: list[Any]) -> Rows:
    copies = [(at, each) for at, each in enumerate(gradients) if isinstance(each, Snapshot)]
    return [
        (
            label if len(copies) == 1 else f"{label}[{place}]",
            copy.device,
            str(copy.dtype).removeprefix("torch."),
            torch.Size(copy.shape).numel(),
            str(copy.shape),
            str(copy.stride),
            False,
            "torch.strided",
            copy.data_ptr,
        )
        for place, copy in copies
    ]
