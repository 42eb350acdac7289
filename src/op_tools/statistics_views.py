"""What is written of tensors where every kernel is seen, kept until one writes their memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from op_tools.reducing import Together
from op_tools.snapshot import is_dense
from op_tools.statistics_device import Later
from op_tools.statistics_groups import values_of
from op_tools.statistics_text import start_of

# So many pieces of memory, or tensors, later those that were freed are forgotten: each run of
# Python's collector looks at them until then.
SWEEP = 1024
LAYOUTS = 100_000  # that are known at most
NUMBERS = 1 << 40  # of layouts: more than there will be
WEAK = "weak"

Numbers = str | Later  # in JSON, or where they will be
# Of one storage: a weak reference to it (no other has its address meanwhile), the texts of its
# views, the numbers of its places. No tuples: what Python's collector has to look at costs more.
Memory = dict[int | str, int | str | Later]

Gathers = Callable[[Tensor], Together | None]

_free: Callable[[Any], None] = torch.UntypedStorage._free_weak_ref
_expired: Callable[[Any], Any] = torch.UntypedStorage._expired


class _Layout:
    """Of views: what they are, apart from where."""

    __slots__ = (
        *("dense", "device", "kept", "number", "place"),
        *("shape", "start", "together", "values"),
    )

    def __init__(
        self, tensor: Tensor, number: int, places: dict[object, int], gathers: Gathers
    ) -> None:
        if tensor.is_quantized:
            raise NotImplementedError("a quantized tensor")
        plain = not (tensor.is_complex() or tensor.is_neg())
        self.number = number
        self.device = tensor.device
        self.kept = plain and tensor.numel() > 0
        self.dense = plain and (tensor.is_contiguous() or is_dense(tensor))
        same = (tensor.dtype, tensor.numel(), tensor.device) if self.dense else number
        self.place = places.setdefault(same, number)  # of all views of the same values
        self.shape = tensor.shape
        self.start = start_of(tensor.dtype, tensor.shape)
        self.together = gathers(tensor) if self.dense else None
        self.values = (0, 0, 0) if self.together is None else values_of(tensor)


class _Mention(ref[Tensor]):
    """A tensor that was mentioned, and its text while its memory is not written. One object, not
    two: see SWEEP.
    """

    __slots__ = ("address", "first", "last", "layout", "made", "memory")

    address: int
    first: int  # autograd's count of writes, from and to
    last: int
    layout: _Layout
    made: Numbers
    memory: Memory


class Views:
    """The texts of tensors; `measured` gives the numbers of one, and is told whether its values
    lie one after the other, as they are; `gathers` tells what reduces such tensors together. Any
    thread.
    """

    def __init__(self, measured: Callable[[Tensor, bool], Numbers], gathers: Gathers) -> None:
        self._measured, self._gathers = measured, gathers
        self._known: dict[int, Memory] = {}
        self._mentions: dict[int, _Mention] = {}
        self._layouts: dict[object, _Layout] = {}
        self._places: dict[object, int] = {}
        self._numbers = itertools.count()
        self._sweep_at = self._mentions_at = SWEEP

    def text(self, tensor: Tensor, fresh: bool = False) -> str:
        """Hot path. `fresh`: autograd may be about to count the write that has made it.

        RuntimeError: it has no plain memory, or nothing counts its writes.
        """
        one = self._mentions.get(id(tensor))
        if (
            one is not None
            and WEAK in one.memory  # else it was written
            and one.first <= tensor._version <= one.last
            and one() is tensor
            and one.address == tensor.data_ptr()
            and one.layout.shape == tensor.shape
        ):
            made = one.made
            return made if type(made) is str else f"{one.layout.start}{made.text}}}"  # type: ignore[union-attr]
        return self._found(tensor, fresh)

    def _found(self, tensor: Tensor, fresh: bool) -> str:
        storage = tensor.untyped_storage()
        memory = self._known.get(storage._cdata)
        if memory is None:
            memory = self._new(storage)
        kind = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_neg(), tensor.device)
        layout = self._layouts.get(kind)
        if layout is None:
            number = next(self._numbers)
            layout = _Layout(tensor, number, self._places, self._gathers)
            self._layouts[kind] = layout
        at = (int(tensor.storage_offset()) << 32 | tensor._version) * NUMBERS
        made = memory.get(at + layout.number)
        if made is None:
            made = self._made(memory, layout, at, tensor, storage, fresh)
        if layout.kept:
            if len(self._mentions) > self._mentions_at:
                self._sweep()
            one = _Mention(tensor)
            one.memory, one.layout, one.made = memory, layout, made  # type: ignore[assignment]
            one.address, one.first = tensor.data_ptr(), tensor._version
            one.last = one.first + fresh
            self._mentions[id(tensor)] = one
        if type(made) is str:
            return made
        return f"{layout.start}{made.text}}}"  # type: ignore[union-attr]

    def _made(
        self,
        memory: Memory,
        layout: _Layout,
        at: int,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        fresh: bool,
    ) -> Numbers:
        numbers = memory.get(~(at + layout.place)) if layout.kept else None
        if numbers is None:
            together = layout.together
            if together is not None and not together.refused:
                address = tensor.data_ptr()
                numbers = together.add_storage(layout.device, storage, address, layout.values)
            else:
                numbers = self._measured(tensor, layout.dense)
        made = f"{layout.start}{numbers}}}" if type(numbers) is str else numbers
        if layout.kept:
            for place in (at, at + NUMBERS) if fresh else (at,):
                memory[place + layout.number] = made
                memory[~(place + layout.place)] = numbers
        return made  # type: ignore[return-value]

    def _new(self, storage: torch.UntypedStorage) -> Memory:
        if len(self._known) > self._sweep_at:
            self._sweep()
        weak: Any = storage._weak_ref()
        made: Memory = {WEAK: weak}
        kept = self._known.setdefault(storage._cdata, made)
        if kept is not made:  # another thread was first
            _free(made[WEAK])
        return kept

    def _sweep(self) -> None:
        for at, memory in list(self._known.items()):
            if _expired(memory[WEAK]):
                self._drop(at)
        self._sweep_at = len(self._known) + SWEEP
        mentions = list(self._mentions.items())
        self._mentions = {at: one for at, one in mentions if one() is not None}
        self._mentions_at = len(self._mentions) + SWEEP
        if len(self._layouts) > LAYOUTS:
            self._layouts, self._places = {}, {}

    def _drop(self, at: int) -> None:
        memory = self._known.pop(at, None)
        if memory is not None:
            weak = memory[WEAK]
            memory.clear()  # what is known by it is not any more
            _free(weak)

    def forget(self, tensor: Tensor) -> None:
        """A call has written it, and so every view of its memory; autograd may count that only
        later, or (where a list is written) not at all.
        """
        if tensor.layout == torch.strided and not tensor.is_nested:
            self._drop(tensor.untyped_storage()._cdata)

    def forget_memories(self, memories: Iterable[int]) -> None:
        """The same of storages. Hot path: of an optimizer's list."""
        known = self._known
        for at in memories:
            if at in known:
                self._drop(at)

    def forget_all(self) -> None:
        """Any may be written unseen."""
        for at in list(self._known):
            self._drop(at)

    __del__ = forget_all
