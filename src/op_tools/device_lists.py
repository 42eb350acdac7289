"""Calls on long lists of tensors, an optimizer's: held against float64 beside them as one.

A list lies here in one piece of memory, with a view in the place of each of its tensors; both are
used again, so that a step makes none. What is copied is copied into float64 at once: no value of a
narrower type is changed by that.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deeplink.judge.formats import FORMATS
from op_tools import bulk, device_copies, kernels, names
from op_tools.accepted import Accepted
from op_tools.again import again_of
from op_tools.call import Call
from op_tools.comparison import Taken

KEPT = 1 << 31  # bytes of memory that wait for the next calls
_NUMBERS = (int, float, list, tuple, type(None))
Shapes = tuple[torch.Size, ...]


@dataclass
class Flat:
    """Tensors of one type, one after the other in one piece of memory."""

    memory: Tensor
    views: list[Tensor]
    shapes: Shapes
    alike: Hashable  # the same for all of the same shapes

    @property
    def key(self) -> Hashable:
        return self.alike, self.memory.dtype, self.memory.device


class Flats:
    """Pieces of memory that are used again: given back after their device was waited for."""

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Flat]] = {}
        self._kept, self._room = 0, KEPT
        self._lock = threading.Lock()  # they are given back by another thread

    def allow(self, room: int) -> None:
        """So many bytes may be kept from now on, where that is more; what is over it goes."""
        with self._lock:
            if self._room:
                self._room = max(KEPT, room)
                if self._kept > self._room:
                    self._free, self._kept = {}, 0

    def close(self) -> None:
        """Keeps nothing any more."""
        with self._lock:
            self._free, self._kept, self._room = {}, 0, 0

    def take(
        self,
        tensors: Sequence[Tensor],
        dtype: torch.dtype,
        device: torch.device,
        alike: Hashable = None,
    ) -> Flat:
        """Memory for tensors of these shapes; `alike`: `bulk.alike_of` them, where it is known."""
        alike = bulk.alike_of(tensors) if alike is None else alike
        with self._lock:
            free = self._free.get((alike, dtype, device))
            if free:
                self._kept -= free[-1].memory.nbytes
                return free.pop()
        shapes = tuple([tensor.shape for tensor in tensors])
        sizes = [shape.numel() for shape in shapes]
        memory = torch.empty(sum(sizes), dtype=dtype, device=device)
        # not split(): its pieces share a count of writes
        pieces = zip(memory.unsafe_split_with_sizes(sizes), shapes, strict=True)
        return Flat(memory, [piece.view(shape) for piece, shape in pieces], shapes, alike)

    def copy(self, tensors: Any, dtype: torch.dtype, device: torch.device) -> Flat:
        flat = self.take(tensors, dtype, device)
        torch._foreach_copy_(flat.views, tensors)
        return flat

    def give(self, flat: Flat) -> None:
        with self._lock:
            if self._kept + flat.memory.nbytes <= self._room:
                self._kept += flat.memory.nbytes
                self._free.setdefault(flat.key, []).append(flat)


@dataclass
class Lists:
    """One call: its lists as they were before it, and what it made."""

    record: Call  # without arguments
    kind: Hashable
    args: list[Any]  # with a Flat of float64 in the place of each list of tensors
    kwargs: dict[str, Any]
    dtype: torch.dtype
    flats: list[Flat]
    own: list[Any]  # the program's lists that these are of, while the call is made
    versions: list[list[int]]
    in_place: bool
    result: Any = None  # the device's own
    made: Flat | None = None  # what the device wrote or returned, copied
    read: dict[int, Flat] = field(default_factory=dict)  # arguments that were read again
    right: Flat | None = None  # in float64

    def held(self) -> list[Flat]:
        """All of its memory."""
        more = (flat for flat in (self.right, self.made) if flat is not None)
        return [*self.flats, *self.read.values(), *more]


def is_of_lists(call: Call) -> bool:
    """Whether a call is one of torch's functions on lists, of a long one."""
    if call.level != "api" or not call.name.startswith("torch._foreach_") or not call.args:
        return False
    first = call.args[0]
    return type(first) in (list, tuple) and len(first) >= bulk.MANY


def kind_of(call: Call) -> Hashable:
    """What calls have in common whose errors are alike: `Taken.kind`."""
    return call.name, bulk.alike_of(call.given), None, None


def taken_before(call: Call, kind: Hashable, dtype: torch.dtype, flats: Flats) -> Lists:
    """Copies of a call's lists, which are of this type."""
    own = _lists(call)
    device = call.args[0][0].device
    versions = [[tensor._version for tensor in tensors] for tensors in own.values()]
    made = {at: flats.copy(some, torch.float64, device) for at, some in own.items()}
    return Lists(
        call.given_others((), {}),
        kind,
        [made.get(id(value), value) for value in call.args],
        {name: made.get(id(value), value) for name, value in call.kwargs.items()},
        dtype,
        [*made.values()],
        [*own.values()],
        versions,
        _writes(call),
    )


def size_of(call: Call) -> int:
    """Bytes that will be held of it: each list in float64, one more, and what was read again."""
    count: int = sum(tensor.numel() for tensor in call.args[0])
    return 12 * count * (len(_lists(call)) + 1)


