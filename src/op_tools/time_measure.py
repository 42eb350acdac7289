"""OpTimeMeasure: how long each call takes on the device, forward and through its whole backward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _device

from deeplink import settings
from deeplink.errors import SettingError
from op_tools import (
    collectives,
    cost,
    diagnostics,
    engine,
    gradients,
    report,
    results,
    time_tables,
)
from op_tools.call import Call, Site, device_of
from op_tools.clock import Clock, Mark, clock_for
from op_tools.options import Options
from op_tools.timings import Group, Kind, Line, View, summed
from op_tools.tool import Observer, Started
from op_tools.trace import Trace

Span = tuple[Mark, Mark]

# Nodes whose gradient is a view of what comes in: nothing is computed, and they are not timed where
# a call has others. The second kind copies when it is the first to get a gradient of odd strides.
_IDLE = frozenset(f"{name}Backward0" for name in "T Transpose Permute Unsqueeze Alias".split())
_RESHAPE = frozenset(f"{name}Backward0" for name in "View UnsafeView ReshapeAlias".split())


@dataclass(slots=True)
class Row:
    """One call: when it started and ended, and the same of each node of its backward pass."""

    id: int
    name: str
    step: int
    module: str
    site: Site | None
    backward: bool  # a kernel that the backward pass calls
    device: torch.device
    clock: Clock
    given: Hashable  # shapes and types
    start: Mark
    thread: int = 0
    launched: int = 0  # on the host's clock
    returned: int = 0
    end: Mark = None
    result: Hashable = None
    spans: list[Span] = field(default_factory=list)
    nodes: weakref.ref[_Nodes] | None = None
    grad_inputs: tuple[int, ...] = ()  # places among the arguments
    waiting: bool = False  # for a collective that goes on after its call
    forward_ms: float = 0.0
    backward_ms: float | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing will be added: its backward pass is over, or cannot come any more."""
        nodes = self.nodes() if self.nodes is not None else None
        return not self.waiting and (nodes is None or nodes.waiting <= 0)

    @property
    def ready(self) -> bool:
        """Whether the device has come to the last of its marks."""
        last = self.spans[-1][1] if self.spans else self.end
        return self.clock.ready(last)


@dataclass(slots=True, weakref_slot=True)
class _Nodes:
    """What the hooks of one call's nodes share. Only they hold it, so it dies with the graph."""

    row: Row
    waiting: int
    closed: bool = False


@dataclass
class _Run:
    """What is kept between a start and a stop."""

    mode: str
    limit: int
    table: time_tables.Csv
    trace: Trace | None
    verbose: bool = field(default_factory=report.verbose)
    begun: int = field(default_factory=perf_counter_ns)
    rows: list[Row] = field(default_factory=list)
    groups: dict[Hashable, Group] = field(default_factory=dict)
    clocks: dict[torch.device, Clock] = field(default_factory=dict)
    work: dict[Hashable, tuple[float, float, float]] = field(default_factory=dict)
    together: dict[Hashable, collectives.Collective | None] = field(default_factory=dict)
    cost: int = 0  # nanoseconds
    ended: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clock(self, device: torch.device) -> Clock:
        found = self.clocks.get(device)
        if found is None:
            found = self.clocks[device] = clock_for(device, self.mode)
            if self.trace is not None:
                self.trace.anchor(found)
        return found


