"""Tensors whose memory the host does not see, in lines: marks stand for what is not read yet."""

from __future__ import annotations

import threading
from itertools import chain, islice
from weakref import ref

import torch
from torch import Tensor

from op_tools import reducing, statistics, statistics_device
from op_tools.reducing import Group, Together
from op_tools.snapshot import is_dense
from op_tools.statistics_device import MARK, Later, Reduced
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
        self._hash_only, self._hashed = hash_only, hashed
        self._together = Together(hash_only, counted)
        self._mentions = Mentions(self._together)
        self._refused: set[str] = set()  # kinds of devices that cannot
        self._waiting: list[Reduced] = []
        self._read: dict[str, Later] = {}  # a line may come long after what it waited for was read
        self._lock = threading.Lock()
        self.texts = self._mentions.texts

    def usable(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of them, and its device can reduce it."""
        return tensor.device.type not in self._refused and not statistics.is_seen(tensor)

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
        self._together.start()

    def before_lists(self) -> None:
        """Or this, where `forget` is called with all that were written, and before it is."""
        self._together.start()

    def before_write(self, tensors: list[Tensor]) -> None:
        """Or this, with those that are."""
        self._together.before_write(tensors)

    def forget(self, tensor: Tensor) -> None:
        """A call has written it."""
        self._mentions.forget(tensor)

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
        for later in (*chain(*(one.laters for one in groups)), *(one.later for one in waiting)):
            known[later.number] = later
        for number in list(islice(known, max(0, len(known) - KEPT))):
            del known[number]
        for group in groups:
            group.fill()
        statistics_device.read(waiting)

    def _filled(self, text: str) -> str:
        parts = text.split(MARK)  # each second one is a number
        known = self._read
        found = [known.get(number, _UNREAD).text for number in parts[1::2]]
        parts[1::2] = [NOT_READ if one[0] == MARK else one for one in found]
        return "".join(parts)


class _Layout:
    """What tensors are, apart from where."""

    __slots__ = ("count", "dense", "start", "usable")

    def __init__(self, tensor: Tensor, together: Together) -> None:
        plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
        self.usable = plain and not statistics.is_seen(tensor) and together.takes(tensor)
        self.dense = not tensor.is_complex() and is_dense(tensor)
        self.count = tensor.numel()
        self.start = start_of(tensor.dtype, tensor.shape)


# Of a tensor that was mentioned: it, autograd's count of its writes, its address and shape, the
# start of its text, its numbers, its memory.
_Known = tuple[ref[Tensor], int, int, torch.Size, str, Later, int]


class Mentions:
    """Tensors of which autograd's count of writes is up to date: one that is mentioned again as it
    was has the numbers of the first time. Any thread.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self._known: dict[int, _Known] = {}
        self._aliases: dict[int, list[int]] = {}  # of a storage: who of them has it
        self._places: dict[object, tuple[Later, int]] = {}  # of memory that is held: of who waits
        self._layouts: dict[object, _Layout] = {}
        self._starts = 0  # when those began to wait

    def texts(self, tensors: list[Tensor]) -> list[str | None]:
        """Their texts; None: not one of ours. RuntimeError: a tensor of an unusual kind. Hot path."""
        known = self._known
        found: list[str | None] = []
        complete = True
        for tensor in tensors:
            one = known.get(id(tensor))
            if (
                one is not None
                and one[0]() is tensor
                and one[1] == tensor._version
                and one[2] == tensor.data_ptr()
                and one[3] == tensor.shape
            ):
                found.append(f"{one[4]}{one[5].text}}}")
            else:
                found.append(None)
                complete = False
        if not complete:
            self._find(tensors, found)
        return found

    def _find(self, tensors: list[Tensor], found: list[str | None]) -> None:
        together, device = self._together, None
        if len(self._known) > MENTIONS:
            self.clear()
        with together.lock:
            for at, tensor in enumerate(tensors):
                if found[at] is None:
                    key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
                    layout = self._layouts.get(key)
                    if layout is None:
                        layout = self._new_layout(key, tensor)
                    if layout.usable and not together.refused:
                        if key[3] != device:
                            device = key[3]
                            together.enter(device)
                        found[at] = f"{layout.start}{self._later(tensor, layout).text}}}"

    def _new_layout(self, key: object, tensor: Tensor) -> _Layout:
        if len(self._layouts) >= LAYOUTS:
            self._layouts.clear()
        made = self._layouts[key] = _Layout(tensor, self._together)
        return made

    def _later(self, tensor: Tensor, layout: _Layout) -> Later:
        together = self._together
        if tensor.is_inference():
            return together.add(tensor)
        if together.starts != self._starts:
            self._places, self._starts = {}, together.starts
        version, address = tensor._version, tensor.data_ptr()
        dense = layout.dense and not tensor.is_neg()
        place = (address, tensor.dtype, layout.count, version) if dense else None
        later, memory = self._places.get(place, _NOWHERE)
        if later is None:
            storage = tensor.untyped_storage()
            memory = storage._cdata
            if place is None:
                later = together.add(tensor)
            else:
                together.hold(storage)
                later = together.put(
                    tensor.detach(), address, version, address, layout.count, place[1]
                )
                if together.starts != self._starts:  # there was no more room
                    self._places, self._starts = {}, together.starts
                self._places[place] = later, memory
        number = id(tensor)
        self._known[number] = (
            *(ref(tensor), version, address, tensor.shape),
            *(layout.start, later, memory),
        )
        self._aliases.setdefault(memory, []).append(number)
        return later

    def forget(self, tensor: Tensor) -> None:
        """A call has written it, and so every view of its memory."""
        if not self._known or tensor.layout != torch.strided or tensor.is_nested:
            return
        known = self._known.get(id(tensor))
        same = known is not None and known[0]() is tensor and known[2] == tensor.data_ptr()
        memory = known[6] if same and known else tensor.untyped_storage()._cdata
        for number in self._aliases.pop(memory, ()):
            self._known.pop(number, None)

    def clear(self) -> None:
        """Any may be written."""
        if self._known:
            self._known, self._aliases, self._places = {}, {}, {}


_MARK = MARK.encode()
_UNREAD = Later()
NOT_READ = '"skipped":"not read"'
_NOWHERE: tuple[Later | None, int] = (None, 0)
