"""Every call against its device's own float64, where the host's would take a hundred times as long.

A result passes here when the device's float64 kernel, which is not the kernel that is judged, says
that it is next to the right value, or that it errs like results that the host accepted. Anything
else is looked at on the host, as are the first calls of each kind and a few of the others: no
accusation rests on the device alone, and a fault that both of its kernels share is seen by those.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.judge import Verdict
from deeplink.judge.calibrated import next_to
from deeplink.judge.formats import FORMATS
from deeplink.judge.verdict import name_of
from op_tools import (
    bulk,
    comparison,
    device_copies,
    device_parts,
    drawing,
    interception,
    memory,
    names,
    reference,
)
from op_tools.accepted import Accepted
from op_tools.again import gradients_of
from op_tools.call import Call, tensor_list
from op_tools.comparison import Item, Taken
from op_tools.device_figures import Figures, Near, figures
from op_tools.device_parts import Made, Pairs, Part
from op_tools.gradients import Gradients

FIRST = 2  # calls of a kind that the host looks at, and then every so many-th
EVERY = 512
MOVED = 256  # the same of kernels that only move values: both of the device's may err alike
WAITING = 1024  # parts of calls that wait for their verdict, and
WAITING_BYTES = 1 << 29
OUTLIER = 1.6  # times more that the largest error may be than what `Accepted` allows
UNKNOWN = 1 << 30  # bytes that may be held on a device that does not tell how many it has

# They compute nothing: only where a value comes from can be wrong, and that is alike in each type.
MOVERS = names.VIEWS | frozenset(
    """
    cat concat stack hstack vstack dstack gather take take_along_dim index_select __getitem__
    __setitem__ index index_put index_put_ masked_select masked_fill masked_fill_ masked_scatter
    scatter scatter_ embedding flip roll rot90 repeat tile where copy_ clone tril tril_ triu
    triu_ pad constant_pad_nd zero_ fill_ zeros_like ones_like full_like pixel_shuffle
    _foreach_copy_
    """.split()
)


@dataclass
class _Waiting:
    """A call, or its backward pass, that waits for a verdict."""

    taken: Taken
    found: Gradients | None
    parts: list[Part] = field(default_factory=list)
    same: Pairs = field(default_factory=list)
    guards: Pairs = field(default_factory=list)


Look = Callable[[Taken, Gradients | None, str], None]
Pass = Callable[[Taken, Gradients | None, list[Item]], None]


class DeviceReference:
    """The calls of one run of the tool that are held against their device.

    `look`: the whole rule, on the host; `passed`: what is right is written down.
    """

    def __init__(self, tool: Any, always: bool, accepted: Accepted, look: Look, passed: Pass):
        self._tool, self._always, self._accepted = tool, always, accepted
        self._look, self._passed = look, passed
        self.looks = self.passes = 0  # of the host, and of the device alone
        self._seen: Counter[Hashable] = Counter()
        self._refused: set[str] = set()
        self._tolerances: dict[tuple[str, torch.dtype], bool] = {}
        self._waiting: list[_Waiting] = []
        self._count = self._bytes = 0
        self._held, self._allowed, self._closed = 0, -1, False
        self._lock = threading.RLock()

    # Which calls.

    def fits(self, call: Call) -> bool:
        """Whether the device can judge a call of its own: by another kernel, in its memory."""
        device = call.device
        if device is None or not self.judges(device) or call.name in self._refused:
            return False
        word = names.last(call.name)
        if word in reference.BY_TYPE or word in names.TRANSFERS or word in reference.NOT_UNIQUE:
            return False
        size = 0
        widened = False
        for tensor in tensor_list(call.args, call.kwargs):
            if tensor.device != device and tensor.dim():
                return False
            if tensor.dtype in FORMATS:
                if tensor.is_complex() or tensor.dtype == torch.float64:
                    return False
                widened = True
            size += tensor.nbytes
        return widened and self._has_room(device, 4 * size)

    def judges(self, device: torch.device) -> bool:
        """Whether a device is asked at all."""
        if device.type in ("cpu", "meta"):
            return False
        return self._always or drawing.is_faster(device)

    def _by_tolerance(self, taken: Taken) -> bool:
        """Whether a tolerance was set for results of a call: then it decides, on the host."""
        operator = taken.call.operator
        types = {tensor.dtype for tensor in tensor_list(taken.call.args, taken.call.kwargs)}
        return any(self._tolerance(operator, dtype) for dtype in types)

    def _tolerance(self, operator: str, dtype: torch.dtype) -> bool:
        found = self._tolerances.get((operator, dtype))
        if found is None:
            found = settings.op_tolerance(operator, name_of(dtype)) is not None
            self._tolerances[operator, dtype] = found
        return found

    def _has_room(self, device: torch.device, size: int) -> bool:
        with self._lock:
            if self._allowed < 0:
                self._allowed = self._held + _free(device) // 2
            return self._held + size <= self._allowed

    def hold(self, taken: Taken) -> None:
        """Counts what is kept of a call, as long as it is."""
        given = tensor_list(taken.call.args, taken.call.kwargs, taken.result)
        size = sum(t.numel() * (8 + t.element_size()) for t in given)
        with self._lock:
            self._held += size
        weakref.finalize(taken, self._release, size)

    def _release(self, size: int) -> None:
        self._held -= size  # without the lock: it may be called at any point of a thread

    # What is taken of a call.

    def forward(self, taken: Taken, guards: Pairs) -> None:
        """A call that has been made, with copies on the device."""
        kept = [(memory.clone(), before) for memory, before in guards]
        entry = _Waiting(taken, None, guards=kept)
        if not self._is_for_host(entry):
            self._made(entry, lambda: device_parts.forward(taken))

    def backward(self, taken: Taken, found: Gradients) -> None:
        """Its backward pass; the reference's comes later, for many calls at once."""
        entry = _Waiting(taken, found)
        if not self._is_for_host(entry):
            self._wait(entry, [grad for grad in found.inputs if grad is not None])

    def _is_for_host(self, entry: _Waiting) -> bool:
        """Looks at a call on the host, where it is its turn or the device is not to judge it."""
        taken = entry.taken
        asked = taken.again.types is not reference.WIDE  # the reference is in another type
        number = self._number(taken, entry.found)
        moves = names.last(taken.call.name) in MOVERS
        due = number <= FIRST or number % (MOVED if moves else EVERY) == 0
        if not (asked or due or self._by_tolerance(taken)):
            return False
        self._on_host(entry, check=due and not asked)
        return True

    def _made(self, entry: _Waiting, make: Callable[[], Made | None]) -> bool:
        """Whether the parts of a call could be had; else the host looks at it."""
        try:
            made = make()
        except Exception:  # no float64, no kernel, no memory: whatever a device may raise
            with self._lock:
                self._refused.add(entry.taken.call.name)
            made = None
        if made is None:
            self._on_host(entry)
            return False
        entry.parts, entry.same = made
        if entry.found is None:
            self._wait(entry, [part.mine for part in entry.parts])
        return True

    def _wait(self, entry: _Waiting, tensors: list[Tensor]) -> None:
        with self._lock:
            self._waiting.append(entry)
            self._count += len(tensors)
            self._bytes += sum(tensor.nbytes for tensor in tensors)
            full = self._closed or self._count >= WAITING or self._bytes >= WAITING_BYTES
        if full:
            self.settle()

    def _number(self, taken: Taken, found: Gradients | None) -> int:
        """The how many-th of its kind a call is, or a backward pass."""
        with self._lock:
            kind = taken.kind, found is None
            self._seen[kind] += 1
            return self._seen[kind]

    def _on_host(self, entry: _Waiting, check: bool = False) -> None:
        taken, found = entry.taken, entry.found
        with self._lock:
            self.looks += 1
        overrun = memory.overrun(entry.guards)
        there, flown = device_copies.hosted(taken), device_copies.gradients_on_host(found)
        interception.guarded(self._tool, taken.call, self._look, there, flown, overrun)
        if check and there.run is not None and not _agree(taken, found, there, flown):
            with self._lock:
                self._refused.add(taken.call.name)

    # Verdicts.

    def close(self) -> None:
        """Judges all that wait, and from now on at once: a backward pass may come after the end."""
        self._closed = True
        self.settle()

    def settle(self) -> None:
        """Judges all that wait: each device is waited for once."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._count = self._bytes = 0
        places: dict[torch.device, list[_Waiting]] = {}
        for entry in waiting:
            places.setdefault(entry.taken.again.place, []).append(entry)
        for place, there in places.items():
            torch.accelerator.synchronize(place)  # they may come from several of its streams
            self._judge(self._differentiated(there))
        with self._lock:
            self._allowed = -1  # ask again
            self._tolerances.clear()

    def _judge(self, waiting: list[_Waiting]) -> None:
        groups = [entry.same + entry.guards for entry in waiting]
        near = [part.near for entry in waiting for part in entry.parts if part.near is not None]
        try:
            made, differ = figures(near, [group for group in groups if group])
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
                with self._lock:
                    self.passes += 1
                interception.guarded(
                    self._tool, entry.taken.call, self._passed, entry.taken, entry.found, items
                )

    def _differentiated(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Those whose parts are known, backward passes among them; the host has seen the others."""
        passes = [(entry, entry.found) for entry in waiting if entry.found is not None]
        try:
            runs = [(device_parts.reference_run(e.taken), found.outputs) for e, found in passes]
            theirs = gradients_of(runs)
        except Exception:  # as above; one of them, which is tried alone
            theirs = None
        failed = set()
        for at, (entry, found) in enumerate(passes):
            taken = entry.taken

            def make(taken: Taken = taken, found: Gradients = found, at: int = at) -> Made | None:
                own = theirs[at] if theirs is not None else None
                if own is None:
                    own = device_parts.reference_run(taken).gradients(found.outputs)
                return device_parts.backward(taken, found, own)

            if not self._made(entry, make):
                failed.add(id(entry))
        return [entry for entry in waiting if id(entry) not in failed]

    def _items(self, entry: _Waiting, made: Iterator[Figures]) -> list[Item] | None:
        """The verdicts on a call; None where the host has to look. Takes all of its figures."""
        items: list[Item] = []
        good = True
        if len(entry.parts) > bulk.MANY:
            return self._together(entry, made)
        for part in entry.parts:
            if part.as_before is not None:
                verdict: Verdict | None = items[part.as_before].verdict
            elif part.near is None:
                verdict = comparison.unchanged(part.mine)
            else:
                found = next(made)
                rule = self._rule(entry, part, part.near, found)
                verdict = _right(part, rule, found) if rule else None
            if verdict is None:
                good = False
                verdict = comparison.unchanged(part.mine)  # a place is needed
            items.append(Item(part.label, verdict))
        return items if good else None

    def _together(self, entry: _Waiting, made: Iterator[Figures]) -> list[Item] | None:
        """One verdict on many tensors, that on the worst of them."""
        worst, rule, found, good = entry.parts[0], "equal", Figures(), True
        for part in entry.parts:
            if part.near is None:
                continue
            own = next(made)
            how = self._rule(entry, part, part.near, own) if good else ""
            good = good and bool(how)
            if not own.relative <= found.relative:
                worst, rule, found = part, how, own
        label = f"{entry.parts[0].label} to {entry.parts[-1].label}"
        return [Item(label, _right(worst, rule, found))] if good else None

    def _rule(self, entry: _Waiting, part: Part, near: Near, found: Figures) -> str:
        """The rule by which a part is right; "" where the host has to look."""
        count, form = part.mine.numel(), FORMATS[near.unit]
        if next_to(count, found.steps, found.off, found.steps_squared, form):
            return "equal" if found.gap == 0.0 else "spacing"
        if not found.size > 0.0:
            return ""
        kind = comparison.kind_of(entry.taken, entry.found is None, part.place, part.mine)
        largest = found.largest / math.sqrt(found.size / count)
        mean = math.sqrt(found.squared / found.size)
        # the largest of many errors differs more from call to call than their mean
        return "as accepted before" if self._accepted.allows(kind, largest / OUTLIER, mean) else ""


