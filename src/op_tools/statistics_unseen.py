"""Tensors whose memory the host does not see, in lines: marks stand for what is not read yet."""

from __future__ import annotations

import threading
from itertools import chain, islice
from weakref import ref

import torch
from torch import Tensor

from op_tools import reducing, statistics, statistics_device
from op_tools.reducing import Group, ReducedList, Together, Values, values_of
from op_tools.snapshot import is_dense
from op_tools.statistics_device import MARK, Later, Reduced
from op_tools.statistics_lists import Known, Lists
from op_tools.statistics_text import start_of, written

KEPT = 20_000  # results that a line may still ask for
MENTIONS = 2 * reducing.WAITING  # that are known at most
LAYOUTS = 100_000

Numbers = str | Later  # in JSON, or where they will be


class Unseen:
    """A mark stands for their statistics in a line until it is written, and all that is waited for
    is read from the device at once.
    """

    def __init__(self, hash_only: bool, hashed: bool, counted: bool = False) -> None:
        self._hash_only, self._hashed, self._counted = hash_only, hashed, counted
        self._together = Together(hash_only, counted)
        self._mentions = Mentions(self._together)
        self._refused: set[str] = set()  # kinds of devices that cannot
        self._waiting: list[Reduced] = []
        self._read: dict[str, Later] = {}  # a line may come long after what it waited for was read
        self._lock = threading.Lock()
        self.texts = self._mentions.texts
        self.lists = Lists(self._together)

    def usable(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of them, and its device can reduce it."""
        return tensor.device.type not in self._refused and not statistics.is_seen(tensor)

    def gathers(self, tensor: Tensor) -> Together | None:
        """What reduces such tensors together with others; None: nothing does."""
        return self._together if self.usable(tensor) and self._together.takes(tensor) else None

    def later(self, tensor: Tensor, dense: bool = False) -> Numbers:
        """Where its statistics will be; they themselves, where its device cannot reduce it."""
        try:
            if self._together.takes(tensor):
                return self._together.add(tensor, dense)
            made = statistics_device.later(tensor, self._hash_only, self._hashed)
        except (RuntimeError, NotImplementedError):  # a kernel that the device lacks
            self._refused.add(tensor.device.type)
            host, times = statistics.hosted(tensor)
            found = statistics.measured(host, times, self._hash_only, self._hashed)
            return written(found, self._hash_only)
        with self._lock:
            self._waiting.append(made)
        return made.later

    def start(self) -> None:
        """To be called before one of the tensors may be written."""
        self._mentions.clear()
        if self._counted:
            self.lists.clear()
        self._together.start()

    def before_lists(self) -> None:
        """Or this, where `forget` is called with all that were written, and before it is."""
        self._together.start()

    def before_write(self, tensors: list[Tensor]) -> None:
        """Or this, with those that are."""
        self._together.before_write(tensors)

    def before_write_memory(self, memories: frozenset[int], device: torch.device) -> None:
        """Or this, with storages that are."""
        self._together.before_write_memory(memories, device)

    def forget(self, tensor: Tensor) -> None:
        """A call has written it."""
        memory = self._mentions.forget(tensor)
        if memory:
            self.lists.forget_one(memory)

    def forget_list(self, known: Known) -> None:
        """Or a list."""
        for memory in known.memories:
            self._mentions.forget_memory(memory)
        self.lists.forget(known.memories)

    def filled(self, data: bytes) -> bytes:
        """Lines with the statistics in the place of the marks."""
        self._ask()
        return self._filled(data.decode()).encode() if _MARK in data else data

    def _ask(self) -> None:
        """Reads all that is waited for."""
        self._together.start(all_over=True)
        with self._lock:
            waiting, self._waiting = self._waiting, []
        started = self._together.taken()
        known = self._read
        groups = [one for one in started if isinstance(one, Group)]
        waiting += [one for one in started if isinstance(one, Reduced)]
        laters = [one for one in started if isinstance(one, Later)]
        laters += [one.later for one in waiting]
        lists = [one for one in started if isinstance(one, ReducedList)]
        laters += [mark for one in lists for mark in (one.listed.inside, one.listed.after)]
        waiting += [each for one in lists for each in one.each]
        for later in chain(laters, *(one.laters for one in groups)):
            known[later.number] = later
        for number in list(islice(known, max(0, len(known) - KEPT))):
            del known[number]
        reducing.fill(groups, self._hash_only)
        statistics_device.read(waiting)
        for some in lists:
            some.fill()

    def _filled(self, text: str) -> str:
        parts = text.split(MARK)  # each second one is a number
        known = self._read
        found = [known.get(number, _UNREAD).text for number in parts[1::2]]
        parts[1::2] = [NOT_READ if one[0] == MARK else one for one in found]
        return "".join(parts)


class _Layout:
    """What tensors are, apart from where."""

    __slots__ = ("dense", "dtype", "start", "stride", "usable", "values")

    def __init__(self, tensor: Tensor, together: Together) -> None:
        plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
        self.usable = plain and not statistics.is_seen(tensor) and together.takes(tensor)
        self.dense = not (tensor.is_complex() or tensor.is_neg()) and is_dense(tensor)
        self.dtype, self.stride = tensor.dtype, tensor.stride()
        self.values = values_of(tensor) if self.usable and self.dense else _NO_VALUES
        self.start = start_of(tensor.dtype, tensor.shape)


class _Known:
    """A tensor that was mentioned, and its numbers while it is as it was."""

    __slots__ = (
        *("address", "bytes", "epoch", "later", "layout", "memory", "shape", "start"),
        *("tensor", "version"),
    )
    later: Later
    version: int

    def __init__(self, tensor: Tensor, layout: _Layout) -> None:
        storage = tensor.untyped_storage()
        self.tensor = ref(tensor)
        self.address, self.shape = tensor.data_ptr(), tensor.shape
        self.layout, self.start = layout, layout.start
        self.memory, self.bytes = storage._cdata, storage.nbytes()
        self.epoch = -1


class Mentions:
    """Tensors of which autograd's count of writes is up to date: one that is mentioned again as it
    was has the numbers of the first time. Any thread.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self._known: dict[int, _Known] = {}  # by identity
        self._epoch = 0  # before it anything may have been written
        self._aliases: dict[int, list[_Known]] = {}  # by storage, those of this epoch
        self._places: dict[object, Later] = {}  # of memory that is held
        self._layouts: dict[object, _Layout] = {}
        self._starts = 0  # when those began to wait

    def texts(self, tensors: list[Tensor]) -> list[str | None]:
        """Their texts; None: not one of ours. RuntimeError: a tensor of an unusual kind. Hot path."""
        find, epoch = self._known.get, self._epoch
        found: list[str | None] = []
        complete = True
        for tensor in tensors:
            one = find(id(tensor))
            if (
                one is not None
                and one.epoch == epoch
                and one.version == tensor._version
                and one.tensor() is tensor
                and one.address == tensor.data_ptr()
                and one.shape == tensor.shape
            ):
                found.append(f"{one.start}{one.later.text}}}")
            else:
                found.append(None)
                complete = False
        if not complete:
            self._find(tensors, found)
        return found

    def _find(self, tensors: list[Tensor], found: list[str | None]) -> None:
        together, device = self._together, None
        if len(self._known) > MENTIONS:
            self._sweep()
        if together.refused:
            return
        with together.lock:
            for at, tensor in enumerate(tensors):
                if found[at] is None:
                    one = self._known.get(id(tensor))
                    if one is None or not _is_same(one, tensor):
                        one = self._new(tensor)
                        if one is None:
                            continue
                    if tensor.device != device:
                        device = tensor.device
                        together.enter(device)
                    self._measure(one, tensor)
                    found[at] = f"{one.start}{one.later.text}}}"

    def _new(self, tensor: Tensor) -> _Known | None:
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_neg())
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(tensor, self._together)
        if not layout.usable or tensor.is_inference():
            return None
        made = self._known[id(tensor)] = _Known(tensor, layout)
        return made

    def _measure(self, one: _Known, tensor: Tensor) -> None:
        together, layout = self._together, one.layout
        version = one.version = tensor._version
        if layout.dense:
            together.make_room(one.bytes)
            if together.starts != self._starts:
                self._places, self._starts = {}, together.starts
            address = one.address
            place = (address, layout.dtype, layout.values, version)
            later = self._places.get(place)
            if later is None:
                later = together.put(tensor.detach(), address, version, address, layout.values)
                self._places[place] = later
        else:
            later = together.add(tensor)
        one.later = later
        if one.epoch != self._epoch:
            one.epoch = self._epoch
            self._aliases.setdefault(one.memory, []).append(one)

    def forget(self, tensor: Tensor) -> int:
        """A call has written it, and so every view of its memory, which it returns; 0: none."""
        if tensor.layout != torch.strided or tensor.is_nested:
            return 0
        one = self._known.get(id(tensor))
        same = one is not None and one.tensor() is tensor and one.address == tensor.data_ptr()
        memory = one.memory if same and one else tensor.untyped_storage()._cdata
        self.forget_memory(memory)
        return memory

    def forget_memory(self, memory: int) -> None:
        """The same."""
        for alias in self._aliases.pop(memory, ()):
            alias.epoch = -1

    def clear(self) -> None:
        """Any may be written."""
        if self._aliases:
            self._epoch += 1
            self._aliases, self._places = {}, {}

    def _sweep(self) -> None:
        live = {at: one for at, one in list(self._known.items()) if one.tensor() is not None}
        self._known = live if len(live) < MENTIONS // 2 else {}


def _is_same(one: _Known, tensor: Tensor) -> bool:
    """Whether what is known of a tensor but its values is still so: `.data` may be set."""
    return (
        one.tensor() is tensor
        and one.address == tensor.data_ptr()
        and one.shape == tensor.shape
        and one.layout.dtype == tensor.dtype
        and one.layout.stride == tensor.stride()
    )


_MARK = MARK.encode()
_UNREAD = Later()
_NO_VALUES: Values = (0, 0, 0)
NOT_READ = '"skipped":"not read"'
