# SPDX-License-Identifier: Apache-2.0
"""Execution of a GE graph on the CPU, node by node: a simulation of meanings, not of a chip.

Every result is compared with its description in the graph: type, number of dimensions, known sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deeplink_vendors.ascend.graph import kernels_folding  # noqa: F401  # registers its kernels
from deeplink_vendors.ascend.graph.builder import CONSTANT
from deeplink_vendors.ascend.graph.graph import Desc, Graph, Node
from deeplink_vendors.ascend.graph.kernels import KERNELS
from deeplink_vendors.ascend.graph.prototypes import prototypes
from dicp.simulation import SimulationError, fresh


class Simulation:
    """A graph ready to run: `simulation(args)`; its constants are set by name, once."""

    def __init__(self, graph: Graph, constants: Mapping[str, Tensor]) -> None:
        self._known: dict[str, Tensor] = {}
        self._inputs: list[str] = []
        self._steps: list[tuple[Node, dict[str, Any], tuple[str, ...]]] = []
        last: dict[str, int] = {}
        for node in graph.nodes:
            self._place(node, constants)
            last |= {source: len(self._steps) for source in node.inputs}
        kept = set(self._outputs)
        self._steps = [
            (node, attrs, tuple(s for s in node.inputs if last[s] == at and s not in kept))
            for at, (node, attrs, _) in enumerate(self._steps, start=1)
        ]

    def __call__(self, args: Sequence[Any]) -> list[Tensor]:
        values: dict[str, Tensor | None] = dict(self._known)
        values[""] = None
        for name, arg in zip(self._inputs, args, strict=True):
            values[name] = arg if isinstance(arg, Tensor) else torch.tensor(arg)
        for node, attrs, dead in self._steps:
            results = _run(node, attrs, [values[source] for source in node.inputs])
            for index, result in enumerate(results):
                values[f"{node.name}:{index}"] = result
            for source in dead:
                values[source] = None
        outputs = [values[source] for source in self._outputs]
        return fresh(outputs, [*self._known.values(), *args])

    def _place(self, node: Node, constants: Mapping[str, Tensor]) -> None:
        if node.type == "NetOutput":
            self._outputs = node.inputs
        elif node.type == "Const":
            self._known[f"{node.name}:0"] = node.attrs["value"].value
        elif node.type == "Data" and CONSTANT in node.attrs:
            self._known[f"{node.name}:0"] = constants[node.attrs[CONSTANT].value]
        elif node.type == "Data":
            self._inputs.append(f"{node.name}:0")
        elif node.type not in KERNELS:
            raise SimulationError(f"the simulation has no operator {node.type} ({node.name})")
        else:
            self._steps.append((node, _attributes(node), ()))


def _attributes(node: Node) -> dict[str, Any]:
    """Return the attributes of a node, with the defaults of missing ones."""
    given = {name: attr.value for name, attr in node.attrs.items()}
    prototype = prototypes().get(node.type)
    declared = prototype.attributes.values() if prototype else ()
    return {a.name: a.default for a in declared if a.default is not None} | given


def _run(node: Node, attrs: dict[str, Any], inputs: list[Tensor | None]) -> Sequence[Tensor]:
    while inputs and inputs[-1] is None:
        inputs.pop()
    try:
        found = KERNELS[node.type](attrs, *inputs)
    except Exception as error:  # torch's message, with the node that caused it
        raise SimulationError(f"{node.name} ({node.type}): {error}") from error
    results = found if isinstance(found, (tuple, list)) else (found,)
    for desc, result in zip(node.output_descs, results, strict=False):
        _hold(node, desc, result)
    return results


def _hold(node: Node, desc: Desc, result: Tensor) -> None:
    if desc.dtype is None:
        return
    sizes = zip(desc.shape, result.shape, strict=False)
    same = result.dim() == len(desc.shape) and all(said in (-1, is_) for said, is_ in sizes)
    if result.dtype != desc.dtype or not same:
        raise SimulationError(
            f"{node.name} ({node.type}) declares {desc.name} as {desc.dtype}{list(desc.shape)}, "
            f"and is {result.dtype}{list(result.shape)}"
        )
