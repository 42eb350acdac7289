# SPDX-License-Identifier: Apache-2.0
"""The Emitter of ONNX models. Weights are not in the model, which only names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from deeplink_vendors.cpu.onnx.nodes import Node, TensorInfo
from deeplink_vendors.cpu.onnx.types import ELEMENT, NUMPY, computed_in

Size = int | str  # a known size, or the name of an integer


@dataclass(frozen=True)
class Value:
    """A value of the graph: its name, torch's value for it, and its type in ONNX."""

    name: str
    val: Any  # a fake tensor, or a symbolic number
    dtype: torch.dtype

    @property
    def shape(self) -> list[int | torch.SymInt]:
        return list(self.val.shape) if isinstance(self.val, Tensor) else []

    @property
    def rank(self) -> int:
        return len(self.shape)


Name = Value | str
Number = int | float | bool


class OnnxEmitter:
    """The Emitter of ONNX models."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._weights: list[TensorInfo] = []
        self._inputs: list[TensorInfo] = []
        self._outputs: list[TensorInfo] = []
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._constants: dict[Any, str] = {}
        self._count = 0

    # Interface to the code generator.

    def input(self, node: fx.Node) -> Value:
        val = node.meta["val"]
        tensor = isinstance(val, Tensor)
        value = Value(node.name, val, val.dtype if tensor else torch.int64)
        self._inputs.append(self._tensor_info(node.name, value))
        return value

    def constant(self, name: str, tensor: Tensor) -> Value:
        value = Value(name, tensor, tensor.dtype)
        self._weights.append(self._tensor_info(name, value))
        return value

    def output(self, values: Sequence[Value], nodes: Sequence[fx.Node]) -> None:
        made = {name for node in self._nodes for name in node.outputs}
        results: dict[str, str] = {}
        for number, value in enumerate(values):
            name = f"result{number}"
            if value.name in made and value.name not in results:
                results[value.name] = name
            else:
                self._nodes.append(Node("Identity", [value.name], (name,), "", {}))
            self._outputs.append(self._tensor_info(name, value))
        self._nodes = [node.renamed(results) for node in self._nodes]

    def finish(self) -> bytes:
        from deeplink_vendors.cpu.onnx.model import serialised  # imports onnx

        return serialised(self._nodes, self._inputs, self._outputs, self._weights, self._arrays)

    def _tensor_info(self, name: str, value: Value) -> TensorInfo:
        return TensorInfo(name, value.dtype, [self._dimension(size) for size in value.shape])

    def _dimension(self, size: int | torch.SymInt) -> int | str:
        if isinstance(size, int):
            return size
        text = str(size)
        return text if text.isidentifier() else self._name("size")

    def _name(self, word: str = "v") -> str:
        self._count += 1
        return f"{word}{self._count}"

    # Interface to the conversions.

    def op(self, kind: str, *inputs: Name | None, domain: str = "", **attributes: Any) -> str:
        """Emit an operator with one result."""
        return self.ops(kind, *inputs, results=1, domain=domain, **attributes)[0]

    def ops(
        self, kind: str, *inputs: Name | None, results: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Emit an operator with several results."""
        names = [self._name() for _ in range(results)]
        given = [_text(value) for value in inputs]
        self._nodes.append(Node(kind, given, tuple(names), domain, attributes))
        return names

    def new(self) -> str:
        """Return an unused name."""
        return self._name()

    def put(self, node: Node) -> str:
        """Emit an operator unchanged; return the name of its first result."""
        self._nodes.append(node)
        return node.outputs[0]

    def remove(self, kind: str, name: str) -> Node | None:
        """Remove the operator with the result `name` and return it; None if it is of another kind,
        or
        its result has been read.
        """
        for number, node in enumerate(self._nodes):
            if node.outputs == (name,) and node.kind == kind:
                read = any(name in later.inputs for later in self._nodes[number:])
                return None if read else self._nodes.pop(number)
        return None

    def array(self, values: Any, dtype: torch.dtype = torch.int64) -> str:
        """Create a constant that is part of the model; equal constants are created once."""
        made = np.asarray(values, NUMPY[dtype])
        key = (made.dtype.str, made.shape, made.tobytes())
        if key not in self._constants:
            self._constants[key] = self._name("c")
            self._arrays[self._constants[key]] = made
        return self._constants[key]

    def number(self, value: Number | Value, dtype: torch.dtype) -> str:
        """Create a number as a tensor of no dimensions; one too large for its type wraps around."""
        if isinstance(value, Value):
            return self.cast(value, dtype).name
        if dtype == torch.bfloat16:
            rounded = torch.tensor(value, dtype=torch.float32).to(dtype).item()
            return self.op("Cast", self.array(rounded, torch.float32), to=ELEMENT[dtype])
        if not dtype.is_floating_point:
            return self.array(torch.tensor(value).to(dtype).numpy(), dtype)
        return self.array(np.float64(value).astype(NUMPY[dtype]), dtype)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Convert the value to another type."""
        if value.dtype == dtype:
            return value
        if dtype == torch.bool and value.dtype in (torch.float16, torch.bfloat16):
            value = self.cast(value, torch.float32)
        name = self.op("Cast", value, to=ELEMENT[dtype])
        return replace(value, name=name, dtype=dtype)

    def wide(self, value: Value) -> Value:
        """Convert the value to the type for which there are kernels."""
        return self.cast(value, computed_in(value.dtype))

    # Sizes: integers as long as they are known.

    def ints(self, values: Sequence[Any]) -> str:
        """Create a tensor of one dimension from integers, some of which may be values."""
        if all(isinstance(value, int) for value in values):
            return self.array(list(values))
        parts = [
            self.array([value]) if isinstance(value, int)
            else self.op("Reshape", value, self.array([1]))
            for value in values
        ]  # fmt: skip
        return self.op("Concat", *parts, axis=0)

    def size(self, x: Value, dim: int) -> Size:
        """Return the size of one dimension."""
        known = x.shape[dim]
        if isinstance(known, int):
            return known
        return self.op("Gather", self.op("Shape", x), self.array(dim % x.rank), axis=0)

    def count(self, x: Value, dims: Sequence[int]) -> Size:
        """Return the number of elements over some dimensions."""
        sizes = [self.size(x, dim) for dim in dims]
        total: Size = math.prod(size for size in sizes if isinstance(size, int))
        for size in sizes:
            if isinstance(size, str):
                total = self.whole("Mul", total, size)
        return total

    def whole(self, kind: str, a: Size, b: Size) -> Size:
        """Compute with sizes, here as far as they are known."""
        if isinstance(a, int) and isinstance(b, int):
            return _FOLDED[kind](a, b)
        return self.op(kind, *(self.array(x) if isinstance(x, int) else x for x in (a, b)))

    def shape(self, x: Value) -> str:
        """Return all sizes as a tensor."""
        if all(isinstance(size, int) for size in x.shape):
            return self.array(x.shape)
        return self.op("Shape", x)


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Min": min,
    "Max": max,
}


def _text(value: Name | None) -> str:
    if value is None:
        return ""
    return value.name if isinstance(value, Value) else value
