"""The greatest magnitudes of many tensors by one kernel of the vendor's, where it gives one.

The tensors are held until it is started: when they are read, or before one of them is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from op_tools import looks, reducing
from op_tools.host import kind_of
from op_tools.statistics import NATIVE

FINITE, NANS = 6, 7  # columns of the results; see reducing.py
LOW, HIGH = 2, 3


class Later:
    """Tensors in the order in which they were added; one thread at a time."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._storages: set[int] = set()  # of those
        self._stream: torch.Stream | None = None  # of all that waits
        self._started: list[Callable[[], list[float]]] = []

    @staticmethod
    def takes(tensors: Sequence[Tensor]) -> bool:
        """Whether there is a kernel for all of them."""
        return all(
            t.dtype in NATIVE and t.is_floating_point() and reducing.starter(kind_of(t)) is not None
            for t in tensors
        )

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Of one device."""
        stream = torch.accelerator.current_stream(tensors[0].device.index)
        if stream != self._stream:
            self.start()
        self._stream = stream
        self._waiting += tensors
        self._storages.update([tensor.untyped_storage()._cdata for tensor in tensors])

    def before_write(self, tensors: Sequence[Tensor]) -> None:
        """Starts, where one of them waits."""
        if not self._storages:
            return
        if any(tensor.untyped_storage()._cdata in self._storages for tensor in tensors):
            stream = self._stream
            self.start()
            now = torch.accelerator.current_stream(tensors[0].device.index)
            if stream is not None and now != stream:
                now.wait_stream(stream)

    def start(self) -> None:
        """Starts on all of them."""
        if not self._waiting or self._stream is None:
            return
        waiting, self._waiting, self._storages = self._waiting, [], set()
        now = torch.accelerator.current_stream(waiting[0].device.index)
        with self._stream if now != self._stream else nullcontext():
            try:
                self._started.append(_started(waiting))
            except Exception:  # another's code: torch's kernels do as well
                self._started.append(partial(looks.numbers, looks.greatest(waiting)))

    def read(self) -> list[float]:
        """Of each that was added since the last time; waits for the device."""
        self.start()
        started, self._started = self._started, []
        return [size for read in started for size in read()]


def _started(waiting: list[Tensor]) -> Callable[[], list[float]]:
    start = reducing.starter(kind_of(waiting[0]))
    assert start is not None  # `takes` has said so
    flats = [one if one.is_contiguous() else reducing.flat_of(one)[0] for one in waiting]
    counts = [flat.numel() for flat in flats]
    addresses = np.array([flat.data_ptr() for flat in flats])
    kinds = np.array([NATIVE[flat.dtype] for flat in flats])
    sizes = np.array(counts) * [flat.element_size() for flat in flats]
    rows, lengths = reducing.table_of(addresses, sizes, kinds)
    table, pieces = torch.from_numpy(rows), lengths.tolist()
    read = start(table, waiting[0].device)
    return lambda: _greatest(read(), pieces, counts)


def _greatest(rows: Tensor, pieces: list[int], counts: list[int]) -> list[float]:
    """The magnitude of the greatest value of each tensor; NaN where there is one."""
    bounds = rows[:, LOW : HIGH + 1].contiguous().view(torch.float64).abs().amax(1)
    bounds = bounds.where(rows[:, FINITE] > 0, 0.0)
    lengths = torch.tensor(pieces)
    sizes = torch.segment_reduce(bounds, "max", lengths=lengths)
    sums = torch.segment_reduce(rows[:, FINITE:].double(), "sum", lengths=lengths)
    infinite = sums.sum(1) < torch.tensor(counts)
    sizes = sizes.masked_fill(infinite, math.inf).masked_fill(sums[:, 1] > 0, math.nan)
    found: list[float] = sizes.tolist()
    return found
