"""Tensors whose memory the host does not see, in lines: marks stand for what is not read yet."""

from __future__ import annotations

import threading
from itertools import chain, islice

import torch
from torch import Tensor

from op_tools import statistics, statistics_device, statistics_groups
from op_tools.reducing import Together
from op_tools.snapshot import is_dense
from op_tools.statistics import NATIVE
from op_tools.statistics_device import MARK, Later, Reduced, new_number
from op_tools.statistics_groups import Group, ReducedList, values_of
from op_tools.statistics_lists import Lists
from op_tools.statistics_text import start_of, written

KEPT = 20_000  # results that a line may still ask for

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
        self._read: dict[str, str] = {}  # a line may come long after what it waited for was read
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

    def before_list(self) -> None:
        """Or this, where it is a list that is known; it is told of it afterwards."""
        self._mentions.clear()
        self._together.start()

    def before_write(self, tensors: list[Tensor]) -> None:
        """Or this, with those that are."""
        self._together.before_write(tensors)

    def before_write_memory(self, memories: frozenset[int], device: torch.device) -> None:
        """Or this, with storages that are."""
        self._together.before_write_memory(memories, device)

    def forget_all(self) -> None:
        """Any may be written unseen."""
        self._together.before_any_write()
        self._mentions.clear()
        self.lists.clear()

    def forget(self, tensor: Tensor) -> None:
        """A call has written it."""
        self.lists.forget(tensor)

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
        for mark, why in (one for one in started if isinstance(one, tuple)):
            if isinstance(mark, Later):
                mark.text, mark = why, mark.number
            known[mark] = why
        waiting += [one for one in started if isinstance(one, Reduced)]
        lists = [one for one in started if isinstance(one, ReducedList)]
        groups = [one for one in started if isinstance(one, Group)]
        statistics_groups.fill(groups, self._hash_only, known)
        statistics_device.read([*waiting, *(each for one in lists for each in one.each)])
        for some in lists:
            some.fill()
        laters = [mark for one in lists for mark in (one.listed.inside, one.listed.after)]
        for later in chain(laters, (one.later for one in waiting)):
            known[later.number] = later.text
        for number in list(islice(known, max(0, len(known) - KEPT))):
            del known[number]

    def _filled(self, text: str) -> str:
        parts = text.split(MARK)  # each second one is a number
        known = self._read
        parts[1::2] = [known.get(number, NOT_READ) for number in parts[1::2]]
        return "".join(parts)


class _Layout:
    """Of tensors: what they are, apart from where and from their values."""

    __slots__ = ("dense", "fits", "number", "same", "start", "values")

    def __init__(self, tensor: Tensor, number: int, places: dict[object, int]) -> None:
        plain = not (tensor.is_complex() or tensor.is_neg())
        self.number = number
        self.fits = tensor.dtype in NATIVE or tensor.is_complex()
        self.dense = plain and self.fits and (tensor.is_contiguous() or is_dense(tensor))
        self.start = start_of(tensor.dtype, tensor.shape)
        self.values = values_of(tensor) if self.dense else (0, 0, 0)
        same = self.values if self.dense else _in_memory(tensor)
        self.same = number if same is None else places.setdefault((tensor.dtype, same), number)


def _in_memory(tensor: Tensor) -> object:
    """What views of the same values with gaps have in common, in whatever order their dimensions
    are; None: it is not certain in which order the values would be read.
    """
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    steps = sorted(pair for pair in pairs if pair[1] != 1)
    strides = [stride for stride, _ in steps if stride]
    if len(set(strides)) < len(strides):
        return None
    return tuple(steps), tensor.is_neg(), tensor.is_conj()


class Mentions:
    """Tensors of which autograd's count of writes is up to date: one that is mentioned again as it
    was has the numbers of the first time. Any thread.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self._starts = 0  # since when memory is held, and an address is one tensor's
        self._layouts: dict[object, _Layout] = {}
        self._places: dict[object, int] = {}
        # by address, layout and count of writes, as one number: see `new_number`
        self._known: dict[int, str] = {}
        self._same: dict[int, str] = {}  # whatever their shapes are
        self._held: list[Tensor] = []  # of those with gaps

    def texts(self, tensors: list[Tensor]) -> list[str | None]:
        """Their texts; None: not one of ours. Hot path. RuntimeError: one is of an unusual kind."""
        together = self._together
        if together.starts != self._starts:
            self.clear()
        found: list[str | None] = []
        known, layouts, entered = self._known, self._layouts, None
        with together.lock:
            for tensor in tensors:
                if tensor.is_contiguous() and not tensor.is_neg():
                    kind: object = (tensor.dtype, tensor.shape)
                else:
                    more = tensor.is_neg(), tensor.is_conj()
                    kind = (tensor.dtype, tensor.shape, tensor.stride(), more)
                layout = layouts.get(kind)
                if layout is None:
                    layout = self._laid_out(kind, tensor)
                    known = self._known
                address = tensor.data_ptr()
                place = (address << 24 | layout.number) << 32 | tensor._version
                text = known.get(place)
                if text is None:
                    if together.refused or not layout.fits or not together.takes(tensor):
                        found.append(None)
                        continue
                    if tensor.device != entered:
                        entered = tensor.device
                        together.enter(entered)
                    text = self._new(tensor, address, layout)
                    known = self._known
                    known[place] = text
                found.append(text)
        return found

    def _laid_out(self, kind: object, tensor: Tensor) -> _Layout:
        if len(self._layouts) >= LAYOUTS:
            self._layouts.clear()
            self._places.clear()
            self._known, self._same = {}, {}
        layout = self._layouts[kind] = _Layout(tensor, len(self._layouts), self._places)
        return layout

    def _new(self, tensor: Tensor, address: int, layout: _Layout) -> str:
        place = (address << 24 | layout.same) << 32 | tensor._version
        number = self._same.get(place)
        if number is None:
            number = self._put(tensor, address, layout) if layout.dense else self._copied(tensor)
            self._same[place] = number
        return f"{layout.start}{MARK}{number}{MARK}}}"

    def _put(self, tensor: Tensor, address: int, layout: _Layout) -> str:
        together = self._together
        together.make_room(layout.values[0])
        if together.starts != self._starts:
            self.clear()
        number, version = new_number(), tensor._version
        together.put((number, tensor.detach(), address, version, address, layout.values, 1))
        return number

    def _copied(self, tensor: Tensor) -> str:
        """Of one with gaps, the values; so that they are once, its own memory is held too."""
        later = self._together.add(tensor)
        if self._together.starts != self._starts:
            self.clear()
        self._held.append(tensor.detach())
        return later.number

    def clear(self) -> None:
        """Any may be written, or may be another's memory."""
        self._starts = self._together.starts
        if self._known or self._same:
            self._known, self._same, self._held = {}, {}, []


LAYOUTS = 1 << 16  # that are known at most, of 1 << 24
_MARK = MARK.encode()
NOT_READ = '"skipped":"not read"'
