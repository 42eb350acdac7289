"""OpOverflowCheck: the operator that made the first NaN or Inf, and what it was made of."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from op_tools import gradients, interception, names, report, statistics
from op_tools.call import Call, Direction, held_bytes, tensor_list, tensors
from op_tools.host import mapped
from op_tools.looks import Health, Look, Looks, health
from op_tools.options import Options
from op_tools.tool import Observer, Started

KEPT = 100  # alarms that are kept in full; the rest are counted
WAITING = 128  # calls that are judged together, where the host has to wait for the device
HELD = 1 << 28  # bytes of their tensors at most


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
    before: Look | None  # of the arguments; None: look at them afterwards
    arguments: gradients.Arguments = field(repr=False)


@dataclass(frozen=True)
class _Unjudged:
    """A call whose values were asked for. It holds its tensors, for what is shown of them."""

    call: Call
    before: Look | None
    after: Look
    given: list[Tensor]
    made: list[Tensor]
    direction: Direction
    late: bool = False  # the host does not see them: they may have been written again since


class OpOverflowCheck(Observer):
    """Alarms name a call whose result has NaN or Inf that its arguments had not.

    An Inf that the program itself writes (a mask's `-inf`) is none, nor is what becomes of it.
    """

    key = "OVERFLOW_CHECK"
    hook = "OpOverflowCheckHook"
    excluded = names.UNINITIALISED
    wants_modules = True

    def begin(self, options: Options) -> None:
        self._alarms: list[Alarm] = []
        self._count = self._propagated = 0
        self._looks = Looks()
        self._unjudged: list[_Unjudged] = []
        self._held = 0  # bytes
        self._lock = threading.RLock()

    @property
    def alarms(self) -> list[Alarm]:
        """What was found so far, the first KEPT of them."""
        self._settle()
        return self._alarms

    @property
    def count(self) -> int:
        """Calls that made NaN or Inf."""
        self._settle()
        return self._count

    @property
    def propagated(self) -> int:
        """Calls that passed it on."""
        self._settle()
        return self._propagated

    @property
    def first(self) -> Alarm | None:
        """The first alarm: where to look."""
        return self.alarms[0] if self.alarms else None

    def before(self, call: Call) -> _State:
        given = tensor_list(call.args, call.kwargs)
        writes = call.name.endswith("_") or "out" in call.kwargs or call.level == "aten"
        writes = writes or _in_place(call)
        look = self._looks.at(given) if writes or not _is_seen(call) else None
        if writes:
            self._looks.forget(given)
        return _State(look, gradients.arguments(call))

    def after(self, call: Call, state: _State, result: Any) -> None:
        given, made = tensor_list(call.args, call.kwargs), tensor_list(result)
        late, look = not _is_seen(call), self._looks.at(made)
        self._add(_Unjudged(call, state.before, look, given, made, "forward", late))
        if report.verbose():
            self._show(call, result)
        if state.arguments.wanted:
            self._watch(call, state, result)

    def _watch(self, call: Call, state: _State, result: Any) -> None:
        bare = replace(call, args=(), kwargs={})  # the graph is not to hold its own tensors

        def take(gradient: Tensor) -> tuple[Tensor, Look]:
            # of its own: autograd may take the gradient itself
            return gradient.detach(), self._looks.at([gradient])

        def done(seen: gradients.Gradients) -> None:
            sides = [
                [each for each in side if each is not None] for side in (seen.outputs, seen.inputs)
            ]
            given, made = ([tensor for tensor, _ in side] for side in sides)
            before, after = (Look.of([look for _, look in side]) for side in sides)
            late = not _is_seen(bare)
            self._add(_Unjudged(bare, before, after, given, made, "backward", late))

        guard = interception.guard(self, bare)
        gradients.watch(call, state.arguments, result, take, guard(done), guard=guard)

    def settle(self) -> None:
        self._looks.clear()

    # What waits to be judged.

    def _add(self, one: _Unjudged) -> None:
        with self._lock:
            self._unjudged.append(one)
            self._held += sum([held_bytes(tensor) for tensor in (*one.given, *one.made)])
            if not one.late or len(self._unjudged) >= WAITING or self._held >= HELD:
                self._settle()

    def _settle(self) -> None:
        """Judges what waits, in the order of the calls."""
        with self._lock, interception.unseen():
            waiting, self._unjudged, self._held = self._unjudged, [], 0
            if not waiting:
                return
            looks = [one.after for one in waiting]
            self._looks.read(looks + [one.before for one in waiting if one.before is not None])
            for one in waiting:
                after = one.after.found
                assert after is not None  # it was read
                if after.nan or after.inf:
                    self._judge(one, after)

    def _judge(self, one: _Unjudged, after: Health) -> None:
        before = one.before.found if one.before is not None else health(one.given)
        assert before is not None  # it was read
        call, direction = one.call, one.direction
        new_nan = after.nan and not before.nan
        new_inf = after.inf and not before.inf and not before.nan
        if new_inf and not new_nan and direction == "forward" and meant(call):
            return
        if not (new_nan or new_inf):
            self._propagated += 1
            return
        self._count += 1
        if len(self._alarms) < KEPT:
            self._alarms.append(
                Alarm(
                    call.id,
                    call.name,
                    "NaN" if new_nan else "Inf",
                    call.direction if call.level == "aten" else direction,
                    call.step,
                    call.module,
                    call.where,
                    tuple(extents(one.given)),
                    tuple(extents(one.made)),
                    _note(one),
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
            f"OpOverflowCheck: {started.applied} calls checked, {self.count} made NaN or Inf of "
            f"finite arguments, {self.propagated} were given NaN or Inf and passed it on"
        ]
        if self.first is not None:
            alarm = self.first
            lines.append(
                f"  first: {alarm.kind} by {alarm.op} ({alarm.direction}), step {alarm.step}, "
                f"module {alarm.module or '-'}, {alarm.where}"
            )
            lines += [f"    {text_of(e)}" for e in (*alarm.inputs, *alarm.outputs)]
            if alarm.note:
                lines.append(f"    {alarm.note}")
        report.summary(self, started, lines)


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


def _is_seen(call: Call) -> bool:
    """Whether the host reads a call's tensors without waiting for long."""
    return call.device is None or statistics.kind_is_seen(call.device.type)


def _in_place(call: Call) -> bool:
    return bool(call.kwargs.get("inplace")) or names.last(call.name) == "__setitem__"


def meant(call: Call) -> bool:
    """Whether the program itself gives an Inf: as a plain value among the arguments."""
    found = False

    def look(leaf: Any) -> Any:
        nonlocal found
        found = found or (isinstance(leaf, float) and math.isinf(leaf))
        return leaf

    mapped((call.args, dict(call.kwargs)), look)
    return found


def _note(one: _Unjudged) -> str:
    if one.direction == "backward" and _scaling():
        return "a GradScaler is in use: it skips a step whose gradients overflow, and goes on"
    return "as they were a little later: what was written again since is new" if one.late else ""


def _scaling() -> bool:
    kind = torch.amp.GradScaler
    scalers = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return any(scaler.is_enabled() for scaler in scalers)


def text_of(e: Extent) -> str:
    return (
        f"{e.name} {e.dtype} {list(e.shape)}: from {e.low:.4g} to {e.high:.4g}, "
        f"{e.nans} NaN, {e.infs} Inf"
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
