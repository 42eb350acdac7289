# SPDX-License-Identifier: Apache-2.0
"""Results of asynchronous collectives, captured at the first kernel that reads them.

A call of c10d returns its buffer at once and completes later. When a kernel is called with that
memory, the program has waited for the collective: the kernel's input is the collective's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from op_tools.core import op_names
from op_tools.core.call import Call
from op_tools.core.collectives import is_collective

# Collectives whose record has the contributions of the ranks and, in order, the results.
WAITED_FOR = frozenset(
    """
    c10d.allreduce_ c10d.broadcast_ c10d.allgather_ c10d._allgather_base_
    c10d._reduce_scatter_base_ _c10d_functional.all_reduce _c10d_functional.all_reduce_
    _c10d_functional.broadcast _c10d_functional.all_gather_into_tensor
    _c10d_functional.reduce_scatter_tensor
    """.split()
)
MOST = 256  # pending buffers
Read = tuple[int, int, int]  # the collective's call, the place of the argument, the first element


@dataclass(frozen=True)
class _Buffer:
    """A tensor that a collective writes, with a weak reference to its storage."""

    storage: StorageWeakRef
    start: int  # address
    bytes: int
    call: int
    base: int  # elements of the collective's results before it


class Awaited:
    """The buffers of collectives that no kernel has read."""

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def begin(self, call: Call, results: Sequence[Tensor]) -> None:
        """Register the buffers that a collective returned."""
        if call.level != "aten" or call.name.rpartition(".")[0] not in WAITED_FOR:
            return
        base = 0
        for tensor in results:
            if tensor.is_contiguous() and tensor.numel():
                size = tensor.numel() * tensor.element_size()
                storage = StorageWeakRef(tensor.untyped_storage())
                self._buffers.append(_Buffer(storage, tensor.data_ptr(), size, call.id, base))
            base += tensor.numel()
        del self._buffers[:-MOST]

    def read_by(self, call: Call, arguments: Sequence[Tensor]) -> list[Read]:
        """Remove and return the pending results that a call reads."""
        if is_collective(call.name) or getattr(call.func, "is_view", False):
            return []
        if op_names.last(call.name) in op_names.VIEWS:
            return []
        read = []
        for place, tensor in enumerate(arguments):
            buffer = self._buffer(tensor)
            if buffer is not None:
                self._buffers = [each for each in self._buffers if each is not buffer]
                offset = (tensor.data_ptr() - buffer.start) // tensor.element_size()
                read.append((buffer.call, place, buffer.base + offset))
        return read

    def _buffer(self, tensor: Tensor) -> _Buffer | None:
        if not tensor.is_contiguous() or not tensor.numel():
            return None
        storage, start = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()
        end = start + tensor.numel() * tensor.element_size()
        for buffer in reversed(self._buffers):  # the last that wrote it
            inside = buffer.start <= start and end <= buffer.start + buffer.bytes
            if inside and buffer.storage == storage and not buffer.storage.expired():
                return buffer
        return None
