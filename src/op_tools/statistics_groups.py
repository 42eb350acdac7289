"""Tensors whose statistics a device was asked for at once, by a vendor's kernel or by torch's own:
see reducing.py, which gathers them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from op_tools import statistics_rows
from op_tools.statistics import NATIVE
from op_tools.statistics_device import Later, Reduced, flat_of
from op_tools.statistics_numpy import BLOCK
from op_tools.statistics_rows import FIELDS, Whole
from op_tools.vendor_kernels import Start

PIECE = 8 * BLOCK  # bytes
HASH_ONLY = 16
INTEGERS = NATIVE[torch.int64]  # their kinds begin with it

Values = tuple[int, int, int]  # how many bytes, of which kind, how many
Texts = dict[str, str]  # by number


def values_of(dense: Tensor) -> Values:
    """What a kernel needs to know of values but where they are."""
    count = dense.numel()
    return count * dense.element_size(), NATIVE[dense.dtype], count


# What stands for it, or its number; what holds its memory, and the address of what that holds;
# autograd's count of its writes (-1: nothing counts them); its address and values, and how often
# each is seen. No named one: to make it takes five times as long.
Waiting = tuple[Later | str, Tensor | torch.UntypedStorage, int, int, int, Values, int]


class Laid(NamedTuple):
    """Tensors as a kernel is to read them."""

    table: Whole
    lengths: Whole  # rows of the table for each tensor
    sizes: Whole
    counts: Whole
    floats: NDArray[np.bool_]


def laid_out(addresses: list[int], values: list[Values], hash_only: bool) -> Laid:
    """Values that lie one after the other, from these addresses on."""
    sizes, kinds, counts = np.array(values, np.int64).reshape(-1, 3).T
    given = kinds + HASH_ONLY if hash_only else kinds
    table, lengths = table_of(np.array(addresses, np.int64), sizes, given)
    return Laid(table, lengths, sizes, counts, kinds < INTEGERS)


def moved(laid: Laid, addresses: list[int], to: list[int]) -> Laid:
    """The same of values of the same kinds and sizes, elsewhere."""
    table = laid.table.copy()
    by = np.array(to, np.int64) - np.array(addresses, np.int64)
    table[:, 0] += np.repeat(by, laid.lengths)
    return laid._replace(table=table)


class Listed:
    """The texts of a list of tensors: with commas between, and with the number of each before."""

    __slots__ = ("_starts", "after", "inside", "texts")

    def __init__(self, starts: list[str]) -> None:
        self._starts = starts
        self.inside, self.after = Later(), Later()
        self.texts = [""] * len(starts)

    def fill(self) -> None:
        """When the text of each is there."""
        pairs = zip(self._starts, self.texts, strict=True)
        made = [f"{start}{text}}}" for start, text in pairs]
        self.inside.text = ",".join(made)
        self.after.text = ",".join([f'"{at}":{text}' for at, text in enumerate(made)])


class WaitingList(NamedTuple):
    listed: Listed
    holders: list[Tensor]
    addresses: list[int]
    versions: list[int]
    laid: Laid


class ReducedList:
    """A list by torch's own kernels."""

    def __init__(self, some: WaitingList, hash_only: bool) -> None:
        self.listed = some.listed
        flats = [flat_of(tensor)[0] for tensor in some.holders]
        self.each = [Reduced(flat, 1, hash_only, True) for flat in flats]

    def fill(self) -> None:
        """When those are read."""
        self.listed.texts = [one.later.text for one in self.each]
        self.listed.fill()


class Group:
    """What was started together."""

    def __init__(
        self,
        waiting: list[Waiting],
        lists: list[WaitingList],
        hash_only: bool,
        start: Start,
        device: torch.device,
    ) -> None:
        self.singles = [one[0] for one in waiting]
        self.lists = [one.listed for one in lists]
        parts = [one.laid for one in lists]
        if waiting:
            addresses, values = [one[4] for one in waiting], [one[5] for one in waiting]
            parts.insert(0, laid_out(addresses, values, hash_only))
        laid = parts[0]
        if len(parts) > 1:
            laid = Laid(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        self.laid = laid
        self.times = [one[6] for one in waiting]
        self._read = start(torch.from_numpy(laid.table), device) if len(laid.table) else None

    def told(self, texts: list[str], known: Texts) -> None:
        """The text of each."""
        for single, text in zip(self.singles, texts, strict=False):
            if type(single) is not str:
                single.text = text  # type: ignore[union-attr]
                single = single.number  # type: ignore[union-attr]
            known[single] = text
        at = len(self.singles)
        for one in self.lists:
            one.texts = texts[at : at + len(one.texts)]
            at += len(one.texts)
            one.fill()
            for mark in (one.inside, one.after):
                known[mark.number] = mark.text

    def rows(self) -> Whole:
        """What was found; waits for the device."""
        return np.empty((0, FIELDS), np.int64) if self._read is None else self._read().numpy()


def fill(groups: list[Group], hash_only: bool, known: Texts) -> None:
    """Puts their statistics into words; waits for the device."""
    if not groups:
        return
    rows = np.concatenate([group.rows() for group in groups])
    columns = zip(*(group.laid[1:] for group in groups), strict=True)
    lengths, sizes, counts, floats = (np.concatenate(column) for column in columns)
    found = statistics_rows.texts(rows, lengths, sizes, counts, floats, hash_only)
    lasts = np.cumsum(lengths)
    first = 0
    for group in groups:
        if max(group.times, default=1) > 1:  # seldom
            for at, times in enumerate(group.times, first):
                own, one = rows[lasts[at] - lengths[at] : lasts[at]], slice(at, at + 1)
                given = sizes[one], counts[one], floats[one], times
                found[at] = statistics_rows.repeated(own, *given, hash_only)
        group.told(found[first : first + len(group.laid.lengths)], known)
        first += len(group.laid.lengths)


def table_of(addresses: Whole, sizes: Whole, kinds: Whole) -> tuple[Whole, Whole]:
    """The rows of the table for values that lie one after the other; how many each tensor has."""
    pieces = -(-(sizes // 8 * 8) // PIECE)  # and what is behind the last whole word
    lengths = pieces + (sizes % 8 > 0)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    starts = (np.arange(len(firsts)) - firsts) * PIECE
    whole = np.repeat(sizes // 8 * 8, lengths)
    last = starts >= whole
    starts[last] = whole[last]
    table = np.empty((len(firsts), 3), np.int64)
    table[:, 0] = np.repeat(addresses, lengths) + starts
    table[:, 1] = np.where(last, np.repeat(sizes % 8, lengths), np.minimum(PIECE, whole - starts))
    table[:, 2] = np.repeat(kinds, lengths)
    return table, lengths


def pieces(flat: Tensor, hash_only: bool) -> list[tuple[int, int, int]]:
    """The same of one tensor."""
    kind = NATIVE[flat.dtype] + (HASH_ONLY if hash_only else 0)
    given = (flat.data_ptr(), flat.numel() * flat.element_size(), kind)
    table, _ = table_of(*(np.array([number], np.int64) for number in given))
    return [(address, size, kind) for address, size, kind in table.tolist()]


def flat_again(one: Waiting, device: torch.device) -> Tensor:
    """The values of one that waits."""
    _, holder, _, _, address, (_, number, count), _ = one
    memory = holder.untyped_storage() if isinstance(holder, Tensor) else holder
    dtype = next(dtype for dtype, kind in NATIVE.items() if kind == number)
    first = (address - memory.data_ptr()) // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=device).set_(memory, first, (count,), (1,))
