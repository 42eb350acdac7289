"""Tensors that are reduced together, where the device's vendor gives a kernel for it.

The vendor's module (`Vendor.statistics`) has one function, `start(table, device)`, which reduces
pieces of the device's memory in its current stream and waits for nothing; a RuntimeError says that
it cannot. The table is an int64 tensor on the host with a row for each piece: its address, its
size in bytes, and the kind of its values (the table in statistics.py; 16 more: the hash alone). A
piece is at most a block of the hash. What `start` returns waits, and gives int64 on the host, a
row for each piece: the two sums of the hash (a last part of a word is filled up with zeros), min,
max, sum, sum of squares, how many are finite, how many are NaN. The third to the sixth are the bits
of float64, but min and max of integers are whole; without a finite value they mean nothing.

It may have `launcher(index)` besides, for the native part: the addresses of what launches a kernel
and of what tells whether a stream is being captured, as cuLaunchKernel and cuStreamIsCapturing, and
between them the kernel and its threads. The kernel is given the table and the results, both in the
host's page-locked memory, and writes the last number of a row after all others. A fifth may say
whether it reads values with gaps: 32 more in the kind, and from its ninth bit on the number of the
piece's first value. The address is then that of 18 numbers in the host's memory: the address of the
first of all values, how many dimensions there are, and size and stride of each, in values, the
innermost first.
"""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deeplink import vendor
from op_tools.tensors import snapshot
from op_tools.tensors.statistics import NATIVE
from op_tools.tensors.statistics_reference import BLOCK
from op_tools.tensors.vendor_kernels import Start, offered

FIELDS = 8  # of a row of the results
PIECE = 8 * BLOCK  # bytes
HASH_ONLY = 16

Whole = NDArray[np.int64]


@cache
def starter(kind: str) -> Start | None:
    """What the vendor of a kind of device gives; None: nothing."""
    return offered(kind, "statistics", _try)


Launcher = tuple[int, int, int, int] | tuple[int, int, int, int, bool]


@cache
def launcher(kind: str, index: int) -> Launcher | None:
    """What starts the same kernel without Python; None: nothing does."""
    if starter(kind) is None:
        return None
    module = importlib.import_module(vendor.module_for(kind, "statistics"))
    if not hasattr(module, "launcher"):
        return None
    found: Launcher = module.launcher(index)
    return found


def _try(start: Start, one: Tensor) -> None:
    """Raises what it raises, such as that it has no compiler."""
    table = torch.tensor(pieces(one, False), dtype=torch.int64)
    if start(table, one.device)().shape != (1, FIELDS):
        raise RuntimeError("its results are of another shape")


# The table.


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
    """The rows of one tensor."""
    kind = NATIVE[flat.dtype] + (HASH_ONLY if hash_only else 0)
    given = (flat.data_ptr(), flat.numel() * flat.element_size(), kind)
    table, _ = table_of(*(np.array([number], np.int64) for number in given))
    return [(address, size, kind) for address, size, kind in table.tolist()]


def flat_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The values one after the other in the order of memory; how often each is seen."""
    flat, times = snapshot.ordered(tensor)
    flat = flat.contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    # not `reshape`: one element may have a stride of 0
    return flat.as_strided((flat.numel(),), (1,)), times
