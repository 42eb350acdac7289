# SPDX-License-Identifier: Apache-2.0
"""transformers: the cache of `generate`, grown in place instead of copied for each token.

A layer of transformers' own cache concatenates the old keys and the new ones to a new tensor. Here
they are in a buffer with spare places. The keys of an earlier step are never overwritten.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

caches: Any = importlib.import_module("transformers.cache_utils")

SPARE = 32  # minimum of spare places; otherwise a quarter of those in use
_ROOM = "_dlinfer_room"


@dataclass
class Buffer:
    """Memory of one layer's keys or values; the first `used` places are in use."""

    memory: Tensor  # [batch, heads, places, size]
    used: int

    def takes(self, held: Tensor, more: int) -> bool:
        """Whether `held` is all that is in use, followed by enough free places."""
        length = held.shape[2]
        same = held.data_ptr() == self.memory.data_ptr() and held.shape[:2] == self.memory.shape[:2]
        free = self.used == length and length + more <= self.memory.shape[2]
        return same and free and self.memory.is_inference() == torch.is_inference_mode_enabled()


def extended(cache: Any, key: Tensor, value: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Extend the cache as `cache.update` does:
    return all keys and values of a layer, the new last.
    """
    layer = _layer(cache, index)
    if layer is None or key.shape[0] != layer.keys.shape[0]:
        found: tuple[Tensor, Tensor] = cache.update(key, value, index)
        return found
    rooms = layer.__dict__.setdefault(_ROOM, {})
    layer.keys = _extended(rooms, "keys", layer.keys, key)
    layer.values = _extended(rooms, "values", layer.values, value)
    return layer.keys, layer.values


def _layer(cache: Any, index: int) -> Any:
    """Return a layer that has keys and only concatenates; None: `update` must be called."""
    if type(cache) is not caches.DynamicCache or cache.offloading or len(cache.layers) <= index:
        return None
    layer = cache.layers[index]
    plain = type(layer) is caches.DynamicLayer and layer.is_initialized and layer.keys.dim() == 4
    return layer if plain and not torch.compiler.is_compiling() else None


def _extended(rooms: dict[str, Buffer], name: str, held: Tensor, new: Tensor) -> Tensor:
    length, more = held.shape[2], new.shape[2]
    room = rooms.get(name)
    if room is None or not room.takes(held, more):
        places = length + more + max(SPARE, length // 4)
        memory = held.new_empty((*held.shape[:2], places, held.shape[3]))
        memory.narrow(2, 0, length).copy_(held)
        room = rooms[name] = Buffer(memory, length)
    room.memory.narrow(2, length, more).copy_(new)
    room.used = length + more
    return room.memory.narrow(2, 0, room.used)
