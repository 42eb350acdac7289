"""Tensors taken for a capture: one snapshot for each, and no copy where memory is as it was."""

from __future__ import annotations

from torch import Tensor

from op_tools.packed import PackedStore
from op_tools.snapshot import Blob, Snapshot, Unchanged, describe, values


class Taker:
    """Takes the tensors of one part of a call."""

    __slots__ = ("_known", "_packed", "_taken", "fresh")

    def __init__(self, known: Unchanged[Blob] | None, packed: PackedStore | None) -> None:
        self.fresh = 0  # bytes that were copied, and are to be written
        self._known = known
        self._packed = packed
        self._taken: dict[int, tuple[Tensor, Snapshot]] = {}

    def __call__(self, tensor: Tensor) -> Snapshot:
        before = self._taken.get(id(tensor))
        if before is not None:
            return before[1]
        known = self._known
        key, blob = known.find(tensor) if known is not None else (None, None)
        if blob is None:
            packed = self._packed
            own = values(tensor, packed.pool if packed is not None else None)
            blob = Blob(own, own.numel() * own.element_size())
            if known is not None:
                known.keep(key, tensor, blob, own)
            if packed is None or not packed.has(blob):
                self.fresh += blob.nbytes
        made = describe(tensor, blob)
        self._taken[id(tensor)] = tensor, made
        return made
