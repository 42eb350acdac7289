"""Tensors taken for a capture: one snapshot for each, and no copy where memory is as it was."""

from __future__ import annotations

from torch import Tensor

from op_tools.packed import PackedStore
from op_tools.snapshot import Blob, Snapshot, describe, values


class Taker:
    """Takes the tensors of one part of a call."""

    __slots__ = ("_packed", "_taken")

    def __init__(self, packed: PackedStore | None) -> None:
        self._packed = packed
        self._taken: dict[int, tuple[Tensor, Snapshot]] = {}

    def __call__(self, tensor: Tensor) -> Snapshot:
        before = self._taken.get(id(tensor))
        if before is not None:
            return before[1]
        if self._packed is not None:
            blob = self._packed.take(tensor)
        else:
            own = values(tensor)
            blob = Blob(own, own.numel() * own.element_size())
        made = describe(tensor, blob)
        self._taken[id(tensor)] = tensor, made
        return made
