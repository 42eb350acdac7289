# SPDX-License-Identifier: Apache-2.0
"""OpTimeMeasure: the time of each call on the device, of its forward and its backward pass."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.i18n import _
from op_tools.core import (
    collectives,
    dispatch,
    gradients,
    native_library,
    output_paths,
    terminal,
    tool_errors,
    torch_patches,
)
from op_tools.core.call import Call
from op_tools.core.options import Options, own_options
from op_tools.core.tool import Observer, Started
from op_tools.core.worker import Periodic
from op_tools.timing import call_timer, console, roofline
from op_tools.timing.aggregate import Group, Kind, Line, View, call_text, is_brief, summed, text_of
from op_tools.timing.call_timer import Row
from op_tools.timing.clock import Clock, Mark, clock_for
from op_tools.timing.native_timer import NativeTimer
from op_tools.timing.perfetto import Trace

OPTIONS: dict[str, settings.Setting[Any]] = {
    "mode": settings.OP_TIME_MEASURE_MODE,
    "trace": settings.OP_TIME_MEASURE_TRACE,
}


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a call, from before it until after it."""

    device: torch.device
    clock: Clock
    edges: gradients.Arguments | None
    shape: str  # types and shapes of the arguments
    launched: int
    start: Mark


@dataclass
class _Run:
    """The state of one start of the tool."""

    mode: str
    limit: int
    table: console.Csv
    trace: Trace | None
    verbose: bool = field(default_factory=terminal.verbose)
    begun: int = field(default_factory=perf_counter_ns)
    rows: deque[Row] = field(default_factory=deque)  # threads append while another one collects
    groups: dict[Kind, Group] = field(default_factory=dict)
    clocks: dict[torch.device, Clock] = field(default_factory=dict)
    native: NativeTimer | None = None
    periodic: Periodic | None = None  # writes rows
    cost: int = 0  # nanoseconds
    ended: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(self, nanoseconds: int) -> None:
        self.cost += nanoseconds

    def clock(self, device: torch.device) -> Clock:
        clock = self.clocks.get(device)
        if clock is None:
            clock = self.clocks[device] = clock_for(device, self.mode)
            if self.trace is not None:
                self.trace.anchor(clock)
        return clock

    def group(self, call: Call, shape: str, result: Any) -> Group:
        """The group of a call; its work is computed at the first call of the group."""
        kind = Kind(call.name, shape, call.module, call.site)
        group = self.groups.get(kind)
        if group is None:  # without work if one of the formulas raises
            group = self.groups[kind] = Group(kind)
            group.collective = collectives.collective(call, result)
            group.bytes = roofline.bytes_moved(call, result)
            group.flops, group.backward_flops = roofline.flops(call, result)
        return group


