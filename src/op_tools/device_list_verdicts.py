"""Verdicts on calls of lists that were held against float64 beside them."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

from op_tools import device_figures, device_kernel, device_verdicts
from op_tools.accepted import Accepted
from op_tools.device_figures import FIGURES, Cut
from op_tools.device_kernel import FlatRows
from op_tools.device_lists import Flat, Lists
from op_tools.device_pairs import Figures, Measured
from op_tools.device_verdicts import Result, Right


class Verdicts:
    """On many calls of lists: all is measured before the device is waited for."""

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._cuts: dict[Hashable, list[Cut]] = {}
        self._rows: dict[Hashable, FlatRows] = {}

    def items(self, calls: Sequence[Lists], elements: int) -> list[Right | None]:
        """The verdict on each call, that on its worst tensor; None where the host has to look.

        So many elements are measured at once.
        """
        flags = [_changed(c.flats[at], flat) for c in calls for at, flat in c.read.items()]
        each: Sequence[Measured | list[Figures]] | None = self._by_kernel(calls)
        if each is None:
            each = self._by_torch(calls, elements)
        values = iter(torch.cat(flags).tolist()) if flags else iter(())
        changed = [sum(next(values) for _ in lists.read) for lists in calls]
        rows = zip(calls, each, changed, strict=True)
        return [None if wrong else self._item(lists, mine) for lists, mine, wrong in rows]

    def _by_kernel(self, calls: Sequence[Lists]) -> list[Measured] | None:
        """Figures of each tensor of each call, by a kernel of the vendor's; None: it has none."""
        if not all(device_kernel.reads(_made(lists).memory) for lists in calls):
            return None
        table = device_kernel.Table()
        for lists in calls:
            mine = _made(lists)
            rows = self._rows.get(mine.key)
            if rows is None:
                sizes = [shape.numel() for shape in mine.shapes]
                rows = self._rows[mine.key] = FlatRows(sizes, lists.dtype, lists.dtype)
            table.add_flat(mine.memory, _right(lists).memory, rows)
        read = device_kernel.started(table, _made(calls[0]).memory.device)
        if read is None:
            return None
        found = read()
        ends = itertools.accumulate((len(_made(lists).shapes) for lists in calls), initial=0)
        return [found.part(begin, end) for begin, end in itertools.pairwise(ends)]

    def _by_torch(self, calls: Sequence[Lists], elements: int) -> list[list[Figures]]:
        cuts = [(at, cut) for at, lists in enumerate(calls) for cut in self._of(lists)]
        groups = list(_groups(calls, cuts, elements))
        found = [_measured(calls, group) for group in groups]
        values = iter(torch.cat(found).tolist()) if found else iter(())
        each = [[Figures() for _ in _made(lists).shapes] for lists in calls]
        for group in groups:  # hot path: one row for each piece
            owners = [each[at][owner] for at, cut in group for owner in cut.owners]
            columns = [list(itertools.islice(values, len(owners))) for _ in range(FIGURES)]
            for owner, row in zip(owners, zip(*columns, strict=True), strict=True):
                owner.add(row)
        return each

    def _item(self, lists: Lists, each: Measured | list[Figures]) -> Right | None:
        shapes = _made(lists).shapes
        results = (Result(shape, lists.dtype, lists.dtype, (lists.kind, True)) for shape in shapes)
        word = "input" if lists.in_place else "output"
        label = f"{word}[0] to {word}[{len(shapes) - 1}]"
        if isinstance(each, Measured) and lists.dtype is torch.float32:  # hot path
            at = each.worst_within()
            if at is not None:
                found = each.of(at)
                rule = device_verdicts.one_step(lists.dtype, lists.dtype, found)
                return Right(label, shapes[at], lists.dtype, rule, found)
        return device_verdicts.worst_of(label, zip(results, each, strict=True), self._accepted)

    def _of(self, lists: Lists) -> list[Cut]:
        flat = _made(lists)
        known = self._cuts.get(flat.key)
        if known is None:
            sizes = [shape.numel() for shape in flat.shapes]
            known = self._cuts[flat.key] = list(device_figures.cuts(sizes, flat.memory.device))
        return known


Group = list[tuple[int, Cut]]  # numbers of calls, and parts of them that are measured together


def _groups(calls: Sequence[Lists], cuts: Group, elements: int) -> Iterator[Group]:
    """Of one type each, and not too large."""
    group: Group = []
    count = 0
    for at, cut in cuts:
        count += cut.end - cut.begin
        if group and (count > elements or calls[at].dtype != calls[group[0][0]].dtype):
            yield group
            group, count = [], cut.end - cut.begin
        group.append((at, cut))
    if group:
        yield group


def _measured(calls: Sequence[Lists], group: Group) -> Tensor:
    made = [_made(calls[at]).memory[cut.begin : cut.end] for at, cut in group]
    right = [_right(calls[at]).memory[cut.begin : cut.end] for at, cut in group]
    dtype = calls[group[0][0]].dtype
    lengths = torch.cat([cut.lengths for _, cut in group])
    return device_figures.measured(torch.cat(made), torch.cat(right), dtype, lengths)


def _made(lists: Lists) -> Flat:
    assert lists.made is not None  # by `run`
    return lists.made


def _right(lists: Lists) -> Flat:
    assert lists.right is not None  # by `run`
    return lists.right


def _changed(was: Flat, now: Flat) -> Tensor:
    """Whether an argument differs in a bit from what it was, as a tensor of one number."""
    differs = was.memory.view(torch.int64) != now.memory.double().view(torch.int64)
    return differs.any().double().reshape(1)
