"""The numbers of values on the host by a few reductions of torch's and numpy's: no native part."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from op_tools.statistics_numpy import ORDINARY, WIDE, Numbers, of_whole

Floats = NDArray[np.float32] | NDArray[np.float64]

PIECE = 1 << 18  # values that stay in the cache from the first reduction to the last
ROW = 1024  # values whose squares are summed as they are
NOTHING: Numbers = (None, None, None, None, 0)

_least, _greatest, _added, _dot = np.minimum.reduce, np.maximum.reduce, np.add.reduce, np.dot
_row_dots: Any = getattr(np, "vecdot", partial(np.einsum, "ij,ij->i"))  # numpy 1 has the latter
_ones = np.ones(ROW, np.float32)


def numbers(flat: Tensor) -> Numbers:
    """Of values that lie one after the other; over those that are finite, and how many are not."""
    if not flat.numel():
        return NOTHING
    if not flat.is_floating_point():
        return of_whole(flat)
    if flat.dtype not in WIDE:
        flat = flat.to(torch.float32)  # exact
    return of_floats(flat.numpy())


def of_floats(array: Floats) -> Numbers:
    """The same, of some float32 or float64. Hot path: a reduction of a small array is the call."""
    size = array.size
    if size <= PIECE:
        low, high, total, squares, finite = _of_piece(array)
    else:
        pieces = [_of_piece(array[start : start + PIECE]) for start in range(0, size, PIECE)]
        lows, highs, totals, of_squares, counts = zip(*pieces, strict=True)
        low, high, finite = min(lows), max(highs), sum(counts)
        total, squares = sum(totals), sum(of_squares)
    if not finite:
        return None, None, None, None, size
    return low, high, total / finite, math.sqrt(squares), size - finite


def _of_piece(piece: Floats) -> tuple[float, float, float, float, int]:
    """Min, max, sum, sum of squares, and how many are finite; without one, inf, -inf, 0, 0, 0."""
    # both tell of a NaN; one pass for the two of them (aminmax) takes longer
    low, high = float(_least(piece)), float(_greatest(piece))
    finite = piece.size
    if not (low > -math.inf and high < math.inf):
        low, high, piece, finite = _without_others(piece)
    greatest = high if high > -low else -low
    if greatest <= 0:  # all are zero, or there is none
        return low, high, 0.0, 0.0, finite
    if piece.dtype == np.float64 or not ORDINARY[0] < greatest < ORDINARY[1]:
        wide = piece.astype(np.float64, copy=False)
        return low, high, float(_added(wide)), float(_dot(wide, wide)), finite
    if piece.size <= ROW:
        total, squares = _dot(piece, _ones[: piece.size]), _dot(piece, piece)
        return low, high, float(total), float(squares), finite
    total = torch.from_numpy(piece).sum().item()  # numpy's own sum takes longer
    return low, high, total, _squares(piece), finite


def _squares(piece: Floats) -> float:
    """Of float32: each row is summed as it is, the rows in float64."""
    rows = piece.size // ROW * ROW
    whole = piece[:rows].reshape(-1, ROW)
    squares = float(_added(_row_dots(whole, whole), dtype=np.float64))
    if rows < piece.size:
        squares += float(_dot(piece[rows:], piece[rows:]))
    return squares


def _without_others(piece: Floats) -> tuple[float, float, Floats, int]:
    """Min and max of those that are finite, all with zeros in the place of the others, and how
    many are finite; quicker than to pick them.
    """
    tensor, memory = torch.from_numpy(piece), _local.memory(piece)
    low, high = (
        float(reduce(_in_place(tensor, value, memory)))
        for reduce, value in ((_least, math.inf), (_greatest, -math.inf))
    )
    finite = int(np.count_nonzero(np.isfinite(piece, out=_local.finite[: piece.size])))
    return low, high, _in_place(tensor, 0.0, memory), finite


def _in_place(tensor: Tensor, value: float, memory: Tensor) -> Floats:
    """With a value in the place of each that is not finite."""
    made: Floats = torch.nan_to_num(tensor, value, value, value, out=memory).numpy()
    return made


class _Local(threading.local):
    """Memory that stays a thread's own: the system clears what is new, which takes longer."""

    def __init__(self) -> None:
        self.finite = np.empty(PIECE, np.bool_)
        self._floats = torch.empty(PIECE, dtype=torch.float64)

    def memory(self, piece: Floats) -> Tensor:
        dtype = torch.float64 if piece.dtype == np.float64 else torch.float32
        return self._floats.view(dtype)[: piece.size]


_local = _Local()