def _writes(call: Call) -> bool:
    return names.last(call.name).endswith("_")


def _lists(call: Call) -> dict[int, Any]:
    """The lists of tensors among the arguments, by identity."""
    given = (*call.args, *call.kwargs.values())
    lists = (value for value in given if type(value) in (list, tuple) and value)
    return {id(value): value for value in lists if isinstance(value[0], Tensor)}


def type_of(call: Call) -> torch.dtype | None:
    """The floating type of all its tensors, where it is given nothing but lists of them and
    numbers, and nobody may want their gradients; else None.
    """
    if not all(isinstance(value, _NUMBERS) for value in (*call.args, *call.kwargs.values())):
        return None
    lists = [*_lists(call).values()]
    helper = kernels.loaded()
    look = _alike if helper is None else helper.alike
    # leaves are written where no graph is made
    if not lists or not look(lists, _writes(call)):
        return None
    if _writes(call) and _overlap(lists):
        return None
    dtype, device = lists[0][0].dtype, lists[0][0].device
    if device != call.device or dtype not in FORMATS or dtype.is_complex:
        return None
    return None if dtype == torch.float64 else dtype


def _overlap(lists: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a tensor of the first list begins where another tensor of any list begins."""
    begins = [tensor.data_ptr() for tensor in lists[0] if tensor.numel()]
    written = set(begins)
    if len(written) < len(begins):
        return True
    return any(tensor.data_ptr() in written for some in lists[1:] for tensor in some)


def _alike(lists: Sequence[Sequence[Tensor]], leaves: bool) -> bool:
    """Whether tensors are of one type, on one device and plain, none twice in its list, and none
    is in a graph but leaves, where those may be.
    """
    kinds = {(t.dtype, t.device, t.layout, t.is_inference()) for some in lists for t in some}
    if len(kinds) != 1 or not {(torch.strided, False)} >= {kind[2:] for kind in kinds}:
        return False
    if any(len({id(t) for t in some}) < len(some) for some in lists):
        return False  # one that would be written twice
    return not any(t.requires_grad and not (leaves and t.is_leaf) for some in lists for t in some)


def taken_after(lists: Lists, result: Any, flats: Flats, reread: bool) -> None:
    """Copies of what the device made."""
    device = lists.flats[0].memory.device
    for at, tensors in enumerate(lists.own):
        if at == 0 and lists.in_place:
            continue
        if reread or [t._version for t in tensors] != lists.versions[at]:
            lists.read[at] = flats.copy(tensors, lists.dtype, device)
    mine = lists.own[0] if lists.in_place else result
    lists.own, lists.versions = [], []
    if lists.in_place or _is_like(result, lists):
        lists.made = flats.copy(mine, lists.dtype, device)
        lists.result = None if result is None else lists.made.views
    else:
        lists.result = device_copies.copies_of((result,)).of(result)


def _is_like(result: Any, lists: Lists) -> bool:
    """Whether a call returned a list of tensors of the type that it was given."""
    if not isinstance(result, (list, tuple)) or not all(isinstance(t, Tensor) for t in result):
        return False
    return {(t.dtype, t.layout) for t in result} == {(lists.dtype, torch.strided)}


def run(lists: Lists, flats: Flats) -> bool:
    """The call in float64, on the device; False where it made something else than the device."""
    made = lists.made
    if made is None:
        return False
    args = [_views(value) for value in lists.args]
    kwargs = {name: _views(value) for name, value in lists.kwargs.items()}
    lists.right = flats.take(made.views, torch.float64, made.memory.device, made.alike)
    if lists.in_place:
        lists.right.memory.copy_(lists.flats[0].memory)
        args[0] = lists.right.views
        lists.record.func(*args, **kwargs)
        return True
    right = lists.record.func(*args, **kwargs)
    if [t.shape for t in right] != [*made.shapes]:
        return False
    torch._foreach_copy_(lists.right.views, right)
    return True


def _views(value: Any) -> Any:
    return value.views if isinstance(value, Flat) else value


def taken_of(lists: Lists, accepted: Accepted) -> Taken:
    """The same as any other call that was taken on its device: for the host."""
    device = lists.flats[0].memory.device
    own = {id(flat): [view.to(lists.dtype) for view in flat.views] for flat in lists.flats}
    args = tuple([own.get(id(value), value) for value in lists.args])
    kwargs = {name: own.get(id(value), value) for name, value in lists.kwargs.items()}
    call = lists.record.given_others(args, kwargs)
    again = again_of(call, frozenset(), lists.in_place, None, [lists.dtype])
    again.draws_nothing, again.place = True, device
    now = {id(lists.flats[at]): flat.views for at, flat in lists.read.items()}
    if lists.in_place and lists.made is not None:
        now[id(lists.flats[0])] = lists.made.views
    after: list[Tensor | None] = []
    for value in (*lists.args, *lists.kwargs.values()):
        if isinstance(value, Flat):
            after += now.get(id(value)) or [None] * len(value.views)
    return Taken(again, lists.result, after, False, str(device), accepted=accepted)
