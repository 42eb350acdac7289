# SPDX-License-Identifier: Apache-2.0
"""OpTimeMeasure: how long each call takes on the device, forward and through its whole backward."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

import torch
from torch import Tensor

from deeplink import settings
from deeplink.errors import SettingError
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
from op_tools.core.call import Call, Site
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.core.worker import Periodic
from op_tools.timing import call_timer, console, roofline
from op_tools.timing.aggregate import Group, Kind, Line, View, summed
from op_tools.timing.call_shapes import call_shapes, is_brief, shape_of, tensor_texts, text_of
from op_tools.timing.call_timer import Row
from op_tools.timing.clock import Clock, clock_for
from op_tools.timing.native_timer import NativeTimer
from op_tools.timing.perfetto import Trace


@dataclass
class _Run:
    """What is kept between a start and a stop."""

    mode: str
    limit: int
    table: console.Csv
    trace: Trace | None
    verbose: bool = field(default_factory=terminal.verbose)
    begun: int = field(default_factory=perf_counter_ns)
    rows: deque[Row] = field(default_factory=deque)  # threads add to it while it is gone through
    groups: dict[Hashable, Group] = field(default_factory=dict)
    clocks: dict[torch.device, Clock] = field(default_factory=dict)
    work: dict[Hashable, tuple[float, float, float]] = field(default_factory=dict)
    together: dict[Hashable, collectives.Collective | None] = field(default_factory=dict)
    native: NativeTimer | None = None
    periodic: Periodic | None = None  # writes rows
    cost: int = 0  # nanoseconds
    ended: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(self, nanoseconds: int) -> None:
        self.cost += nanoseconds

    def clock(self, device: torch.device) -> Clock:
        found = self.clocks.get(device)
        if found is None:
            found = self.clocks[device] = clock_for(device, self.mode)
            if self.trace is not None:
                self.trace.anchor(found)
        return found


class OpTimeMeasure(Observer):
    """Times every call: `with OpTimeMeasure(): …`, `OpTimeMeasure(trace="trace.json")`.

    By events of the device, which nothing waits for; `mode="sync"` waits as the classic tools do.
    """

    key = "TIME_MEASURE"
    hook = "OpTimeMeasureHook"
    wants_modules = True
    computes = False

    _run: _Run | None = None
    _last: tuple[list[Group], bool] = ([], False)

    def begin(self, options: Options) -> None:
        mode, where = _own(options.more)
        table = console.Csv(output_paths.folder("op_time_measure_result"))
        trace = Trace(where) if where is not None else None
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
                lambda call, given, result: _native_group(weak, call, given, result),
                lambda: weak.periodic.wake(),
            )
            self.native = run.native.native

    def _write(self, run: _Run) -> None:
        """Write the rows of the calls that are over; from a thread that is not the program's."""
        try:
            with torch_patches.no_capture() as allowed:
                if allowed:
                    self._collect(run)
        except Exception as error:  # a tool must not end the program
            tool_errors.add("OpTimeMeasure", "its file", error)

    # Around a call. Hot path: what can wait is done for many calls at once, in `_collect`.

    def before(self, call: Call) -> tuple[Row, gradients.Arguments | None] | None:
        entered = perf_counter_ns()
        run = self._run
        if run is None:  # stopped by another thread
            return None
        device = _device_of(call)
        clock = run.clock(device)
        given = None
        if call.level != "aten" and not is_brief(call.name):
            given = gradients.arguments(call)
        # a module's parameters and buffers are arguments too, and always the same
        own = call.args[2:] if call.level == "module" else call.args
        shapes = call_shapes(call.name, own, call.kwargs)
        row = Row(
            call.id,
            call.name,
            call.step,
            call.module,
            call.site,
            call.direction == "backward",
            device,
            clock,
            shapes,
            None,
            threading.get_ident(),
        )
        row.launched = perf_counter_ns()
        run.cost += row.launched - entered
        row.start = clock.mark()
        return row, given

    def after(
        self, call: Call, state: tuple[Row, gradients.Arguments | None] | None, result: Any
    ) -> None:
        run = self._run
        if state is None or run is None:
            return
        row, given = state
        row.end = row.clock.mark()
        row.returned = perf_counter_ns()
        row.result = shape_of(result)
        if row.given not in run.work:
            _size_up(run, row.given, call, result)
        if given is not None and given.wanted:
            call_timer.follow(call, given, result, row, run.spend)
        together = run.together[row.given]
        if together is not None and together.asynchronous:
            _until_done(row, result)
        if run.verbose:
            self._show(call, given, result, row)
        run.rows.append(row)
        if len(run.rows) >= run.limit:
            self._collect(run)
        run.cost += perf_counter_ns() - row.returned

    # From marks to milliseconds.

    def _collect(self, run: _Run, everything: bool = False) -> None:
        """Resolves the rows that are over; those whose backward is still to come are kept."""
        with run.lock:
            done: list[Row] = []
            for _ in range(len(run.rows)):
                row = run.rows.popleft()
                over = everything or (row.complete and row.ready)
                (done if over else run.rows).append(row)
            # a large graph is not gone through again for each call
            run.limit = max(settings.OP_TOOLS_MAX_CACHE_SIZE.get(), 2 * len(run.rows))
            lines = [(row.id, console.line_of(_cells(row, _resolve(run, row)))) for row in done]
            if run.native is None:
                run.table.write("".join(line for _, line in sorted(lines)).encode())
            else:
                run.table.write(run.native.lines(lines, everything))

    def _sum_up(self, run: _Run, everything: bool = False) -> None:
        """All that is over is in its groups from now on."""
        with dispatch.unseen():
            self._collect(run, everything)

    def finish(self, started: Started) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self._tell(run, started)

    def _tell(self, run: _Run, started: Started) -> None:
        if run.periodic is not None:
            run.periodic.close()
        run.ended = perf_counter_ns()
        self._sum_up(run, everything=True)
        run.cost += perf_counter_ns() - run.ended
        groups, nested = list(run.groups.values()), started.options.level == "module"
        self._last = (groups, nested)
        lines: list[str] = []
        if groups:
            console.show(groups, nested)
            console.write_groups(run.table.path.with_suffix(".json"), groups)
            if run.verbose:
                terminal.show_file(run.table.path, len(console.TIMES))
            lines.append(f"op elasped info saved to {run.table.path}")
        if run.trace is not None:
            lines.append(f"trace saved to {run.trace.close()}; open it at https://ui.perfetto.dev")
        lines += [clock.note for clock in run.clocks.values() if clock.note]
        lines.append(_cost(run, started.applied))
        terminal.summary(self, started, lines if started.applied else lines[:-1])

    def summary(self, by: View = "op") -> list[Line]:
        """The rows of the last run (or of this one so far), the slowest first."""
        run = self._run
        if run is None:
            return summed(self._last[0], by, self._last[1])
        self._sum_up(run)
        return summed(run.groups.values(), by, self.started.options.level == "module")

    # The classic tables, with OP_TOOLS_VERBOSE.

    def _show(self, call: Call, given: gradients.Arguments | None, result: Any, row: Row) -> None:
        ms = row.clock.between(row.start, row.end)
        rows = terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)
        rows += terminal.tensor_rows(f"{call.name} outputs", result)
        times = console.grid(call.name, call.id, "forward_elasped", ms)
        terminal.show_call("", call, rows, times)
        if given is None or not given.wanted:
            return
        name, identity = call.name, call.id

        def show(found: gradients.Gradients) -> None:
            total = sum(row.clock.between(*span) for span in row.spans)
            made = [*_named(f"{name} grad_outputs", found.outputs)]
            made += _named(f"{name} grad_inputs", found.inputs)
            times = console.grid(name, identity, "backward_elasped", total)
            terminal.say("\n".join([terminal.call_table(made), times]))

        gradients.watch(call, given, result, _described, show, dispatch.guard(self, call))


