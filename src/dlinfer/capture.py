# SPDX-License-Identifier: Apache-2.0
"""A step as a graph of the device: recorded once for each shape of its arguments, then replayed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

WARM = 2  # plain runs before a recording: they compile kernels and allocate memory
GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph", "mlu": "MLUGraph", "xpu": "XPUGraph"}


@dataclass(frozen=True)
class Recording:
    """One graph, its argument buffers, and its result."""

    graph: Any
    places: list[Any]
    result: Any


class Captured:
    """A captured step; see `capture`."""

    def __init__(self, step: Callable[..., Any], kept: Collection[str] = ()) -> None:
        self.step = step
        self.kept = frozenset(kept)
        self.recordings: dict[Any, Recording] = {}
        self._signature = inspect.signature(step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        leaves, spec, kept = self._leaves(bound)
        device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), None)
        if device is None or not graph_of(device):
            return self.step(*args, **kwargs)
        key = (device, str(spec), *map(_known, leaves, kept))
        found = self.recordings.get(key)
        if found is None:
            found = self.recordings[key] = self._record(bound, leaves, spec, kept, device)
        for place, leaf, stays in zip(found.places, leaves, kept, strict=True):
            if isinstance(leaf, Tensor) and not stays:
                place.copy_(leaf)
        found.graph.replay()
        return found.result

    def _leaves(self, bound: inspect.BoundArguments) -> tuple[list[Any], Any, list[bool]]:
        """Flatten the arguments: leaves, structure, and which leaves stay in place."""
        leaves, spec = pytree.tree_flatten(dict(bound.arguments))
        counts = {name: len(pytree.tree_leaves(value)) for name, value in bound.arguments.items()}
        kept = [name in self.kept for name, count in counts.items() for _ in range(count)]
        return leaves, spec, kept

    def _record(
        self,
        bound: inspect.BoundArguments,
        leaves: list[Any],
        spec: Any,
        kept: list[bool],
        device: torch.device,
    ) -> Recording:
        module: Any = torch.get_device_module(device)
        places = [
            leaf.clone() if isinstance(leaf, Tensor) and not stays else leaf
            for leaf, stays in zip(leaves, kept, strict=True)
        ]
        bound.arguments.update(pytree.tree_unflatten(places, spec))
        side = module.Stream(device)
        side.wait_stream(module.current_stream(device))
        with module.stream(side):
            for _ in range(WARM):
                self.step(*bound.args, **bound.kwargs)
        module.current_stream(device).wait_stream(side)
        graph = getattr(module, graph_of(device))()
        with module.graph(graph):
            result = self.step(*bound.args, **bound.kwargs)
        return Recording(graph, places, result)


def capture(step: Callable[..., Any], kept: Collection[str] = ()) -> Captured:
    """Record the launches of a step as a graph of the device, once for each shape.

    Arguments named in `kept` (weights, caches) stay in place; the others are copied to the buffers
    of the graph. Numbers are part of the recording: pass the largest length, not each step's. A
    recording runs the step a few times, so repeated runs must write equal values. Results are
    overwritten by the next call. On a device without such graphs the step runs unchanged.
    """
    return Captured(step, kept)


def graph_of(device: torch.device) -> str:
    """Return the name of a device's class of graphs, in its module; "" if it has none."""
    name = GRAPHS.get(device.type, "")
    return name if name and hasattr(torch.get_device_module(device), name) else ""


def _known(leaf: Any, stays: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.data_ptr() if stays else 0
