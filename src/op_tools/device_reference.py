"""Every call against its device's own float64, where the host's would take a hundred times as long.

A result passes here when the device's float64 kernel, which is not the kernel that is judged, says
that it is next to the right value, or that it errs like results that the host accepted. Anything
else is looked at on the host, as are the first calls of each kind and a few of the others: no
accusation rests on the device alone, and a fault that both of its kernels share is seen by those.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _current_graph_task_id

from op_tools import (
    device_copies,
    device_kinds,
    device_parts,
    diagnostics,
    drawing,
    interception,
    memory,
    reference,
)
from op_tools.accepted import Accepted
from op_tools.background import Background
from op_tools.call import Call, tensor_list
from op_tools.comparison import Item, Taken
from op_tools.device_gradients import PART, Gathered
from op_tools.device_judge import Judge
from op_tools.device_kinds import Asked, Kind
from op_tools.device_list_reference import ListReference
from op_tools.device_lists import Lists
from op_tools.device_parts import Pairs
from op_tools.device_verdicts import Right
from op_tools.device_waiting import Waiting, place_of
from op_tools.gradients import Gradients

WAITING = 512  # parts of calls that wait for their verdict, and
WAITING_BYTES = 1 << 29


Look = Callable[[Taken, Gradients | None, str], None]
Pass = Callable[[Call, Gradients | None, Sequence[Item | Right]], None]
Skip = Callable[[Call, str], None]
Told = Callable[[Any], None]


class DeviceReference:
    """The calls of one run of the tool that are held against their device.

    `look`: the whole rule, on the host; `passed`: what is right is written down, and `told`: many
    calls at once, natively; `skip`: what cannot be compared is, with the reason.
    """

    def __init__(
        self,
        tool: Any,
        always: bool,
        accepted: Accepted,
        look: Look,
        passed: Pass,
        told: Told,
        skip: Skip,
    ) -> None:
        self._tool, self._always, self.accepted = tool, always, accepted
        self._look, self._passed, self._told, self._skip = look, passed, told, skip
        self.looks = self.passes = 0  # of the host, and of the device alone
        self._kinds: dict[Hashable, Kind] = {}
        self.refused: set[str] = set()
        self.asked = Asked()
        self._waiting: list[Waiting | Taken | Lists] = []
        self.of_lists = ListReference(self)
        self._count = self._bytes = 0
        self._held, self._released = 0, deque[int]()
        self.allowed, self._closed = -1, False
        self.lock = threading.RLock()
        self._judge = Judge(self)
        self._beside: Background | None = None
        self._settling: Background | None = None
        self.gradients = Gathered(tool, self._full)

    # Which calls.

    def fits(self, call: Call) -> bool:
        """Whether the device can judge a call of its own: by another kernel, in its memory."""
        device = call.device
        if device is None or not self.judges(device) or call.name in self.refused:
            return False
        if not device_kinds.is_judged(call.name):
            return False
        size = device_kinds.size_to_widen(call)
        return size >= 0 and self.has_room(device, 4 * size)

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

    @property
    def held(self) -> int:
        """Bytes that are kept of calls."""
        with self.lock:
            while self._released:
                self._held -= self._released.popleft()
            return self._held

    def hold(self, taken: Taken) -> None:
        """Counts what is kept of a call, as long as it is."""
        size = 0
        for t in [*taken.again.call.given, *tensor_list(taken.result)]:
            size += t.numel() * (8 + t.itemsize)
        self.keep(size)
        taken.held, taken.holder = size, self

    def keep(self, size: int) -> None:
        """So many bytes are kept from now on."""
        with self.lock:
            self._held += size

    def release(self, size: int) -> None:
        """No longer. Without the lock: it may be called at any point of a thread."""
        self._released.append(size)

    # What is taken of a call.

    def forward(self, taken: Taken, guards: Pairs) -> None:
        """A call that has been made, with copies on the device."""
        kept = [(memory.clone(), before) for memory, before in guards] if guards else ()
        entry = Waiting(taken, None, guards=kept)
        if not self._is_for_host(entry) and self._has_run(entry):
            # the less waits, the less often Python's collector runs: hot path
            result, after = taken.result, taken.after
            plain = type(result) is Tensor and not device_parts.any_read(taken)
            self.wait(entry if kept else taken, [result] if plain else tensor_list(result, after))

    def backward(self, taken: Taken, found: Gradients) -> None:
        """Its backward pass; the reference's comes later, for many calls at once."""
        entry = Waiting(taken, found)
        if not self._is_for_host(entry):
            self.wait(entry, [grad for grad in found.inputs if grad is not None])

    def _gathered(self, passes: Iterator[tuple[Taken, Any]]) -> Iterator[Waiting]:
        """The backward passes that were gathered natively, without those that the host sees."""
        for taken, flown in passes:
            entry = Waiting(taken, None, flown=flown)
            if not flown.complete:
                self._skip(taken.call, PART)
            elif not interception.guarded(self._tool, taken.call, self._is_for_host, entry):
                yield entry

    def _is_for_host(self, entry: Waiting) -> bool:
        """Looks at a call on the host, where it is its turn or the device is not to judge it."""
        taken = entry.taken
        asked = taken.again.types is not reference.WIDE  # the reference is in another type
        if taken.about is None:
            taken.about = self.kind(taken.kind, taken.call.name)
            taken.is_of(taken.about.key)
        about: Kind = taken.about
        number = about.next(not entry.is_pass)
        due = about.is_due(number)
        if not (asked or due or self.asked.by_tolerance(taken, about)):
            return False
        # the first looks say what is accepted of those that come next, which wait for that
        later = due and not asked and number > device_kinds.FIRST and taken.again.draws_nothing
        self.on_host(entry, check=due and not asked, later=later)
        return True

    def _has_run(self, entry: Waiting) -> bool:
        """Whether the reference of a call could be run; else the host looks at it."""
        try:
            device_parts.reference_run(entry.taken)
        except Exception:  # no float64, no kernel, no memory: whatever a device may raise
            self.refuse(entry)
            return False
        return True

    def refuse(self, entry: Waiting) -> None:
        """Its device is not asked about such calls any more."""
        with self.lock:
            self.refused.add(entry.taken.call.name)
        self.on_host(entry)

    def wait(self, entry: Waiting | Taken | Lists, tensors: list[Tensor]) -> None:
        """Has a call wait for its verdict; settles when too many do."""
        with self.lock:
            self._waiting.append(entry)
            self._count += len(tensors)
            for tensor in tensors:
                self._bytes += tensor.nbytes
            room, (size, count) = self._room(), self.gradients.waiting()
            full = self._closed or self._count + count >= WAITING or self._bytes + size >= room
        if full:
            # not in a backward pass, whose thread works for the one beside it
            beside = self._judge.is_native(place_of(entry)) and _current_graph_task_id() == -1
            self.settle(beside)

    def _room(self) -> int:
        return max(WAITING_BYTES, self.allowed // 8)

    def _full(self) -> None:
        with torch.no_grad():  # in a backward pass, which may have a graph of its own
            self.settle()

    def look(self, taken: Taken) -> None:
        """Looks at a call on the host."""
        self.on_host(Waiting(taken, None))

    def on_host(self, entry: Waiting, check: bool = False, later: bool = False) -> None:
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
        if self._settling is not None:
            self._settling.close()
        self.settle()
        self.gradients.close()
        self.of_lists.close()
        if self._beside is not None:
            self._beside.close()

    def settle(self, beside: bool = False) -> None:
        """Judges all that wait; beside: in a thread of its own, where Python has little to do."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
            self._count = self._bytes = 0
            passes = self._gathered(self.gradients.taken())
            if beside and self._settling is None and not self._closed:
                self._settling = Background(1)
            settling = self._settling if beside else None
        if settling is None:
            self._settle(waiting, passes, False)
        else:
            settling.put(partial(self._settle, waiting, passes, True))

    def _settle(
        self, waiting: list[Waiting | Taken | Lists], passes: Iterator[Waiting], beside: bool
    ) -> None:
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._judge.settle(waiting, passes, beside)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add(type(self._tool).__name__, "verdicts", error)
        with self.lock:
            self.allowed = -1  # ask again
            self.asked.forget()

    def found_right(self, portion: Any) -> None:
        """Calls that were found right natively."""
        with self.lock:
            self.passes += portion.calls + portion.passes
        try:
            self._told(portion)
        except Exception as error:  # as below
            diagnostics.add(type(self._tool).__name__, "verdicts", error)

    def right(self, call: Call, found: Gradients | None, items: Sequence[Item | Right]) -> None:
        """A call that its device found right."""
        with self.lock:
            self.passes += 1
        try:
            self._passed(call, found, items)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add(type(self._tool).__name__, call.name, error)
