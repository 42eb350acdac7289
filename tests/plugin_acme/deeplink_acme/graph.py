"""acmegraph: a graph compiler in one file. It writes a line for each operation, and runs lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from dicp import Backend, Conversions, Executable, Loading

aten = torch.ops.aten
conversions = Conversions()
register_conversion = conversions.register_conversion


class Lines:
    """The emitter: a value is a name, an operation is a line."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.lines: list[list[Any]] = []
        self.results: list[str] = []

    def input(self, node: fx.Node) -> str:
        self.inputs.append(node.name)
        return node.name

    def constant(self, name: str, tensor: Tensor) -> str:
        return name  # the data comes when the lines are loaded

    def op(self, name: str, *operands: Any) -> str:
        self.lines.append([f"t{len(self.lines)}", name, *operands])
        return str(self.lines[-1][0])

    def output(self, values: Sequence[str], nodes: Sequence[fx.Node]) -> None:
        self.results = list(values)

    def finish(self) -> bytes:
        return json.dumps([self.inputs, self.lines, self.results]).encode()


@register_conversion([aten.view.default, aten._unsafe_view.default, aten.reshape.default])
def view(emitter: Lines, node: fx.Node, x: str, size: Sequence[int]) -> str:
    return emitter.op("reshape", x, list(size))


@register_conversion(aten.relu.default)
def relu(emitter: Lines, node: fx.Node, x: str) -> str:
    return emitter.op("maximum", x, 0)


@register_conversion(torch.ops.dicp.linear.default)
def linear(emitter: Lines, node: fx.Node, x: str, w: str, b: str | None = None) -> str:
    """Emit one fused operation of torch.compile's graph."""
    product = emitter.op("matmul", x, emitter.op("transpose", w))
    return product if b is None else emitter.op("add", product, b)


def supports(node: fx.Node) -> str | None:
    """Support float32 only."""
    values = [n.meta["val"] for n in (node, *node.all_input_nodes)]
    wrong = any(isinstance(v, Tensor) and v.dtype != torch.float32 for v in values)
    return "only float32" if wrong else None


def load(blob: bytes, loading: Loading) -> Executable:
    """Runs the lines with numpy."""
    inputs, lines, results = json.loads(blob)
    constants = {name: tensor.numpy() for name, tensor in loading.constants.items()}

    def run(args: list[Any]) -> list[Tensor]:
        values = dict(constants)
        values |= {name: x.detach().numpy() for name, x in zip(inputs, args, strict=True)}
        for name, function, *operands in lines:
            given = [values[x] if isinstance(x, str) else x for x in operands]
            values[name] = getattr(np, function)(*given)
        return [torch.from_numpy(np.ascontiguousarray(values[name])) for name in results]

    return run


backend = Backend(
    "acmegraph",
    version=lambda: "1.0",
    conversions=conversions,
    emitter=Lines,
    load=load,
    supports=supports,
    activations=frozenset(),  # its linear takes none in
)
