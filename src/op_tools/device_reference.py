"""Every call against its device's own float64, where the host's would take a hundred times as long.

A result passes here when the device's float64 kernel, which is not the kernel that is judged, says
that it is next to the right value, or that it errs like results that the host accepted. Anything
else is looked at on the host, as are the first calls of each kind and a few of the others: no
accusation rests on the device alone, and a fault that both of its kernels share is seen by those.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from deeplink.judge.formats import FORMATS
from op_tools import (
    bulk,
    comparison,
    device_copies,
    device_figures,
    device_kinds,
    device_parts,
    device_verdicts,
    diagnostics,
    drawing,
    interception,
    memory,
    reference,
)
from op_tools.accepted import Accepted
from op_tools.again import gradients_of
from op_tools.background import Background
from op_tools.call import Call, tensor_list
from op_tools.comparison import Item, Taken
from op_tools.device_figures import figures
from op_tools.device_gradients import PART, Gathered
from op_tools.device_kinds import Asked, Kind
from op_tools.device_list_reference import ListReference
from op_tools.device_lists import Lists
from op_tools.device_pairs import Figures
from op_tools.device_parts import Made, Pairs, Part
from op_tools.device_verdicts import Result, Right
from op_tools.gradients import Gradients

WAITING = 1024  # parts of calls that wait for their verdict, and
WAITING_BYTES = 1 << 29
AT_ONCE = 256  # calls that are judged at once: Python's collector runs for what is alive


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call, or its backward pass, that waits for a verdict."""

    taken: Taken
    found: Gradients | None
    parts: Sequence[Part] = ()
    same: Pairs = ()
    guards: Pairs = ()


_T = TypeVar("_T")
Look = Callable[[Taken, Gradients | None, str], None]
Pass = Callable[[Call, Gradients | None, Sequence[Item | Right]], None]
Skip = Callable[[Call, str], None]