def _own(more: dict[str, Any]) -> tuple[str, Path | None]:
    """The mode and the trace that were asked for; SettingError when they cannot be."""
    for name in more:
        if name not in ("mode", "trace"):
            raise SettingError(f"OpTimeMeasure has no option {name!r}.", "it has mode and trace.")
    setting, traced = settings.OP_TIME_MEASURE_MODE, settings.OP_TIME_MEASURE_TRACE
    try:
        mode = setting.parse(more["mode"]) if more.get("mode") else setting.get()
    except ValueError as error:
        problem = f"OpTimeMeasure(mode={more['mode']!r}): {error}."
        raise SettingError(problem, f"allowed: {setting.allowed}.") from None
    if more.get("trace"):
        return mode, Path(more["trace"])
    return mode, traced.get() if traced.is_set() else None


def _device_of(call: Call) -> torch.device:
    found = call.device or torch.device("cpu")
    index: int | None = found.index
    if found.type != "cpu" and index is None:
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found


def _until_done(row: Row, result: Any) -> None:
    """The end of a collective is when its future is done: then the device has been told."""
    row.waiting = True

    def done(_future: Any) -> None:
        row.end, row.waiting = row.clock.mark(), False

    try:
        result.get_future().add_done_callback(done)
    except Exception:  # a backend without futures: what is known is the launch
        row.waiting = False


