"""Calls on long lists of tensors, an optimizer's: which are held against their device's float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_tools import device_figures, device_lists, reference
from op_tools.call import Call
from op_tools.device_list_verdicts import Verdicts
from op_tools.device_lists import Flats, Lists

if TYPE_CHECKING:
    from op_tools.device_reference import DeviceReference


class ListReference:
    """Those of one run of the tool; what they share with other calls is their owner's."""

    def __init__(self, owner: DeviceReference) -> None:
        self._owner = owner
        self._flats, self._verdicts = Flats(), Verdicts(owner.accepted)

    def close(self) -> None:
        """Keeps no memory any more."""
        self._flats.close()

    def before(self, call: Call) -> Lists | None:
        """A call on long lists that is about to be made; None: it is taken as any other."""
        own = self._owner
        device = call.device
        if device is None or not device_lists.is_of_lists(call) or not own.judges(device):
            return None
        kind = own.kind(device_lists.kind_of(call), call.name)
        if call.name in own.refused or kind.is_due(kind.expected):
            return None
        found = device_lists.type_of(call)
        if found is None or own.asked.tolerance(call.operator, found):
            return None
        if reference.types_for(call) is not reference.WIDE:
            return None
        if not own.has_room(device, device_lists.size_of(call)):
            return None
        try:
            made = device_lists.taken_before(call, kind.key, found, self._flats)
        except Exception:  # no float64, no memory: whatever a device may raise
            own.refused.add(call.name)
            return None
        kind.next(True)
        return made

    def after(self, lists: Lists, result: Any, reread: bool) -> None:
        """The same after it was made."""
        own = self._owner
        device_lists.taken_after(lists, result, self._flats, reread)
        try:
            fits = device_lists.run(lists, self._flats)
        except Exception:  # no float64, no kernel, no memory: whatever a device may raise
            fits = False
            with own.lock:
                own.refused.add(lists.record.name)
        if fits:
            memory = [flat.memory for flat in lists.held()]
            own.keep(sum(part.nbytes for part in memory))
            own.wait(lists, memory)
        else:
            own.look(device_lists.taken_of(lists, own.accepted))

    def judge(self, waiting: list[Lists]) -> None:
        """Verdicts on calls that wait, whose device has been waited for."""
        own = self._owner
        self._flats.allow(own.allowed // 8)
        try:
            made = self._verdicts.items(waiting, device_figures.at_once(own.allowed))
        except Exception:  # whatever a device may raise
            made = [None for _ in waiting]
        for lists, item in zip(waiting, made, strict=True):
            if item is None:
                own.look(device_lists.taken_of(lists, own.accepted))
            else:
                own.right(lists.record, None, [item])
            for flat in lists.held():
                own.release(flat.memory.nbytes)
                self._flats.give(flat)
