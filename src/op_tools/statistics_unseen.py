"""Tensors whose memory the host does not see, in lines: marks stand for what is not read yet."""

from __future__ import annotations

import threading
from itertools import chain, islice

import torch
from torch import Tensor

from op_tools import statistics, statistics_device, statistics_groups
from op_tools.reducing import Together
from op_tools.snapshot import is_dense
from op_tools.statistics_device import MARK, Later, Reduced
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
        groups = [one for one in started if isinstance(one, Group)]
        waiting += [one for one in started if isinstance(one, Reduced)]
        laters = [one for one in started if isinstance(one, Later)]
        laters += [one.later for one in waiting]
        lists = [one for one in started if isinstance(one, ReducedList)]
        laters += [mark for one in lists for mark in (one.listed.inside, one.listed.after)]
        waiting += [each for one in lists for each in one.each]
        for later in chain(laters, *(one.laters for one in groups)):
            known[str(later.number)] = later
        for number in list(islice(known, max(0, len(known) - KEPT))):
            del known[number]
        statistics_groups.fill(groups, self._hash_only)
        statistics_device.read(waiting)
        for some in lists:
            some.fill()

    def _filled(self, text: str) -> str:
        parts = text.split(MARK)  # each second one is a number
        known = self._read
        found = [known.get(number, _UNREAD).text for number in parts[1::2]]
        parts[1::2] = [NOT_READ if one[0] == MARK else one for one in found]
        return "".join(parts)


class Mentions:
    """Tensors of which autograd's count of writes is up to date: one that is mentioned again as it
    was has the numbers of the first time. Any thread.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self._starts = 0  # since when memory is held, and an address is one tensor's
        self._known: dict[_Place, tuple[str, Later]] = {}  # of those without gaps
        self._same: dict[_Values, Later] = {}  # whatever their shapes are
        self._gaps: dict[object, tuple[Later, Tensor]] = {}  # of the others

    def texts(self, tensors: list[Tensor]) -> list[str | None]:
        """Their texts; None: not one of ours. Hot path. RuntimeError: one is of an unusual kind."""
        together = self._together
        if together.starts != self._starts:
            self.clear()
        found: list[str | None] = []
        known, entered = self._known, None
        with together.lock:
            for tensor in tensors:
                place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor._version
                dense = tensor.is_contiguous() and not tensor.is_neg()
                one = known.get(place) if dense else None
                if one is None:
                    if together.refused or not together.takes(tensor):
                        found.append(None)
                        continue
                    if tensor.device != entered:
                        entered = tensor.device
                        together.enter(entered)
                    one = self._new(tensor, place, dense)
                    known = self._known
                found.append(f"{one[0]}{one[1].text}}}")
        return found

    def _new(self, tensor: Tensor, place: _Place, dense: bool) -> tuple[str, Later]:
        together, (address, dtype, shape, version) = self._together, place
        start = start_of(dtype, shape)
        if not dense or dtype.is_complex:
            dense = not (dtype.is_complex or tensor.is_neg()) and is_dense(tensor)
            if not dense:
                return start, self._with_gaps(tensor, place)
        values = values_of(tensor)
        key = address, dtype, values[2], version
        later = self._same.get(key)
        if later is None:
            together.make_room(values[0])
            if together.starts != self._starts:
                self.clear()
            later = together.put(tensor.detach(), address, version, address, values)
            self._same[key] = later
        made = start, later
        if tensor.is_contiguous():
            self._known[place] = made
        return made

    def _with_gaps(self, tensor: Tensor, place: _Place) -> Later:
        """It is copied; so that it is once, its own memory is held too."""
        key = place, tensor.stride(), tensor.is_neg(), tensor.is_conj()
        found = self._gaps.get(key)
        if found is None:
            later = self._together.add(tensor)
            if self._together.starts != self._starts:
                self.clear()
            found = self._gaps[key] = later, tensor.detach()
        return found[0]

    def clear(self) -> None:
        """Any may be written, or may be another's memory."""
        self._starts = self._together.starts
        if self._same or self._gaps:
            self._known, self._same, self._gaps = {}, {}, {}


_Place = tuple[int, torch.dtype, torch.Size, int]
_Values = tuple[int, torch.dtype, int, int]
_MARK = MARK.encode()
_UNREAD = Later()
NOT_READ = '"skipped":"not read"'