def _resolve(run: _Run, row: Row) -> Group:
    clock = row.clock
    row.forward_ms = clock.between(row.start, row.end)
    spans = [(start, clock.between(start, end)) for start, end in row.spans]
    if row.spans:
        row.backward_ms = sum(ms for _, ms in spans)
    group = _group(run, row.given, row.module, row.site)
    if row.backward:  # a kernel of the backward pass
        group.backward_flops, group.backward_bytes = group.flops, group.bytes
        group.backward.add(row.forward_ms)
    else:
        group.forward.add(row.forward_ms)
    if row.backward_ms is not None:
        group.backward.add(row.backward_ms)
    if run.trace is not None:
        run.trace.call(row, spans, group)
    nodes = row.nodes() if row.nodes is not None else None
    if nodes is not None:
        nodes.closed = True  # a second backward pass has nobody to tell
    for mark in (row.start, row.end, *(mark for span in row.spans for mark in span)):
        clock.free(mark)
    return group


def _size_up(run: _Run, given: Hashable, call: Call, result: Any) -> None:
    """Once for each signature: what a call like this has to do."""
    run.work[given] = (0.0, 0.0, 0.0)
    run.together[given] = collectives.collective(call, result)
    run.work[given] = (*roofline.flops(call, result), roofline.bytes_moved(call, result))


def _native_group(run: _Run, call: Call, given: Hashable, result: Any) -> Group:
    """The group of a call that is timed natively."""
    if given not in run.work:
        _size_up(run, given, call, result)
    return _group(run, given, call.module, call.site)


def _group(run: _Run, given: Hashable, module: str, site: Site | None) -> Group:
    """The group of calls of one kind, in one module, on one line."""
    group = run.groups.get((given, module, site))
    if group is None:
        name, *shapes = cast(tuple[Any, ...], given)  # by call_shapes
        kind = Kind(name, text_of(tuple(shapes)), module, site)
        group = run.groups[given, module, site] = Group(kind)
        group.flops, group.backward_flops, group.bytes = run.work[given]
        group.collective = run.together[given]
    return group


def _cost(run: _Run, calls: int) -> str:
    spent = run.cost + (run.native.spent if run.native is not None else 0)
    ms, whole = spent / 1e6, (run.ended - run.begun) / 1e6
    each = spent / 1e3 / max(1, calls)
    return (
        f"tool cost: {ms:.1f} ms of {whole:.1f} ms, {each:.0f} us for each of {calls} calls "
        "(the times above are without it)"
    )


def _cells(row: Row, group: Group) -> Sequence[object]:
    """A row of the file. A gradient has the shape and the type of what it is the gradient of."""
    result = text_of(row.result)
    cells = (row.name, row.id, f"{row.forward_ms:.8f}")
    if row.backward_ms is None:
        return (*cells, "-", "ms", group.kind.shape, result, "-", "-")
    given = tensor_texts(row.given, row.grad_inputs)
    return (*cells, f"{row.backward_ms:.8f}", "ms", group.kind.shape, result, given, result)


def _described(gradient: Tensor) -> tuple[object, ...]:
    return terminal.tensor_rows("", gradient)[0][1:]


def _named(label: str, found: Sequence[tuple[object, ...] | None]) -> list[tuple[object, ...]]:
    return [(f"{label} [0][{i}]", *row) for i, row in enumerate(found) if row is not None]
