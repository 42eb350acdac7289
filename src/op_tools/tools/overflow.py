# SPDX-License-Identifier: Apache-2.0
"""OpOverflowCheck: the operator that made the first NaN or Inf, and what it was made of."""

from __future__ import annotations

import gc
import json
import math
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.i18n import _
from op_tools.core import dispatch, gradients, op_names, terminal
from op_tools.core.call import Call, Direction, Site, tensor_list, tensors
from op_tools.core.collectives import is_collective
from op_tools.core.dispatch import Plan
from op_tools.core.native_library import NativeSink, call_headers
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.core.worker import Periodic
from op_tools.tensors.finite import Health, health
from op_tools.tensors.host_transfer import mapped
from op_tools.tensors.mutation import written_by_schema
from op_tools.tensors.statistics_sink import statistics_sink

KEPT = 100  # alarms that are kept in full; the rest are counted
SCALED = _("a GradScaler is in use: it skips a step whose gradients overflow, and goes on")


@dataclass(frozen=True)
class Extent:
    """What a report shows of a tensor: where its values lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float
    nans: int
    infs: int


@dataclass(frozen=True)
class Alarm:
    """A call that made NaN or Inf out of arguments that had none."""

    id: int
    op: str
    direction: Direction
    step: int
    module: str
    where: str
    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]
    kind: str = ""  # "NaN" or "Inf"
    note: str = ""


@dataclass(slots=True)
class _State:
    before: tuple[Extent, ...] | None  # of arguments that the call may write; None: read after it
    arguments: gradients.Arguments = field(repr=False)


class OpOverflowCheck(Observer):
    """Alarms name a call whose result has NaN or Inf that its arguments had not.

    An Inf that the program itself writes (a mask's `-inf`) is none, nor is what becomes of it.
    The statistics of OpCapture are taken of each call, and the calls with NaN or Inf are kept.
    """

    key = "OVERFLOW_CHECK"
    hook = "OpOverflowCheckHook"
    excluded = op_names.UNINITIALISED
    wants_modules = True

    def begin(self, options: Options) -> None:
        self._alarms: list[Alarm] = []
        self._count = self._propagated = 0
        self._lock = threading.RLock()
        tool = weakref.proxy(self)  # the sink belongs to the tool: no reference cycle
        self._sink = statistics_sink(
            "OpOverflowCheck",
            settings.OP_TOOLS_MAX_CACHE_SIZE.get(),
            lambda tensor: '{"skipped":"not read"}',
            lambda: tool._reader.wake(),
            nonfinite_only=True,
        )
        if self._sink is not None:
            self._reader = Periodic(lambda: tool._read(everything=False))
            headers = call_headers(self.device_filter(), _site, json.dumps)
            self.native = NativeSink(self._sink, headers, self)

    # Results.

    @property
    def alarms(self) -> list[Alarm]:
        """What was found so far, the first KEPT of them."""
        self._read()
        return self._alarms

    @property
    def count(self) -> int:
        """Calls that made NaN or Inf."""
        self._read()
        return self._count

    @property
    def propagated(self) -> int:
        """Calls that passed it on."""
        self._read()
        return self._propagated

    @property
    def first(self) -> Alarm | None:
        """The first alarm: where to look."""
        return self.alarms[0] if self.alarms else None

    # Calls that are recorded natively.

    def goes_natively(self, plan: Plan) -> bool:
        return not terminal.verbose() and not is_collective(plan.name)

    def _read(self, everything: bool = True) -> None:
        """Judges the recorded calls with NaN or Inf; `everything`: waits for the device."""
        if self._sink is None:
            return
        with self._lock, dispatch.unseen():  # so that calls are judged in their order
            for line in self._sink.take(everything).splitlines():
                self._judge(*_parsed(json.loads(line)))

    # Calls that Python observes.

    def before(self, call: Call) -> _State:
        writes = call.name.endswith("_") or "out" in call.kwargs or call.level == "aten"
        writes = writes or _in_place(call)
        return _State(tuple(extents(call.given)) if writes else None, gradients.arguments(call))

    def after(self, call: Call, state: _State, result: Any) -> None:
        made = tensor_list(result) or written_by_schema(call)
        if terminal.verbose():
            self._show(call, result)
        if not _is_healthy(made):
            before = tuple(extents(call.given)) if state.before is None else state.before
            self._found(call, before, tuple(extents(made)), of_gradient=False)
        if state.arguments.wanted:
            self._watch(call, state, result)

    def _watch(self, call: Call, state: _State, result: Any) -> None:
        bare = replace(call, args=(), kwargs={})  # the graph is not to hold its own tensors

        def take(gradient: Tensor) -> Extent:
            return next(extents([gradient.detach()]))

        def done(seen: gradients.Gradients) -> None:
            given, made = (
                tuple(one for one in side if one is not None)
                for side in (seen.outputs, seen.inputs)
            )
            if any(one.nans or one.infs for one in made):
                self._found(bare, given, made, of_gradient=True)

        guard = dispatch.guard(self, bare)
        gradients.watch(call, state.arguments, result, take, guard(done), guard=guard)

    def _found(
        self,
        call: Call,
        before: tuple[Extent, ...],
        after: tuple[Extent, ...],
        of_gradient: bool,
    ) -> None:
        direction: Direction = "backward" if of_gradient else call.direction
        where = call.step, call.module, call.where
        alarm = Alarm(call.id, call.name, direction, *where, before, after)
        with self._lock:
            self._judge(alarm, of_gradient, not of_gradient and meant(call))

    # Verdicts.

    def _judge(self, alarm: Alarm, of_gradient: bool, infinite_argument: bool) -> None:
        """Counts a call; keeps it where its arguments had no NaN or Inf. `of_gradient`: its inputs
        and outputs are gradients.
        """
        before, after = (_health(side) for side in (alarm.inputs, alarm.outputs))
        new_nan = after.nan and not before.nan
        new_inf = after.inf and not before.inf and not before.nan
        if new_inf and not new_nan and infinite_argument:
            return
        if not (new_nan or new_inf):
            self._propagated += 1
            return
        self._count += 1
        if len(self._alarms) < KEPT:
            note = SCALED if of_gradient and _scaling() else ""
            self._alarms.append(replace(alarm, kind="NaN" if new_nan else "Inf", note=note))

    def _show(self, call: Call, result: Any) -> None:
        columns = ("name", "inf_or_nan", "min", "max", "mean", "std", "norm")
        given = tensors(call.args, call.kwargs)
        rows = [(f"{call.name} inputs[{i}]", *_numbers(t)) for i, t in enumerate(given)]
        rows += [(f"{call.name} outputs[{i}]", *_numbers(t)) for i, t in enumerate(tensors(result))]
        terminal.say(f"{call.name}    forward_id: {call.id}\n{call.where}")
        terminal.say(terminal.grid(columns, rows))

    def finish(self, started: Started) -> None:
        if self._sink is not None:
            self._reader.close()
        lines = [
            _(
                "OpOverflowCheck: {applied} calls checked, {count} made NaN or Inf of finite "
                "arguments, {propagated} were given NaN or Inf and passed it on"
            ).format(applied=started.applied, count=self.count, propagated=self.propagated)
        ]
        if self.first is not None:
            alarm = self.first
            lines.append(
                _(
                    "  first: {kind} by {op} ({direction}), step {step}, module {module}, {where}"
                ).format(
                    kind=alarm.kind,
                    op=alarm.op,
                    direction=alarm.direction,
                    step=alarm.step,
                    module=alarm.module or "-",
                    where=alarm.where,
                )
            )
            lines += ["    " + text_of(e) for e in (*alarm.inputs, *alarm.outputs)]
            if alarm.note:
                lines.append("    " + alarm.note)
        terminal.summary(self, started, lines)


def _site(code: CodeType, line: int) -> str:
    """A line of the program, in JSON."""
    return json.dumps(str(Site(code.co_filename, line, code.co_name)))


def _parsed(row: dict[str, Any]) -> tuple[Alarm, bool, bool]:
    """A recorded call with NaN or Inf; whether its values are gradients, and has an Inf of the
    program's own among its arguments.
    """
    of_gradient = "grad_inputs" in row
    given = row["grad_outputs"] if of_gradient else row["inputs"]
    made = row["grad_inputs"] if of_gradient else row["outputs"]
    outputs = _extents_of([*made, *row.get("mutated", {}).values()])
    direction: Direction = "backward" if of_gradient else row["direction"]
    where = row["step"], row["module"], row["site"] or "(unknown line)"
    alarm = Alarm(row["id"], row["op"], direction, *where, _extents_of(given), outputs)
    return alarm, of_gradient, not of_gradient and row.get("infinite_argument", False)


def _extents_of(found: list[dict[str, Any] | None]) -> tuple[Extent, ...]:
    """Of the tensors whose statistics are known."""
    return tuple(
        Extent(
            f"[{at}]",
            one["dtype"],
            tuple(one["shape"]),
            math.nan if one["min"] is None else one["min"],
            math.nan if one["max"] is None else one["max"],
            one["nans"],
            one["nonfinite"] - one["nans"],
        )
        for at, one in enumerate(found)
        if one is not None and "nans" in one
    )


def _health(side: tuple[Extent, ...]) -> Health:
    return Health(any(one.nans for one in side), any(one.infs for one in side))


def _is_healthy(found: list[Tensor]) -> bool:
    state = health(found)
    return not (state.nan or state.inf)


def extent(name: str, tensor: Tensor) -> Extent:
    """Where the values of a tensor lie, apart from those that are none."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.detach().to("cpu", torch.float64)
    finite = values[torch.isfinite(values)]
    bounds = finite.aminmax() if finite.numel() else None
    return Extent(
        name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        bounds.min.item() if bounds else math.nan,
        bounds.max.item() if bounds else math.nan,
        int(torch.isnan(values).sum()),
        int(torch.isinf(values).sum()),
    )


def extents(tensors: list[Tensor]) -> Iterator[Extent]:
    for at, tensor in enumerate(tensors):
        if tensor.layout == torch.strided and not tensor.is_nested:
            yield extent(f"[{at}]", tensor)


def _in_place(call: Call) -> bool:
    return bool(call.kwargs.get("inplace")) or op_names.last(call.name) == "__setitem__"


def meant(call: Call) -> bool:
    """Whether the program itself gives an Inf: as a plain value among the arguments."""
    found = False

    def look(leaf: Any) -> Any:
        nonlocal found
        found = found or (isinstance(leaf, float) and math.isinf(leaf))
        return leaf

    mapped((call.args, dict(call.kwargs)), look)
    return found


def _scaling() -> bool:
    kind = torch.amp.GradScaler
    scalers = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return any(scaler.is_enabled() for scaler in scalers)


def text_of(e: Extent) -> str:
    return _("{name} {dtype} {shape}: from {low:.4g} to {high:.4g}, {nans} NaN, {infs} Inf").format(
        name=e.name,
        dtype=e.dtype,
        shape=list(e.shape),
        low=e.low,
        high=e.high,
        nans=e.nans,
        infs=e.infs,
    )


def _numbers(tensor: Tensor) -> tuple[object, ...]:
    state = health([tensor])
    if not tensor.numel() or not tensor.is_floating_point():
        return (state.nan or state.inf, *[""] * 5)
    values = tensor.detach().double() if tensor.device.type == "cpu" else tensor.detach().float()
    low, high = (value.item() for value in torch.aminmax(tensor.detach()))
    deviation = values.std().item() if tensor.numel() > 1 else 0.0
    middle = (values.mean().item(), deviation, values.norm().item())
    return state.nan or state.inf, low, high, *(f"{value:.9f}" for value in middle)