class OpTimeMeasure(Observer):
    """Times every call: `with OpTimeMeasure(): …`, `OpTimeMeasure(trace="trace.json")`.

    By events of the device, without synchronization; `mode="sync"` synchronizes after each call.
    """

    key = "TIME_MEASURE"
    hook = "OpTimeMeasureHook"
    wants_modules = True
    computes = False

    _run: _Run | None = None
    _last: tuple[list[Group], bool] = ([], False)

    def begin(self, options: Options) -> None:
        chosen = own_options("OpTimeMeasure", options.more, OPTIONS)
        mode, path = chosen["mode"], chosen["trace"]
        table = console.Csv(output_paths.folder("op_time_measure_result"))
        trace = Trace(path) if path != Path() else None
        run = self._run = _Run(mode, settings.OP_TOOLS_MAX_CACHE_SIZE.get(), table, trace)
        if trace is not None:
            trace.follow_modules()
        plain = mode == "events" and trace is None and not run.verbose and options.level == "api"
        run.periodic = Periodic(partial(self._write, run))
        if plain and native_library.helper() is not None:
            weak = weakref.proxy(run)  # what is native belongs to the run: no reference cycle
            run.native = NativeTimer(
                self.device_filter(),
                lambda device: device.type != "meta" and weak.clock(device).by_marks,
                lambda call, result: weak.group(call, _shape(call), result),
                lambda: weak.periodic.wake(),
            )
            self.native = run.native.native

    def _write(self, run: _Run) -> None:
        """Write the rows of finished calls, in the tool's own thread."""
        try:
            with torch_patches.no_capture() as allowed:
                if allowed:
                    self._collect(run)
        except Exception as error:  # a tool must not end the program
            tool_errors.add("OpTimeMeasure", "its file", error)

    # Around a call. Hot path: `_collect` does the rest for many calls at once.

    def before(self, call: Call) -> _State | None:
        entered = perf_counter_ns()
        run = self._run
        if run is None:  # stopped by another thread
            return None
        device = _device_of(call)
        clock, shape, edges = run.clock(device), _shape(call), None
        if call.level != "aten" and not is_brief(call.name):
            edges = gradients.arguments(call)
        launched = perf_counter_ns()
        run.cost += launched - entered
        return _State(device, clock, edges, shape, launched, clock.mark())

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        run = self._run
        if state is None or run is None:
            return
        end, returned = state.clock.mark(), perf_counter_ns()
        row = Row(
            call.id,
            call.step,
            call.direction == "backward",
            run.group(call, state.shape, result),
            state.device,
            state.clock,
            state.start,
            end,
            state.launched,
            returned,
            text_of(result),
        )
        if state.edges is not None and state.edges.wanted:
            call_timer.follow(call, state.edges, result, row, run.spend)
        if row.group.collective is not None and row.group.collective.asynchronous:
            _end_when_done(row, result)
        if run.verbose:
            self._show(call, state.edges, result, row)
        run.rows.append(row)
        if len(run.rows) >= run.limit:
            self._collect(run)
        run.cost += perf_counter_ns() - returned

    # From marks to milliseconds.

    def _collect(self, run: _Run, everything: bool = False) -> None:
        """Write the finished rows, and keep the rows whose backward pass is to come."""
        with run.lock:
            done: list[Row] = []
            for _ in range(len(run.rows)):
                row = run.rows.popleft()
                over = everything or (row.complete and row.ready)
                (done if over else run.rows).append(row)
            # else each call would go through the rows of a large graph
            run.limit = max(settings.OP_TOOLS_MAX_CACHE_SIZE.get(), 2 * len(run.rows))
            for row in done:
                _resolve(run, row)
            lines = [(row.id, console.line_of(_cells(row))) for row in done]
            if run.native is None:
                run.table.write("".join(line for _, line in sorted(lines)).encode())
            else:
                run.table.write(run.native.lines(lines, everything))

    def finish(self, started: Started) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if run.periodic is not None:
            run.periodic.close()
        run.ended = perf_counter_ns()
        with dispatch.unseen():
            self._collect(run, everything=True)
        run.cost += perf_counter_ns() - run.ended
        groups, nested = list(run.groups.values()), started.options.level == "module"
        self._last = (groups, nested)
        lines: list[str] = []
        if groups:
            console.show(groups, nested)
            console.write_groups(run.table.path.with_suffix(".json"), groups)
            if run.verbose:
                terminal.show_file(run.table.path, len(console.TIMES))
            lines.append(_("Timings written to {path}").format(path=run.table.path))
        if run.trace is not None:
            lines.append(
                _("trace saved to {close}; open it at https://ui.perfetto.dev").format(
                    close=run.trace.close()
                )
            )
        lines += [clock.note for clock in run.clocks.values() if clock.note]
        lines.append(_cost(run, started.applied))
        terminal.summary(self, started, lines if started.applied else lines[:-1])

    def summary(self, by: View = "op") -> list[Line]:
        """The times of the calls so far, or of the last run, the slowest first."""
        run = self._run
        if run is None:
            return summed(self._last[0], by, self._last[1])
        with dispatch.unseen():
            self._collect(run)
        return summed(list(run.groups.values()), by, self.started.options.level == "module")

    # The classic tables, with OP_TOOLS_VERBOSE.

    def _show(self, call: Call, edges: gradients.Arguments | None, result: Any, row: Row) -> None:
        ms = row.clock.between(row.start, row.end)
        rows = terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)
        rows += terminal.tensor_rows(f"{call.name} outputs", result)
        times = console.grid(call.name, call.id, "forward_elasped", ms)
        terminal.show_call("", call, rows, times)
        if edges is None or not edges.wanted:
            return
        name, identity = call.name, call.id

        def show(result: gradients.Gradients) -> None:
            total = sum(row.clock.between(*span) for span in row.spans)
            rows = _named(f"{name} grad_outputs", result.outputs)
            rows += _named(f"{name} grad_inputs", result.inputs)
            times = console.grid(name, identity, "backward_elasped", total)
            terminal.write("\n".join([terminal.call_table(rows), times]))

        gradients.watch(call, edges, result, _described, show, dispatch.guard(self, call))