class OpTimeMeasure(Observer):
    """Times every call: `with OpTimeMeasure(): …`, `OpTimeMeasure(trace="trace.json")`.

    By events of the device, which nothing waits for; `mode="sync"` waits as the seeds do.
    """

    key = "TIME_MEASURE"
    hook = "OpTimeMeasureHook"
    wants_modules = True

    _run: _Run | None = None
    _last: tuple[list[Group], bool] = ([], False)

    def begin(self, options: Options) -> None:
        mode, where = _own(options.more)
        table = time_tables.Csv(results.folder("op_time_measure_result"))
        trace = Trace(where) if where is not None else None
        self._run = _Run(mode, settings.OP_TOOLS_MAX_CACHE_SIZE.get(), table, trace)
        if trace is not None:
            trace.follow_modules()

    # Around a call. Hot path: what can wait is done for many calls at once, in `_collect`.

    def before(self, call: Call) -> tuple[Row, gradients.Arguments | None] | None:
        entered = perf_counter_ns()
        run = self._run
        if run is None:  # stopped by another thread
            return None
        device = _device_of(call)
        clock = run.clock(device)
        if call.name.startswith("torch._foreach_"):
            given, shapes = None, (call.name, _brief(call.args), _brief(call.kwargs.values()))
        else:
            given = gradients.arguments(call) if call.level != "aten" else None
            named = _named_shapes(call.kwargs) if call.kwargs else ()
            shapes = (call.name, _shape(call.args), named)
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
        row.result = _shape(result)
        if row.given not in run.work:
            self._size_up(run, row.given, call, result)
        if given is not None and given.wanted:
            self._follow(call, given, result, row)
        together = run.together[row.given]
        if together is not None and together.asynchronous:
            _until_done(row, result)
        if run.verbose:
            self._show(call, given, result, row)
        run.rows.append(row)
        if len(run.rows) >= run.limit:
            self._collect(run)
        run.cost += perf_counter_ns() - row.returned

    def _size_up(self, run: _Run, given: Hashable, call: Call, result: Any) -> None:
        """Once for each signature: what a call like this has to do."""
        run.work[given] = (0.0, 0.0, 0.0)
        run.together[given] = collectives.collective(call, result)
        run.work[given] = (*cost.flops(call, result), cost.bytes_moved(call, result))

    def _follow(self, call: Call, given: gradients.Arguments, result: Any, row: Row) -> None:
        part = gradients.part(call, given, result)
        if part is None:
            return
        row.grad_inputs = tuple(
            sorted({argument for places in part.inputs.values() for _, argument in places})
        )
        ends = list(_stretches(part)) or [(node, node) for node in part.nodes]
        nodes = _Nodes(row, len(ends))
        row.nodes = weakref.ref(nodes)
        for first, last in ends:
            around = _Around(nodes)
            first.register_prehook(around.enter)
            last.register_hook(around.leave)

    # From marks to milliseconds.

    def _collect(self, run: _Run, everything: bool = False) -> None:
        """Resolves the rows that are over; those whose backward is still to come are kept."""
        with run.lock:
            rows, run.rows = run.rows, []
            done: list[Row] = []
            kept: list[Row] = []
            for row in rows:
                over = everything or (row.complete and row.ready)
                (done if over else kept).append(row)
            run.rows = kept + run.rows
            # a large graph is not gone through again for each call
            run.limit = max(settings.OP_TOOLS_MAX_CACHE_SIZE.get(), 2 * len(kept))
            done.sort(key=lambda row: row.id)
            run.table.write([_cells(row, _resolve(run, row)) for row in done])

    def finish(self, started: Started) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        run.ended = perf_counter_ns()
        with engine.unseen():
            self._collect(run, everything=True)
        run.cost += perf_counter_ns() - run.ended
        groups, nested = list(run.groups.values()), started.options.level == "module"
        self._last = (groups, nested)
        lines: list[str] = []
        if groups:
            time_tables.show(groups, nested)
            if run.verbose:
                time_tables.show_rows(run.table.path)
            lines.append(f"op elasped info saved to {run.table.path}")
        if run.trace is not None:
            lines.append(f"trace saved to {run.trace.close()}; open it at https://ui.perfetto.dev")
        lines += [clock.note for clock in run.clocks.values() if clock.note]
        lines.append(_cost(run, started.applied))
        report.summary(self, started, lines if started.applied else lines[:-1])

    def summary(self, by: View = "op") -> list[Line]:
        """The rows of the last run (or of this one so far), the slowest first."""
        run = self._run
        if run is None:
            return summed(self._last[0], by, self._last[1])
        with engine.unseen():
            self._collect(run)
        return summed(run.groups.values(), by, self.started.options.level == "module")

    # The seeds' tables, with OP_TOOLS_VERBOSE.

    def _show(self, call: Call, given: gradients.Arguments | None, result: Any, row: Row) -> None:
        ms = row.clock.between(row.start, row.end)
        rows = report.tensor_rows(f"{call.name} inputs", call.args)
        for key, value in call.kwargs.items():
            rows += report.tensor_rows(f"{call.name} inputs {key}", value)
        rows += report.tensor_rows(f"{call.name} outputs", result)
        times = time_tables.grid(call.name, call.id, "forward_elasped", ms)
        report.show_call(f"{call.name}    forward_id: {call.id}", call, rows, times)
        if given is None or not given.wanted:
            return
        name, identity = call.name, call.id

        def show(found: gradients.Gradients) -> None:
            total = sum(row.clock.between(*span) for span in row.spans)
            made = [*_named(f"{name} grad_outputs", found.outputs)]
            made += _named(f"{name} grad_inputs", found.inputs)
            times = time_tables.grid(name, identity, "backward_elasped", total)
            header = f"{name}    forward_id: {identity}"
            report.say("\n".join([header, report.grid(*_columns(made)), times, "", "", ""]))

        bare = replace(
            call, args=(), kwargs={}
        )  # what hangs in the graph holds none of its tensors
        gradients.watch(call, given, result, _described, show, engine.guard(self, bare))


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
    for value in call.args:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.device
    default: torch.device | None = _device.CURRENT_DEVICE
    found = device_of(call.args, call.kwargs) or default or torch.device("cpu")
    index: int | None = found.index
    if found.type != "cpu" and index is None:
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found


def _stretches(part: gradients.Part) -> Iterator[tuple[Node, Node]]:
    """The nodes that compute, as pairs of the first and the last of a row of them: autograd does a
    reshape and what comes after it one after the other.
    """
    joined: set[Node] = set()
    for node in part.outputs:
        if node.name() in _RESHAPE:
            following = node.next_functions[0][0]
            if following in part.nodes and following.name() not in _IDLE | _RESHAPE:
                joined.update((node, following))
                yield node, following
    for node in part.nodes:
        name = node.name()
        computes = name not in _IDLE and (name not in _RESHAPE or node in part.outputs)
        if computes and node not in joined:
            yield node, node


