# SPDX-License-Identifier: Apache-2.0
"""Weights as constants of an inference graph, and detection of their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from dicp import torch_internals


class Frozen:
    """The inputs of a graph that became constants, by number; `changed` is called in each call."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self.tensors = dict(tensors)
        self._marks: list[tuple[int, int, int]] = []
        self.take(self.tensors)

    def take(self, tensors: Mapping[int, Any]) -> None:
        """Record the current tensors as the constants."""
        self.tensors.update({i: tensors[i].detach() for i in self.tensors})
        self._marks = [(i, t.data_ptr(), t._version) for i, t in self.tensors.items()]

    def changed(self, args: Sequence[Any]) -> list[int]:
        """Return the numbers of the inputs that were written or replaced
        since they were recorded.
        """
        # hot path
        return [
            i
            for i, pointer, version in self._marks
            if args[i].data_ptr() != pointer or args[i]._version != version
        ]


def lift_attributes(gm: fx.GraphModule) -> dict[str, Tensor]:
    """Turn tensors in the graph into placeholders, which are constants under their names."""
    found: dict[str, Tensor] = {}
    places: dict[str, fx.Node] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        tensor = _attribute(gm, str(node.target))
        if not isinstance(tensor, Tensor):
            continue
        if node.target not in places:
            place = add_placeholder(gm, f"attribute_{node.name}")
            with torch_internals.fake_mode_of(gm) as mode:
                place.meta["val"] = node.meta.get("val", mode.from_tensor(tensor))
            places[node.target] = place
            found[place.name] = tensor.detach()
        node.replace_all_uses_with(places[node.target])
        gm.graph.erase_node(node)
    return found


def add_placeholder(gm: fx.GraphModule, name: str) -> fx.Node:
    """Add one more input, after the existing ones."""
    inputs = gm.graph.find_nodes(op="placeholder")
    first = next(iter(gm.graph.nodes))
    with gm.graph.inserting_after(inputs[-1]) if inputs else gm.graph.inserting_before(first):
        return gm.graph.placeholder(name)


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    found: Any = gm
    for name in path.split("."):
        found = getattr(found, name)
    return found