def _right(part: Part, rule: str, found: Figures) -> Verdict:
    return Verdict(
        True,
        rule,
        "",
        name_of(part.mine.dtype),
        tuple(part.mine.shape),
        0,
        part.mine.numel(),
        max_abs=found.gap,
        max_rel=found.relative,
        cosine=found.cosine,
    )


def _free(device: torch.device) -> int:
    """Bytes that a device has left, with those that torch keeps for later."""
    module = getattr(torch, device.type, None)
    try:
        free = int(module.mem_get_info(device)[0])  # type: ignore[union-attr]
        kept = module.memory_reserved(device) - module.memory_allocated(device)  # type: ignore[union-attr]
        return free + int(kept)
    except Exception:  # another device's module may lack any of them, or refuse
        return UNKNOWN


def _agree(taken: Taken, found: Gradients | None, there: Taken, flown: Gradients | None) -> bool:
    """Whether the device's float64 is the host's: else it is no reference."""
    assert there.run is not None  # by the caller
    try:
        run = device_parts.reference_run(taken)
        mine: list[Tensor | None] = [*run.results]
        theirs: list[Tensor | None] = [*there.run.results]
        if found is not None and flown is not None:
            mine, theirs = run.gradients(found.outputs), there.run.gradients(flown.outputs)
        return drawing.agree([None if t is None else t.detach().cpu() for t in mine], theirs)
    except Exception:  # no float64, no kernel, no memory: whatever a device may raise
        return False