class _Around:
    """The hooks of one stretch. They hold neither the call nor a tensor: no cycle in the graph."""

    __slots__ = ("mark", "nodes", "start")

    def __init__(self, nodes: _Nodes) -> None:
        self.nodes = nodes
        self.mark = nodes.row.clock.mark
        self.start: Mark = None

    def enter(self, _grads: Any) -> None:
        try:
            if not self.nodes.closed:
                self.start = self.mark()
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpTimeMeasure", self.nodes.row.name, error)

    def leave(self, _inputs: Any, _outputs: Any) -> None:
        nodes = self.nodes
        try:
            if self.start is not None and not nodes.closed:
                nodes.row.spans.append((self.start, self.mark()))
                nodes.waiting -= 1
                self.start = None
        except Exception as error:  # as above
            diagnostics.add("OpTimeMeasure", nodes.row.name, error)


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
    key = (row.given, row.module, row.site)
    group = run.groups.get(key)
    if group is None:
        kind = Kind(row.name, text_of(row.given[1:]), row.module, row.site)  # type: ignore[index]
        group = run.groups[key] = Group(kind)
        group.flops, group.backward_flops, group.bytes = run.work[row.given]
        group.collective = run.together[row.given]
    (group.backward if row.backward else group.forward).add(row.forward_ms)
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


def _cost(run: _Run, calls: int) -> str:
    ms, whole = run.cost / 1e6, (run.ended - run.begun) / 1e6
    each = run.cost / 1e3 / max(1, calls)
    return (
        f"tool cost: {ms:.1f} ms of {whole:.1f} ms, {each:.0f} us for each of {calls} calls "
        "(the times above are without it)"
    )


# Shapes and types: what two calls that take the same time have in common.


def _shape(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if isinstance(value, (tuple, list)):
        return tuple([_shape(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, _shape(item)) for key, item in value.items()])
    if value is None or isinstance(value, (int, float, str, torch.dtype, torch.device)):
        return value
    return repr(value) if isinstance(value, slice) else type(value).__name__


def _named_shapes(values: dict[str, Any]) -> Hashable:
    return tuple([_Named((name, _shape(value))) for name, value in values.items()])


class _Long(tuple[Any, ...]):
    """The length of a list, and the shapes of its first and last."""


def _brief(values: Iterable[Any]) -> Hashable:
    """Of an optimizer's lists, which are the parameters of a model, the ends stand for the rest.
    They have no graph.
    """
    return tuple(
        [
            _Long((len(value), _shape(value[0]), _shape(value[-1])))
            if isinstance(value, (tuple, list)) and value
            else _shape(value)
            for value in values
        ]
    )


class _Named(tuple[Any, ...]):
    """A name and the shape of what is given by it."""


@lru_cache(maxsize=4096)
def text_of(shape: Any) -> str:
    """`float32(4, 128, 256), 2` of what `_shape` made."""
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], torch.Size):
        return f"{str(shape[0]).removeprefix('torch.')}{tuple(shape[1])}".replace(",)", ")")
    if isinstance(shape, _Long):
        return f"[{shape[0]}: {text_of(shape[1])} … {text_of(shape[2])}]"
    if isinstance(shape, _Named):
        return f"{shape[0]}={text_of(shape[1])}"
    if isinstance(shape, tuple):
        return ", ".join(filter(None, map(text_of, shape)))
    return str(shape)


@lru_cache(maxsize=4096)
def _leaves(shape: Any, places: tuple[int, ...]) -> str:
    """The texts of some of the tensors, by their places in the order of `tensors()`."""
    texts = _tensors(shape)
    return ", ".join(texts[place] for place in places if place < len(texts))


def _tensors(shape: Any) -> list[str]:
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], torch.Size):
        return [text_of(shape)]
    return [text for part in shape for text in _tensors(part)] if isinstance(shape, tuple) else []


def _cells(row: Row, group: Group) -> Sequence[object]:
    """A row of the file. A gradient has the shape and the type of what it is the gradient of."""
    result = text_of(row.result)
    cells = (row.name, row.id, f"{row.forward_ms:.8f}")
    if row.backward_ms is None:
        return (*cells, "-", "ms", group.kind.shape, result, "-", "-")
    given = _leaves(row.given, row.grad_inputs)
    return (*cells, f"{row.backward_ms:.8f}", "ms", group.kind.shape, result, given, result)


def _described(gradient: Tensor) -> tuple[object, ...]:
    return report.tensor_rows("", gradient)[0][1:-1]


def _named(label: str, found: Sequence[tuple[object, ...] | None]) -> list[tuple[object, ...]]:
    return [(f"{label} [0][{i}]", *row) for i, row in enumerate(found) if row is not None]


def _columns(
    rows: list[tuple[object, ...]],
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    return report.TENSOR_COLUMNS[:-1], rows
