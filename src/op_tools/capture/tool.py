# SPDX-License-Identifier: Apache-2.0
"""OpCapture: writes the arguments, results and gradients of each call, or statistics of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools.capture.encoding import Header
from op_tools.capture.session import Run, Writer
from op_tools.core import dispatch, gradients, op_names, output_paths, terminal
from op_tools.core.call import Call, tensor_list
from op_tools.core.dispatch import Plan
from op_tools.core.gradients import Gradients
from op_tools.core.options import Options, own_options
from op_tools.core.tool import Observer, Started
from op_tools.tensors.mutation import Mark, is_counted, marks, written
from op_tools.tensors.snapshot import Snapshot, Unsupported, dtype_name

Rows = list[tuple[object, ...]]

OPTIONS = {
    "format": settings.OP_CAPTURE_FORMAT,
    "inputs": settings.OP_CAPTURE_INPUTS,
    "mode": settings.OP_CAPTURE_MODE,
}


@dataclass(slots=True)
class _State:
    """The state of a call, from before it until after it."""

    writer: Writer
    header: Any  # of the writer
    tensors: list[Tensor]  # the arguments
    marks: list[Mark]
    edges: gradients.Arguments | None
    rows: Rows  # of the arguments, to print


class OpCapture(Observer):
    """Writes the arguments of each call before it, its results after it, and its gradients.

    `format="packed"` or OP_CAPTURE_FORMAT=packed: one archive instead of a folder for each call.
    `mode="statistics"` or "hash", or OP_CAPTURE_MODE: statistics or hashes instead of values.
    `inputs="all"` or OP_CAPTURE_INPUTS=all: statistics of every input, also of results of recorded
    calls.
    """

    key = "CAPTURE"
    hook = "OpCaptureHook"
    wants_modules = True

    def begin(self, options: Options) -> None:
        chosen = own_options("OpCapture", options.more, OPTIONS)
        self._run = Run(
            chosen["format"], chosen["mode"], options.select.first == 0, chosen["inputs"] == "all"
        )
        statistics = self._run.statistics
        self.native = None if statistics is None else statistics.native(self.device_filter())

    # A call.

    def goes_natively(self, plan: Plan) -> bool:
        decides = self._condition is not None or self.started.options.select.first > 0
        needs_record = terminal.verbose() or decides or self._run.limited
        return not needs_record and is_counted(op_names.last(plan.name))

    def counted_natively(self, started: Started, name: str, count: int) -> None:
        super().counted_natively(started, name, count)
        self._run.calls += count
        self._run.operators.add(name)

    def before(self, call: Call) -> _State | None:
        run = self._run
        if run.mode_of(call) == "nothing":
            return None
        tensors, writer = call.inputs, run.writer
        before = marks(call, tensors)
        edges, rows = None, []
        if call.level != "aten" and any(tensor.requires_grad for tensor in tensors):
            edges = gradients.arguments(call)
        if run.verbose:  # before the operator, which may write them
            rows = terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)
        try:
            header = writer.begin(call, tensors)
        except Unsupported as reason:
            run.skipped[str(reason)] += 1
            return None
        return _State(writer, header, tensors, before, edges, rows)

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        if state is None:
            return
        run, results = self._run, tensor_list(result)
        changed = written(call, state.tensors, state.marks)
        try:
            state.writer.end(call, state.header, result, changed)
        except Unsupported as reason:
            run.skipped[f"the result is {reason}"] += 1
        if run.quiet:
            return
        run.calls += 1
        run.operators.add(call.name)
        if state.rows:
            _show(call, state, result)
        if state.edges is not None:
            guard, writer, header = dispatch.guard(self, call), state.writer, state.header

            def done(result: Gradients) -> None:
                writer.gradients(header, result)
                if run.verbose and isinstance(header, dict):
                    _show_gradients(header, result)

            gradients.watch(call, state.edges, results, writer.gradient, guard(done), guard)

    def finish(self, started: Started) -> None:
        run = self._run
        run.close()
        terminal.summary(self, started, run.summary())


# The tables of a call, in the format of the classic tools.


def _show(call: Call, state: _State, result: Any) -> None:
    """Print the program's line, then the table of arguments and results."""
    header = state.header
    stamp = header["time"] if isinstance(header, dict) else output_paths.stamp()
    title = f"{call.name}    forward_id:{call.id}/{stamp}    {call.where}"
    rows = state.rows + terminal.tensor_rows(f"{call.name} outputs", result)
    terminal.write(
        "\n".join([title, terminal.call_table(rows, terminal.TENSOR_COLUMNS), "", "", "", ""])
    )


def _show_gradients(header: Header, gradients: Gradients) -> None:
    """Print the gradients of the results and of the arguments of a call."""
    name = header["name"]
    rows = _gradient_rows(f"{name} grad_output", gradients.outputs)
    rows += _gradient_rows(f"{name} grad_inputs", gradients.inputs)
    table = terminal.grid(terminal.TENSOR_COLUMNS[:-1], rows)
    terminal.write("\n".join([f"{name} forward_id:{header['id']}", table, "", "", "", ""]))


def _gradient_rows(label: str, gradients: list[Any]) -> Rows:
    copies = [(at, each) for at, each in enumerate(gradients) if isinstance(each, Snapshot)]
    return [
        (
            label if len(copies) == 1 else f"{label}[{place}]",
            copy.device,
            dtype_name(copy.dtype),
            torch.Size(copy.shape).numel(),
            str(copy.shape),
            str(copy.stride),
            False,
            "torch.strided",
            copy.data_ptr,
        )
        for place, copy in copies
    ]