class DeviceReference:
    """The calls of one run of the tool that are held against their device.

    `look`: the whole rule, on the host; `passed`: what is right is written down; `skip`: what
    cannot be compared is, with the reason.
    """

    def __init__(
        self, tool: Any, always: bool, accepted: Accepted, look: Look, passed: Pass, skip: Skip
    ) -> None:
        self._tool, self._always, self.accepted = tool, always, accepted
        self._look, self._passed, self._skip = look, passed, skip
        self.looks = self.passes = 0  # of the host, and of the device alone
        self._kinds: dict[Hashable, Kind] = {}
        self.refused: set[str] = set()
        self.asked = Asked()
        self._waiting: list[_Waiting | Taken | Lists] = []
        self.of_lists = ListReference(self)
        self._count = self._bytes = 0
        self.held, self.allowed, self._closed = 0, -1, False
        self.lock = threading.RLock()
        self._beside: Background | None = None
        self.gradients = Gathered(tool, self._full)

    # Which calls.

    def fits(self, call: Call) -> bool:
        """Whether the device can judge a call of its own: by another kernel, in its memory."""
        device = call.device
        if device is None or not self.judges(device) or call.name in self.refused:
            return False
        if not device_kinds.is_judged(call.name):
            return False
        size = 0
        widened = False
        for tensor in call.given:
            if tensor.device != device and tensor.dim():
                return False
            if tensor.dtype in FORMATS:
                if tensor.is_complex() or tensor.dtype == torch.float64:
                    return False
                widened = True
            size += tensor.nbytes
        return widened and self.has_room(device, 4 * size)

    def judges(self, device: torch.device) -> bool:
        """Whether a device is asked at all."""
        if device.type in ("cpu", "meta"):
            return False
        return self._always or drawing.is_faster(device)

    def kind(self, key: Hashable, name: str) -> Kind:
        """What is known of a kind of calls, from now on."""
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds.setdefault(key, Kind(key, name))
        return found

    def has_room(self, device: torch.device, size: int) -> bool:
        with self.lock:
            if self.allowed < 0:
                self.allowed = self.held + memory.free_on(device) // 2
                self.gradients.limit(self._room(), WAITING)
            return self.held + size <= self.allowed

    def hold(self, taken: Taken) -> None:
        """Counts what is kept of a call, as long as it is."""
        size = 0
        for t in [*taken.again.call.given, *tensor_list(taken.result)]:
            size += t.numel() * (8 + t.itemsize)
        with self.lock:
            self.held += size
        taken.held, taken.holder = size, self

    def release(self, size: int) -> None:
        """No longer."""
        self.held -= size  # without the lock: it may be called at any point of a thread

    # What is taken of a call.

    def forward(self, taken: Taken, guards: Pairs) -> None:
        """A call that has been made, with copies on the device."""
        kept = [(memory.clone(), before) for memory, before in guards] if guards else ()
        entry = _Waiting(taken, None, guards=kept)
        if not self._is_for_host(entry) and self._has_run(entry):
            # the less waits, the less often Python's collector runs: hot path
            self.wait(entry if kept else taken, tensor_list(taken.result, taken.after))

    def backward(self, taken: Taken, found: Gradients) -> None:
        """Its backward pass; the reference's comes later, for many calls at once."""
        entry = _Waiting(taken, found)
        if not self._is_for_host(entry):
            self.wait(entry, [grad for grad in found.inputs if grad is not None])

    def _gathered(self, passes: Iterator[tuple[Taken, Gradients]]) -> Iterator[_Waiting]:
        """The backward passes that were gathered natively, without those that the host sees."""
        for taken, found in passes:
            entry = _Waiting(taken, found)
            if not found.complete:
                self._skip(taken.call, PART)
            elif not interception.guarded(self._tool, taken.call, self._is_for_host, entry):
                yield entry

    def _is_for_host(self, entry: _Waiting) -> bool:
        """Looks at a call on the host, where it is its turn or the device is not to judge it."""
        taken = entry.taken
        asked = taken.again.types is not reference.WIDE  # the reference is in another type
        if taken.about is None:
            taken.about = self.kind(taken.kind, taken.call.name)
            taken.is_of(taken.about.key)
        about: Kind = taken.about
        number = about.next(entry.found is None)
        due = about.is_due(number)
        if not (asked or due or self.asked.by_tolerance(taken, about)):
            return False
        # the first looks say what is accepted of those that come next, which wait for that
        later = due and not asked and number > device_kinds.FIRST and taken.again.draws_nothing
        self._on_host(entry, check=due and not asked, later=later)
        return True

    def _has_run(self, entry: _Waiting) -> bool:
        """Whether the reference of a call could be run; else the host looks at it."""
        try:
            device_parts.reference_run(entry.taken)
        except Exception:  # no float64, no kernel, no memory: whatever a device may raise
            self._refused(entry)
            return False
        return True

    def _made(self, entry: _Waiting, own: list[Tensor | None] | None) -> bool:
        """Whether the parts of a call could be had, those of a backward pass with the gradients of
        its reference; else the host looks at it.
        """
        try:
            made = _parts(entry, own)
        except Exception:  # as above
            self._refused(entry)
            return False
        if made is None:
            self._on_host(entry)
            return False
        entry.parts, entry.same = made
        return True

    def _refused(self, entry: _Waiting) -> None:
        with self.lock:
            self.refused.add(entry.taken.call.name)
        self._on_host(entry)

    def wait(self, entry: _Waiting | Taken | Lists, tensors: list[Tensor]) -> None:
        """Has a call wait for its verdict; settles when too many do."""
        with self.lock:
            self._waiting.append(entry)
            self._count += len(tensors)
            for tensor in tensors:
                self._bytes += tensor.nbytes
            room, (size, count) = self._room(), self.gradients.waiting()
            full = self._closed or self._count + count >= WAITING or self._bytes + size >= room
        if full:
            self.settle()

    def _room(self) -> int:
        return max(WAITING_BYTES, self.allowed // 8)

    def _full(self) -> None:
        with torch.no_grad():  # in a backward pass, which may have a graph of its own
            self.settle()

    def look(self, taken: Taken) -> None:
        """Looks at a call on the host."""
        self._on_host(_Waiting(taken, None))

    def _on_host(self, entry: _Waiting, check: bool = False, later: bool = False) -> None:
        """Looks at a call on the host; later: in a thread of its own."""
        taken, found = entry.taken, entry.found
        with self.lock:
            self.looks += 1
            if later and self._beside is None and not self._closed:
                self._beside = Background()
            beside = self._beside if later else None
        overrun = memory.overrun(entry.guards)
        there, flown = device_copies.hosted(taken), device_copies.gradients_on_host(taken, found)

        def look() -> None:
            interception.guarded(self._tool, taken.call, self._look, there, flown, overrun)
            agree = not check or there.run is None
            if not (agree or device_parts.agree(taken, found, there, flown)):
                with self.lock:
                    self.refused.add(taken.call.name)

        if beside is None:
            look()
        else:
            beside.put(look)

    # Verdicts.

    def close(self) -> None:
        """Judges all that wait, and from now on at once: a backward pass may come after the end."""
        self._closed = True
        self.settle()
        self.gradients.close()
        self.of_lists.close()
        if self._beside is not None:
            self._beside.close()

    def settle(self) -> None:
        """Judges all that wait: each device is waited for once."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
            self._count = self._bytes = 0
            passes = self._gathered(self.gradients.taken())
        lists = [entry for entry in waiting if isinstance(entry, Lists)]
        waited: set[torch.device] = set()
        entries = itertools.chain(_each(waiting), passes)
        while portion := list(itertools.islice(entries, AT_ONCE)):
            for place, own in _by_place(portion, lambda entry: entry.taken.again.place):
                _wait_for(place, waited)
                self._judge(self._taken_apart(own))
        for place, calls in _by_place(lists, lambda entry: entry.flats[0].memory.device):
            _wait_for(place, waited)
            self.of_lists.judge(calls)
        with self.lock:
            self.allowed = -1  # ask again
            self.asked.forget()

    def _judge(self, waiting: list[_Waiting]) -> None:
        groups = [(*entry.same, *entry.guards) for entry in waiting]
        found = (part.near for entry in waiting for part in entry.parts)
        near = [pair for pair in found if pair is not None]
        try:
            some = [group for group in groups if group]
            made, differ = figures(near, some, device_figures.at_once(self.allowed))
        except Exception:  # as above
            for entry in waiting:
                self._on_host(entry)
            return
        of_near, flags = iter(made), iter(differ)
        for entry, group in zip(waiting, groups, strict=True):
            differs = bool(group) and next(flags)
            items = self._items(entry, of_near)
            if differs or items is None:
                self._on_host(entry)
            else:
                self.right(entry.taken.call, entry.found, items)

    def right(self, call: Call, found: Gradients | None, items: Sequence[Item | Right]) -> None:
        """A call that its device found right."""
        with self.lock:
            self.passes += 1
        try:
            self._passed(call, found, items)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add(type(self._tool).__name__, call.name, error)

    def _taken_apart(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Those whose parts could be had; the host has seen the others."""
        passes = [(entry, entry.found) for entry in waiting if entry.found is not None]
        theirs: Sequence[list[Tensor | None] | None]
        try:
            runs = [(device_parts.reference_run(e.taken), found.outputs) for e, found in passes]
            theirs = gradients_of(runs)
        except Exception:  # as above; one of them, which is tried alone
            theirs = [None] * len(passes)
        own = iter(theirs)
        return [e for e in waiting if self._made(e, None if e.found is None else next(own))]

    def _items(self, entry: _Waiting, made: Iterator[Figures]) -> list[Item | Right] | None:
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
                    rule = device_verdicts.rule_of(self._result(entry, part), found, self.accepted)
                    good = good and bool(rule)
                items.append(Right(part.label, mine.shape, mine.dtype, rule, found))
        return items if good else None

    def _together(self, entry: _Waiting, made: Iterator[Figures]) -> list[Item | Right] | None:
        """One verdict on many tensors, that on the worst of them."""
        near = [(part, next(made)) for part in entry.parts if part.unit is not None]
        label = f"{entry.parts[0].label} to {entry.parts[-1].label}"
        if not near:
            return [Item(label, comparison.unchanged(entry.parts[0].mine))]
        results = ((self._result(entry, part), found) for part, found in near)
        worst = device_verdicts.worst_of(label, results, self.accepted)
        return None if worst is None else [worst]

    def _result(self, entry: _Waiting, part: Part) -> Result:
        kind = comparison.kind_of(entry.taken, entry.found is None, part.place, part.mine)
        return Result(part.mine.shape, part.mine.dtype, part.unit or part.mine.dtype, kind)


def _each(waiting: list[_Waiting | Taken | Lists]) -> Iterator[_Waiting]:
    """Those that are no lists, one by one: what has been judged is held no longer."""
    waiting.reverse()
    while waiting:
        entry = waiting.pop()
        if not isinstance(entry, Lists):
            yield _Waiting(entry, None) if isinstance(entry, Taken) else entry


def _by_place(
    entries: Sequence[_T], place: Callable[[_T], torch.device]
) -> Iterator[tuple[torch.device, list[_T]]]:
    found: dict[torch.device, list[_T]] = {}
    for entry in entries:
        found.setdefault(place(entry), []).append(entry)
    return iter(found.items())


def _wait_for(place: torch.device, waited: set[torch.device]) -> None:
    if place not in waited:
        torch.accelerator.synchronize(place)  # they may come from several of its streams
        waited.add(place)


def _parts(entry: _Waiting, own: list[Tensor | None] | None) -> Made | None:
    """The parts of a call or of its backward pass; None for the gradients: not had yet."""
    taken, found = entry.taken, entry.found
    if found is None:
        return device_parts.forward(taken)
    if own is None:
        own = device_parts.reference_run(taken).gradients(found.outputs)
    return device_parts.backward(taken, found, own)
