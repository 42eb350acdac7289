# SPDX-License-Identifier: Apache-2.0
"""OpOverflowCheck: the operator that returned the first NaN or Inf, and its arguments."""

from __future__ import annotations

import gc
import json
import math
import threading
import weakref
from dataclasses import dataclass, replace
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
    """The range of a tensor's values, for a report."""

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


# The extents of arguments that the call may write (None: they are read after it), and its edges.
_State = tuple[tuple["Extent", ...] | None, gradients.Arguments]


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
        """The alarms so far, the first KEPT of them."""
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
        """The first alarm: most often the cause of the later ones."""
        return self.alarms[0] if self.alarms else None

    # Calls that are recorded natively.

    def goes_natively(self, plan: Plan) -> bool:
        return not terminal.verbose() and not is_collective(plan.name)

    def _read(self, everything: bool = True) -> None:
        """Judge the recorded calls with NaN or Inf; `everything`: waits for the device."""
        if self._sink is None:
            return
        with self._lock, dispatch.unseen():  # so that calls are judged in their order
            for line in self._sink.take(everything).splitlines():
                self._judge(*_parsed(json.loads(line)))

    # Calls that Python observes.

    def before(self, call: Call) -> _State:
        writes = call.name.endswith("_") or "out" in call.kwargs or call.level == "aten"
        writes = writes or call.kwargs.get("inplace") or op_names.last(call.name) == "__setitem__"
        return extents(call.inputs) if writes else None, gradients.arguments(call)

    def after(self, call: Call, state: _State, result: Any) -> None:
        before, arguments = state
        outputs = tensor_list(result) or written_by_schema(call)
        if terminal.verbose():
            self._show(call, result)
        found = health(outputs)
        if found.nan or found.inf:
            before = extents(call.inputs) if before is None else before
            self._found(call, before, extents(outputs), of_gradient=False)
        if arguments.wanted:
            self._watch(call, arguments, result)

    def _watch(self, call: Call, arguments: gradients.Arguments, result: Any) -> None:
        bare = replace(call, args=(), kwargs={})  # the graph is not to hold its own tensors

        def take(gradient: Tensor) -> Extent | None:
            return next(iter(extents([gradient])), None)

        def done(seen: gradients.Gradients) -> None:
            before, after = (
                tuple([one for one in side if one is not None])
                for side in (seen.outputs, seen.inputs)
            )
            if any(one.nans or one.infs for one in after):
                self._found(bare, before, after, of_gradient=True)

        guard = dispatch.guard(self, bare)
        gradients.watch(call, arguments, result, take, guard(done), guard=guard)

    def _found(
        self, call: Call, before: tuple[Extent, ...], after: tuple[Extent, ...], of_gradient: bool
    ) -> None:
        direction: Direction = "backward" if of_gradient else call.direction
        where = call.step, call.module, call.where
        alarm = Alarm(call.id, call.name, direction, *where, before, after)
        with self._lock:
            self._judge(alarm, of_gradient, not of_gradient and has_infinity(call))

    # Verdicts.

    def _judge(self, alarm: Alarm, of_gradient: bool, infinite_argument: bool) -> None:
        """Count a call, and keep it where its arguments had no NaN or Inf. `of_gradient`: its
        inputs and outputs are gradients.
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
        terminal.write(f"{call.name}    forward_id: {call.id}\n{call.where}")
        terminal.write(terminal.grid(columns, rows))

    def finish(self, started: Started) -> None:
        if self._sink is not None:
            self._reader.close()
        text = _(
            "OpOverflowCheck: {applied} {applied:call|calls} checked, {count} made NaN "
            "or Inf of finite arguments, {propagated} {propagated:was|were} given NaN or "
            "Inf and passed it on"
        )
        counts = {"count": self.count, "propagated": self.propagated}
        lines = [text.format(applied=started.applied, **counts)]
        if self.first is not None:
            alarm = self.first
            text = _("  first: {kind} by {op} ({direction}), step {step}, module {module}, {where}")
            lines.append(text.format(**{**vars(alarm), "module": alarm.module or "-"}))
            lines += ["    " + text_of(e) for e in (*alarm.inputs, *alarm.outputs)]
            if alarm.note:
                lines.append("    " + alarm.note)
        terminal.summary(self, started, lines)


def _site(code: CodeType, line: int) -> str:
    """A line of the program, in JSON."""
    return json.dumps(str(Site(code.co_filename, line, code.co_name)))


def _parsed(row: dict[str, Any]) -> tuple[Alarm, bool, bool]:
    """A recorded call with NaN or Inf; whether its values are gradients; and whether the program
    passes an Inf as an argument.
    """
    of_gradient = "grad_inputs" in row
    sides = ("grad_outputs", "grad_inputs") if of_gradient else ("inputs", "outputs")
    before, after = row[sides[0]], [*row[sides[1]], *row.get("mutated", {}).values()]
    direction: Direction = "backward" if of_gradient else row["direction"]
    where = row["step"], row["module"], row["site"] or "(unknown line)"
    both = _extents_of(before), _extents_of(after)
    alarm = Alarm(row["id"], row["op"], direction, *where, *both)
    return alarm, of_gradient, not of_gradient and row.get("infinite_argument", False)


def _extents_of(found: list[dict[str, Any] | None]) -> tuple[Extent, ...]:
    """The extents of the tensors whose statistics were recorded."""
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


def extent(name: str, tensor: Tensor) -> Extent:
    """The range of the finite values of a tensor, and how many are not finite."""
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


def extents(tensors: list[Tensor]) -> tuple[Extent, ...]:
    """The extents of the strided tensors."""
    return tuple(
        extent(f"[{at}]", tensor)
        for at, tensor in enumerate(tensors)
        if tensor.layout == torch.strided and not tensor.is_nested
    )


def has_infinity(call: Call) -> bool:
    """Whether the program itself passes an Inf: as a plain value among the arguments."""
    infinities: list[float] = []

    def check(leaf: Any) -> Any:
        if isinstance(leaf, float) and math.isinf(leaf):
            infinities.append(leaf)
        return leaf

    mapped((call.args, dict(call.kwargs)), check)
    return bool(infinities)


def _scaling() -> bool:
    kind = torch.amp.GradScaler
    scalers = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return any(scaler.is_enabled() for scaler in scalers)


def text_of(e: Extent) -> str:
    """One line about a tensor."""
    text = _("{name} {dtype} {shape}: from {low:.4g} to {high:.4g}, {nans} NaN, {infs} Inf")
    return text.format(**{**vars(e), "shape": list(e.shape)})


def _numbers(tensor: Tensor) -> tuple[object, ...]:
    state = health([tensor])
    if not tensor.numel() or not tensor.is_floating_point():
        return (state.nan or state.inf, *[""] * 5)
    values = tensor.detach().double() if tensor.device.type == "cpu" else tensor.detach().float()
    low, high = (value.item() for value in torch.aminmax(tensor.detach()))
    deviation = values.std().item() if tensor.numel() > 1 else 0.0
    middle = (values.mean().item(), deviation, values.norm().item())
    return state.nan or state.inf, low, high, *(f"{value:.9f}" for value in middle)
