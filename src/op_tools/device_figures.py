"""How far results on a device are from references beside them: many pairs by a few kernels, and
one copy to the host for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeplink.judge.calibrated import HALF
from deeplink.judge.formats import FORMATS, spacing
from op_tools import bulk, device_kernel
from op_tools.device_pairs import Figures, Measured, Near

ELEMENTS = 1 << 23  # that are worked on at once, with some hundred bytes for each;
MOST = 1 << 25  # more of them, where a device has so much memory
PIECE = 1 << 18  # that are reduced by one part of a device
JOINED = 1 << 28  # bytes of pairs that are looked at as one, with two copies of them
FIGURES = 10
ONE_STEP = 2.0**-23  # of a float32, relatively
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def at_once(free: int) -> int:
    """How many elements are worked on at once on a device with so many bytes left."""
    return max(ELEMENTS, min(MOST, free >> 10))


def figures(near: Sequence[Near], same: Groups, elements: int) -> Found:
    """The figures of each pair, and of each group of pairs whether it differs in a bit; works on so
    many elements at once, and waits for the device once.
    """
    by_kernel = _by_kernel(near)
    batches = list(_batches(near if by_kernel is None else (), elements))
    made = [
        _measure(near, batch, lengths)
        for batch, lengths in zip(batches, _lengths(near, batches), strict=True)
    ]
    flags = [_differ(group) for group in _joined(same)]
    found = [Figures() for _ in near] if by_kernel is None else list(by_kernel())
    if made or flags:
        values = iter(torch.cat([*made, *(flag.double().reshape(1) for flag in flags)]).tolist())
        for batch in batches:
            columns = [list(itertools.islice(values, len(batch))) for _ in range(FIGURES)]
            for (at, _, _), row in zip(batch, zip(*columns, strict=True), strict=True):
                found[at].add(row)
        differ = [bool(next(values)) for _ in flags]
        if len(differ) == len(same):
            return found, differ
        return found, [differ[0] and bool(_differ(group)) for group in same]
    return found, []


def _by_kernel(near: Sequence[Near]) -> Callable[[], Measured] | None:
    """By one kernel of the vendor's, without a copy; what it returns waits for it. None: by torch's
    kernels.
    """
    if not near or not all(device_kernel.reads(pair.mine) for pair in near):
        return None
    table = device_kernel.Table()
    table.add_all(near)
    return device_kernel.started(table, near[0].mine.device)


Found = tuple[list[Figures], list[bool]]
Groups = Sequence[Sequence[tuple[Tensor, Tensor]]]
_Piece = tuple[int, int, int]  # number of the pair, and its elements from here to there


def _batches(near: Sequence[Near], elements: int) -> Iterator[list[_Piece]]:
    """Pieces of pairs of one type that are measured together; none where a pair has no element."""
    kinds: dict[object, list[_Piece]] = {}
    for at, pair in enumerate(near):
        kind = pair.mine.device, pair.mine.dtype, pair.unit
        for begin in range(0, pair.mine.numel(), PIECE):
            piece = (at, begin, min(begin + PIECE, pair.mine.numel()))
            kinds.setdefault(kind, []).append(piece)
    for pieces in kinds.values():
        yield from _filled(pieces, elements)


def _filled(pieces: Sequence[_Piece], elements: int) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    count = 0
    for piece in pieces:
        count += piece[2] - piece[1]
        if count > elements and batch:
            yield batch
            batch, count = [], piece[2] - piece[1]
        batch.append(piece)
    if batch:
        yield batch


@dataclass(frozen=True)
class Cut:
    """A part of a flat tensor that is measured at once: its pieces, and whose they are."""

    begin: int
    end: int
    lengths: Tensor
    owners: list[int]


def cuts(sizes: Sequence[int], device: torch.device) -> Iterator[Cut]:
    """A flat tensor that is made of tensors of these sizes, cut into parts."""
    pieces = [
        (at, begin, min(begin + PIECE, size))
        for at, size in enumerate(sizes)
        for begin in range(0, size, PIECE)
    ]
    begin = 0
    for batch in _filled(pieces, ELEMENTS):
        lengths = [b - a for _, a, b in batch]
        end = begin + sum(lengths)
        yield Cut(begin, end, torch.tensor(lengths, device=device), [at for at, _, _ in batch])
        begin = end


def _lengths(near: Sequence[Near], batches: Sequence[list[_Piece]]) -> Sequence[Tensor]:
    """The lengths of the pieces of each batch, on the device, which takes them all at once."""
    if not batches:
        return []
    device = near[batches[0][0][0]].mine.device
    together = torch.tensor([b - a for batch in batches for _, a, b in batch], device=device)
    return list(together.split([len(batch) for batch in batches]))


def _measure(near: Sequence[Near], batch: Sequence[_Piece], lengths: Tensor) -> Tensor:
    whole: list[_Piece] = []
    for at, begin, end in batch:  # pieces of one pair follow each other
        if whole and whole[-1][0] == at:
            whole[-1] = (at, whole[-1][1], end)
        else:
            whole.append((at, begin, end))
    own = bulk.flattened([_cut(near[piece[0]].mine, piece) for piece in whole])
    r = bulk.flattened([_cut(near[piece[0]].theirs, piece) for piece in whole])
    return measured(own, r, near[batch[0][0]].unit, lengths)


def measured(own: Tensor, r: Tensor, unit: torch.dtype, lengths: Tensor) -> Tensor:
    """Five maxima and five sums of each piece of two flat tensors, one after the other."""
    form = FORMATS[unit]
    y = own.double()
    error = torch.where(y == r, 0.0, y - r)  # infinite alike is no error
    scaled = error / spacing(r, form)
    rounded = r.to(own.dtype).double()
    gap = torch.where(y == rounded, 0.0, y - rounded).abs_()
    off = (scaled.abs() > HALF).double() if form.is_half else torch.zeros_like(y)
    lengths = lengths.to(y.device)

    def each(values: Tensor, how: str) -> Tensor:
        # unsafe: it would wait for the device to see that the lengths are what they are
        return torch.segment_reduce(values, how, lengths=lengths, unsafe=True)

    beyond = torch.sub(gap, rounded.abs_(), alpha=ONE_STEP)
    maxima = (scaled.abs(), error.abs(), gap, gap / y.abs().add_(1e-6), beyond)
    sums = (scaled.square(), error.square(), r.square(), y.square(), off)
    found = [each(values, "max") for values in maxima] + [each(values, "sum") for values in sums]
    return torch.cat(found)


def _cut(tensor: Tensor, piece: _Piece) -> Tensor:
    _, begin, end = piece
    return tensor if end - begin == tensor.numel() else tensor.reshape(-1)[begin:end]


def _differ(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Whether some pair differs in a bit, as a tensor of one number."""
    sizes: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for pair in pairs:
        for side, tensor in zip(sizes.setdefault(_size(pair[0]), ([], [])), pair, strict=True):
            side.append(_bits(tensor))
    flags = [(torch.cat(a) != torch.cat(b)).any() for a, b in sizes.values()]
    return flags[0] if len(flags) == 1 else torch.stack(flags).any()


def _joined(same: Groups) -> Groups:
    """All groups as one, where they are small: in most cases none of them differs."""
    size = sum(tensor.nbytes for group in same for tensor, _ in group)
    if len(same) < 2 or size > JOINED:
        return same
    return [[pair for group in same for pair in group]]


def _size(tensor: Tensor) -> int:
    return tensor.element_size() // (2 if tensor.is_complex() else 1)


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().reshape(-1)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj()).reshape(-1)
    return tensor.view(_BITS[tensor.element_size()])
