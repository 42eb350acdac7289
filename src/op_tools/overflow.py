"""OpOverflowCheck: the operator that made the first NaN or Inf, and what it was made of."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from op_tools import gradients, interception, names, report
from op_tools.call import Call, Direction, tensors
from op_tools.host import mapped
from op_tools.options import Options
from op_tools.tool import Observer, Started

KEPT = 100  # alarms that are kept in full; the rest are counted


@dataclass(frozen=True)
class Health:
    """Whether there are NaNs or Infs among some tensors."""

    nan: bool = False
    inf: bool = False

    def __or__(self, other: Health) -> Health:
        return Health(self.nan or other.nan, self.inf or other.inf)


@dataclass(frozen=True)
class Extent:
    """What is left of a tensor in a report: where its values lie."""

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
    kind: str  # "NaN" or "Inf"
    direction: Direction
    step: int
    module: str
    where: str
    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]
    note: str = ""


@dataclass
class _State:
    before: Health | None  # of arguments that the call may write; None: look at them afterwards
    arguments: gradients.Arguments = field(repr=False)


class OpOverflowCheck(Observer):
    """Alarms name a call whose result has NaN or Inf that its arguments had not.

    An Inf that the program itself writes (a mask's `-inf`) is none, nor is what becomes of it.
    """

    key = "OVERFLOW_CHECK"
    hook = "OpOverflowCheckHook"
    excluded = names.UNINITIALISED
    wants_modules = True

    def begin(self, options: Options) -> None:
        self.alarms: list[Alarm] = []
        self.count = 0
        self.propagated = 0

    @property
    def first(self) -> Alarm | None:
        """The first alarm: where to look."""
        return self.alarms[0] if self.alarms else None

    def before(self, call: Call) -> _State:
        writes = call.name.endswith("_") or "out" in call.kwargs or call.level == "aten"
        known = health(tensors(call.args, call.kwargs)) if writes or _in_place(call) else None
        return _State(known, gradients.arguments(call))

    def after(self, call: Call, state: _State, result: Any) -> None:
        after = health(tensors(result))
        if after.nan or after.inf:
            before = state.before or health(tensors(call.args, call.kwargs))
            self._judge(call, before, after, (call.args, call.kwargs), result, "forward")
        if report.verbose():
            self._show(call, result)
        if state.arguments.wanted:
            self._watch(call, state, result)

    def _watch(self, call: Call, state: _State, result: Any) -> None:
        arguments = state.arguments
        bare = replace(call, args=(), kwargs={})  # the graph is not to hold its own tensors

        def take(gradient: Tensor) -> tuple[Health, Extent | None]:
            state = health([gradient])
            return state, extent("gradient", gradient) if state.nan or state.inf else None

        def done(seen: gradients.Gradients) -> None:
            before = _together(seen.outputs)
            after = _together(seen.inputs)
            if after.nan or after.inf:
                self._judge(bare, before, after, seen.outputs, seen.inputs, "backward")

        gradients.watch(call, arguments, result, take, done, guard=interception.guard(self, bare))

    def _judge(
        self,
        call: Call,
        before: Health,
        after: Health,
        given: Any,
        made: Any,
        direction: Direction,
    ) -> None:
        new_nan = after.nan and not before.nan
        new_inf = after.inf and not before.inf and not before.nan
        if new_inf and not new_nan and direction == "forward" and _meant(call):
            return
        if not (new_nan or new_inf):
            self.propagated += 1
            return
        self.count += 1
        if len(self.alarms) < KEPT:
            self.alarms.append(
                Alarm(
                    call.id,
                    call.name,
                    "NaN" if new_nan else "Inf",
                    call.direction if call.level == "aten" else direction,
                    call.step,
                    call.module,
                    call.where,
                    tuple(_extents(given)),
                    tuple(_extents(made)),
                    _note(direction),
                )
            )

    def _show(self, call: Call, result: Any) -> None:
        columns = ("name", "inf_or_nan", "min", "max", "mean", "std", "norm")
        given = tensors(call.args, call.kwargs)
        rows = [(f"{call.name} inputs[{i}]", *_numbers(t)) for i, t in enumerate(given)]
        rows += [(f"{call.name} outputs[{i}]", *_numbers(t)) for i, t in enumerate(tensors(result))]
        report.say(f"{call.name}    forward_id: {call.id}\n{call.where}")
        report.say(report.grid(columns, rows))

    def finish(self, started: Started) -> None:
        lines = [
            f"OpOverflowCheck: {started.applied} calls checked, {self.count} made NaN or Inf, "
            f"{self.propagated} passed it on"
        ]
        if self.first is not None:
            alarm = self.first
            lines.append(
                f"  first: {alarm.kind} by {alarm.op} ({alarm.direction}), step {alarm.step}, "
                f"module {alarm.module or '-'}, {alarm.where}"
            )
            lines += [f"    {_text(e)}" for e in (*alarm.inputs, *alarm.outputs)]
            if alarm.note:
                lines.append(f"    {alarm.note}")
        report.summary(self, started, lines)


def health(values: Any) -> Health:
    """Of all the tensors together; one pass over each, and one wait for the device."""
    found = Health()
    for tensor in values:
        low, high = _bounds(tensor)
        found |= Health(math.isnan(low) or math.isnan(high), math.isinf(low) or math.isinf(high))
        if found.nan and not found.inf:  # an Inf may hide behind a NaN
            found |= Health(inf=bool(torch.isinf(tensor).any()))
    return found


def _bounds(tensor: Tensor) -> tuple[float, float]:
    if not tensor.numel() or tensor.layout != torch.strided or tensor.is_nested:
        return 0.0, 0.0
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        return 0.0, 0.0
    low, high = torch.aminmax(tensor.detach())
    return low.item(), high.item()


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


def _extents(values: Any) -> Iterator[Extent]:
    for i, value in enumerate(values if isinstance(values, list) else [values]):
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Health):
            if value[1] is not None:
                yield value[1]
            continue
        for j, tensor in enumerate(tensors(value)):
            if tensor.layout == torch.strided and not tensor.is_nested:
                yield extent(f"[{max(i, j)}]", tensor)


def _together(taken: list[Any]) -> Health:
    found = Health()
    for item in taken:
        if item is not None:
            found |= item[0]
    return found


def _in_place(call: Call) -> bool:
    return bool(call.kwargs.get("inplace")) or names.last(call.name) == "__setitem__"


def _meant(call: Call) -> bool:
    """Whether the program itself gives an Inf: as a plain value among the arguments."""
    found = False

    def look(leaf: Any) -> Any:
        nonlocal found
        found = found or (isinstance(leaf, float) and math.isinf(leaf))
        return leaf

    mapped((call.args, dict(call.kwargs)), look)
    return found


def _note(direction: Direction) -> str:
    if direction == "backward" and _scaling():
        return "a GradScaler is in use: it skips a step whose gradients overflow, and goes on"
    return ""


def _scaling() -> bool:
    kind = torch.amp.GradScaler
    scalers = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return any(scaler.is_enabled() for scaler in scalers)


def _text(e: Extent) -> str:
    return (
        f"{e.name} {e.dtype} {list(e.shape)}: from {e.low:.4g} to {e.high:.4g}, "
        f"{e.nans} NaN, {e.infs} Inf"
    )


def _numbers(tensor: Tensor) -> tuple[object, ...]:
    state = health([tensor])
    if not tensor.numel() or not tensor.is_floating_point():
        return (state.nan or state.inf, *[""] * 5)
    values = tensor.detach().double() if tensor.device.type == "cpu" else tensor.detach().float()
    low, high = _bounds(tensor)
    deviation = values.std().item() if tensor.numel() > 1 else 0.0
    middle = (values.mean().item(), deviation, values.norm().item())
    return state.nan or state.inf, low, high, *(f"{value:.9f}" for value in middle)
