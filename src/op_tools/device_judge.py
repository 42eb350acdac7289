"""Verdicts on calls that wait for that of their device: natively on most of them, where there is a
native part and the vendor's kernel; by Python on the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deeplink.judge import calibrated
from deeplink.judge.formats import FORMATS
from op_tools import (
    bulk,
    comparison,
    comparison_report,
    device_figures,
    device_kernel,
    device_parts,
    device_verdicts,
    host,
    kernels,
)
from op_tools.again import gradients_of
from op_tools.comparison import Item, Taken
from op_tools.device_figures import figures
from op_tools.device_lists import Lists
from op_tools.device_pairs import Figures
from op_tools.device_parts import Made, Part
from op_tools.device_verdicts import Result, Right
from op_tools.device_waiting import Waiting, by_place, each

if TYPE_CHECKING:
    from op_tools.device_reference import DeviceReference

AT_ONCE = 256  # calls that are judged at once: Python's collector runs for what is alive


class Judge:
    """Of one run of the tool; what is not right, the host looks at, by its owner."""

    def __init__(self, owner: DeviceReference) -> None:
        self._owner = owner
        self._native: Any = None
        self._known = 0  # changes of what is accepted

    def settle(
        self, waiting: list[Waiting | Taken | Lists], passes: Iterator[Waiting], beside: bool
    ) -> None:
        """Judges calls and backward passes: each device is waited for once. Beside: by a thread
        of the tool's own, which works on the device that they are on.
        """
        lists = [entry for entry in waiting if isinstance(entry, Lists)]
        waited: set[torch.device] = set()
        entries = itertools.chain(each(waiting), passes)
        while portion := list(itertools.islice(entries, AT_ONCE)):
            for place, own in by_place(portion, lambda entry: entry.taken.again.place):
                _wait_for(place, waited, beside)
                self._judge(self._taken_apart(self._others(own, place)))
        for place, calls in by_place(lists, lambda entry: entry.flats[0].memory.device):
            _wait_for(place, waited, beside)
            self._owner.of_lists.judge(calls)

    # Natively.

    def is_native(self, place: torch.device) -> bool:
        """Whether most calls on a device are judged without Python."""
        return kernels.loaded() is not None and device_kernel.starter(place.type) is not None

    def _others(self, waiting: list[Waiting], place: torch.device) -> list[Waiting]:
        """Those that are not found right natively."""
        helper = kernels.loaded()
        if helper is None or not self.is_native(place):
            return waiting
        portion = helper.Portion(self._judge_of(helper))
        try:
            entered = [at for at, entry in enumerate(waiting) if _entered(portion, entry)]
            with host.no_autocast(place):
                portion.gradients()
            found = device_kernel.measured(portion.table(device_kernel.PIECE), place)
        except Exception:  # whatever a device may raise
            found = None
        if found is None:
            return waiting
        right = set(entered) - {entered[at] for at in portion.judge(found)}
        self._owner.found_right(portion)
        return [entry for at, entry in enumerate(waiting) if at not in right]

    def _judge_of(self, helper: Any) -> Any:
        accepted = self._owner.accepted
        if self._native is None:
            types = [_type_of(dtype) for dtype in device_kernel.KINDS]
            limits = device_verdicts.OUTLIER, calibrated.MANY, bulk.MANY
            self._native = helper.Judge(self._described, types, *limits)
        elif self._known != accepted.changes:
            self._native.forget()
        self._known = accepted.changes
        return self._native

    def _described(
        self, taken: Taken, forward: bool, place: int, mine: Tensor
    ) -> tuple[str, str, str, float, float]:
        """What lines on a part of a call that is right have in common, and the errors that were
        accepted of it.
        """
        label = "output" if forward else comparison.labels_of("grad", taken.call)[place]
        texts = comparison_report.texts(taken.call, not forward, label, mine.dtype, mine.shape)
        kind = comparison.kind_of(taken, forward, place, mine)
        return *texts, *self._owner.accepted.limits(kind)

    # By Python.

    def _judge(self, waiting: list[Waiting]) -> None:
        groups = [(*entry.same, *entry.guards) for entry in waiting]
        found = (part.near for entry in waiting for part in entry.parts)
        near = [pair for pair in found if pair is not None]
        try:
            some = [group for group in groups if group]
            made, differ = figures(near, some, device_figures.at_once(self._owner.allowed))
        except Exception:  # as above
            for entry in waiting:
                self._owner.on_host(entry)
            return
        of_near, flags = iter(made), iter(differ)
        for entry, group in zip(waiting, groups, strict=True):
            differs = bool(group) and next(flags)
            items = self._items(entry, of_near)
            if differs or items is None:
                self._owner.on_host(entry)
            else:
                self._owner.right(entry.taken.call, entry.found, items)

    def _taken_apart(self, waiting: list[Waiting]) -> list[Waiting]:
        """Those whose parts could be had; the host has seen the others."""
        passes = [(entry, entry.found) for entry in waiting if entry.found is not None]
        theirs: Sequence[list[Tensor | None] | None]
        try:
            runs = [(device_parts.reference_run(e.taken), found.outputs) for e, found in passes]
            with kernels.aside():
                theirs = gradients_of(runs)
        except Exception:  # as above; one of them, which is tried alone
            theirs = [None] * len(passes)
        own = iter(theirs)
        return [e for e in waiting if self._made(e, None if e.found is None else next(own))]

    def _made(self, entry: Waiting, own: list[Tensor | None] | None) -> bool:
        """Whether the parts of a call could be had, those of a backward pass with the gradients of
        its reference; else the host looks at it.
        """
        try:
            made = _parts(entry, own)
        except Exception:  # as above
            self._owner.refuse(entry)
            return False
        if made is None:
            self._owner.on_host(entry)
            return False
        entry.parts, entry.same = made
        return True

    def _items(self, entry: Waiting, made: Iterator[Figures]) -> list[Item | Right] | None:
        """The verdicts on a call; None where the host has to look. Takes all of its figures."""
        items: list[Item | Right] = []
        good = True
        if len(entry.parts) > bulk.MANY:
            return self._together(entry, made)
        for part in entry.parts:
            unit, mine = part.unit, part.mine
            if part.as_before is not None:
                items.append(Item(part.label, items[part.as_before].verdict))
            elif unit is None:
                items.append(Item(part.label, comparison.unchanged(mine)))
            else:
                found = next(made)
                rule = device_verdicts.one_step(mine.dtype, unit, found)  # hot path
                if not rule:
                    rule = device_verdicts.rule_of(
                        self._result(entry, part), found, self._owner.accepted
                    )
                    good = good and bool(rule)
                items.append(Right(part.label, mine.shape, mine.dtype, rule, found))
        return items if good else None

    def _together(self, entry: Waiting, made: Iterator[Figures]) -> list[Item | Right] | None:
        """One verdict on many tensors, that on the worst of them."""
        near = [(part, next(made)) for part in entry.parts if part.unit is not None]
        label = f"{entry.parts[0].label} to {entry.parts[-1].label}"
        if not near:
            return [Item(label, comparison.unchanged(entry.parts[0].mine))]
        results = ((self._result(entry, part), found) for part, found in near)
        worst = device_verdicts.worst_of(label, results, self._owner.accepted)
        return None if worst is None else [worst]

    def _result(self, entry: Waiting, part: Part) -> Result:
        kind = comparison.kind_of(entry.taken, entry.found is None, part.place, part.mine)
        return Result(part.mine.shape, part.mine.dtype, part.unit or part.mine.dtype, kind)


def _entered(portion: Any, entry: Waiting) -> bool:
    """Whether a call is one of those that are judged natively."""
    if entry.guards:
        return False
    if not entry.is_pass:
        return bool(portion.forward(entry.taken))
    if entry.flown is None:
        return False
    try:
        device_parts.reference_run(entry.taken)  # of a view there is none yet
    except Exception:  # no float64, no kernel, no memory: whatever a device may raise
        return False
    return bool(portion.backward(entry.taken, entry.flown))


def _type_of(dtype: torch.dtype) -> tuple[Tensor, tuple[int, ...], tuple[float, ...], bool]:
    """What the native judge knows of a type: its row of the table, and what is next to a value."""
    half = FORMATS[dtype].is_half
    bias = calibrated.BIAS if half else math.inf
    allowed = calibrated.STEPS[half], calibrated.RMS[half], bias
    one_step = dtype is torch.float32  # as `device_verdicts.one_step`
    return torch.empty(0, dtype=dtype), device_kernel.row_of(dtype), allowed, one_step


def _wait_for(place: torch.device, waited: set[torch.device], beside: bool) -> None:
    if beside:
        torch.accelerator.set_device_index(place.index)
    if place not in waited:
        torch.accelerator.synchronize(place)  # they may come from several of its streams
        waited.add(place)


def _parts(entry: Waiting, own: list[Tensor | None] | None) -> Made | None:
    """The parts of a call or of its backward pass; None for the gradients: not had yet."""
    taken, found = entry.taken, entry.found
    if found is None:
        return device_parts.forward(taken)
    if own is None:
        with kernels.aside():
            own = device_parts.reference_run(taken).gradients(found.outputs)
    return device_parts.backward(taken, found, own)