def _device_of(call: Call) -> torch.device:
    device = call.device or torch.device("cpu")
    index: int | None = device.index
    if device.type != "cpu" and index is None:
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def _end_when_done(row: Row, result: Any) -> None:
    """Mark the end of an asynchronous collective when its future is done."""
    row.pending = True

    def done(_future: Any) -> None:
        row.end, row.pending = row.clock.mark(), False

    try:
        result.get_future().add_done_callback(done)
    except Exception:  # a backend without futures: the row has the end of the launch
        row.pending = False


def _resolve(run: _Run, row: Row) -> None:
    """Read the times of a finished call, and add them to its group and to the trace."""
    clock, group = row.clock, row.group
    row.forward_ms = clock.between(row.start, row.end)
    spans = [(start, clock.between(start, end)) for start, end in row.spans]
    if row.backward:  # a kernel of the backward pass
        group.backward_flops, group.backward_bytes = group.flops, group.bytes
    (group.backward if row.backward else group.forward).add(row.forward_ms)
    if spans:
        row.backward_ms = sum(ms for _, ms in spans)
        group.backward.add(row.backward_ms)
    if run.trace is not None:
        run.trace.call(row, spans)
    nodes = row.nodes() if row.nodes is not None else None
    if nodes is not None:
        nodes.closed = True  # a second backward pass is not timed
    for mark in (row.start, row.end, *(mark for span in row.spans for mark in span)):
        clock.free(mark)


def _shape(call: Call) -> str:
    """The text of a call's arguments, without the parameters and buffers of a module."""
    own = call.args[2:] if call.level == "module" else call.args
    return call_text(call.name, own, call.kwargs)


def _cost(run: _Run, calls: int) -> str:
    spent = run.cost + (run.native.spent if run.native is not None else 0)
    ms, whole = spent / 1e6, (run.ended - run.begun) / 1e6
    each = spent / 1e3 / max(1, calls)
    return _(
        "tool cost: {ms:.1f} ms of {whole:.1f} ms, {each:.0f} us for each of {calls} "
        "{calls:call|calls} (the times above are without it)"
    ).format(ms=ms, whole=whole, each=each, calls=calls)


def _cells(row: Row) -> Sequence[object]:
    """A row of the file. A gradient has the shape and the type of its tensor."""
    backward = ("-", "ms"), ("-", "-")
    if row.backward_ms is not None:
        backward = (f"{row.backward_ms:.8f}", "ms"), (row.grad_inputs, row.result)
    kind, forward = row.group.kind, f"{row.forward_ms:.8f}"
    return (kind.op, row.id, forward, *backward[0], kind.shape, row.result, *backward[1])


def _described(gradient: Tensor) -> tuple[object, ...]:
    return terminal.tensor_rows("", gradient)[0][1:]


def _named(label: str, rows: Sequence[tuple[object, ...] | None]) -> list[tuple[object, ...]]:
    return [(f"{label} [0][{i}]", *row) for i, row in enumerate(rows) if row is not None]
