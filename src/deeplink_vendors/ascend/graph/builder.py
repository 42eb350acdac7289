# SPDX-License-Identifier: Apache-2.0
"""The Emitter of ascendgraph: builds a GE graph with nodes named and typed by their prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from deeplink.tensors import bytes_of
from deeplink_vendors.ascend.graph.graph import AS_ATTRIBUTE, Attr, Desc, Graph, Node
from deeplink_vendors.ascend.graph.prototypes import TYPES, Port, check, ports, prototypes
from dicp.conversion import NotTaken

HALVES = (torch.float16, torch.bfloat16)
CONSTANT = "_constant"  # attribute of a Data node: its value is the frozen weight of that name

Out = tuple[torch.dtype, Sequence[Any]]  # type and shape of a result


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: its source, type and shape (symbolic sizes included)."""

    ref: str
    dtype: torch.dtype
    shape: tuple[Any, ...]

    @property
    def dim(self) -> int:
        return len(self.shape)


class Builder:
    """One graph, node by node."""

    def __init__(self, name: str = "dicp") -> None:
        self._name = name
        self._nodes: list[Node] = []
        self._counts: dict[str, int] = {}
        self._constants: dict[Any, Value] = {}
        self._inputs = 0

    # Interface to the core

    def input(self, node: fx.Node) -> Value:
        return self.of(node.meta["val"])

    def of(self, value: Any) -> Value:
        """Create an input for a tensor, or an integer, of known type and shape."""
        if isinstance(value, Tensor):
            return self._data(value.dtype, value.shape, {})
        return self._data(torch.int64, (), {})

    def constant(self, name: str, tensor: Tensor) -> Value:
        return self._data(tensor.dtype, tensor.shape, {CONSTANT: Attr("String", name)})

    def output(self, values: Sequence[Any], nodes: Sequence[fx.Node]) -> None:
        given = [self._as_value(value) for value in values]
        self._add("NetOutput", given, [], {})

    def finish(self) -> bytes:
        return self.graph().to_bytes()

    def graph(self) -> Graph:
        """Return the graph so far, checked against the prototypes."""
        graph = Graph(self._name, tuple(self._nodes))
        errors = check(graph)
        if errors:
            raise NotTaken(f"not by GE's prototypes: {'; '.join(errors[:3])}")
        return graph

    # Interface to the conversions

    def op(
        self, kind: str, inputs: Sequence[Value | None], outs: Sequence[Out], **attrs: Any
    ) -> Value:
        """Add a node; return its first result.

        Where the prototype lacks half types, the node works in float32, between casts.
        """
        return self.several(kind, inputs, outs, **attrs)[0]

    def several(
        self, kind: str, inputs: Sequence[Value | None], outs: Sequence[Out], **attrs: Any
    ) -> list[Value]:
        """Add a node; return the described results."""
        prototype = prototypes()[kind]
        inputs = [*inputs, *[None] * (len(prototype.inputs) - len(inputs))]
        named = ports(prototype.inputs, len(inputs))
        given = [self._fitting(value, port) for value, (_, port) in zip(inputs, named, strict=True)]
        wanted = ports(prototype.outputs, max(len(outs), len(prototype.outputs)))
        made = [_fitting_type(out[0], port) for out, (_, port) in zip(outs, wanted, strict=False)]
        typed = {
            name: Attr(prototype.attributes[name].kind, _attribute(value))
            for name, value in attrs.items()
        }
        shapes = [tuple(out[1]) for out in outs]
        values = self._add(kind, given, list(zip(made, shapes, strict=True)), typed)
        return [self.cast(v, out[0]) for v, out in zip(values, outs, strict=False)]

    def like(self, node: fx.Node, kind: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Add a node whose result has the type and shape of the graph's node."""
        return self.op(kind, inputs, [described(node)], **attrs)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        attrs = {"dst_type": Attr("Int", AS_ATTRIBUTE[dtype])}
        return self._add("Cast", [value], [(dtype, value.shape)], attrs)[0]

    def scalar(self, number: Any, dtype: torch.dtype) -> Value:
        """Create a constant without dimensions; a value is cast."""
        if isinstance(number, Value):
            return self.cast(number, dtype)
        return self.const(torch.tensor(number, dtype=dtype))

    def const(self, tensor: Tensor) -> Value:
        """Create a tensor whose values are in the graph; equal ones are one node."""
        data = bytes_of(tensor)
        key = (tensor.dtype, tuple(tensor.shape), data)
        if key not in self._constants:
            attrs = {"value": Attr("Tensor", tensor)}
            made = self._add("Const", [], [(tensor.dtype, tensor.shape)], attrs)
            self._constants[key] = made[0]
        return self._constants[key]

    def ints(self, numbers: Sequence[Any], dtype: torch.dtype = torch.int64) -> Value:
        """Create a vector of integers, some of which may be known only at run time."""
        if not any(isinstance(number, Value) for number in numbers):
            return self.const(torch.tensor([int(n) for n in numbers], dtype=dtype))
        rows = [
            self.op("Reshape", [self.cast(n, dtype), self.ints([1])], [(dtype, (1,))])
            if isinstance(n, Value)
            else self.ints([n], dtype)
            for n in numbers
        ]
        return self.concat(rows, 0, (dtype, (len(rows),)))

    def concat(self, values: Sequence[Value], dim: int, out: Out) -> Value:
        axis = self.scalar(dim, torch.int64)
        return self.op("ConcatV2", [*values, axis], [out], N=len(values))

    def size(self, value: Value, dim: int) -> Any:
        """Return a size of a tensor: a number, or a value where it is known only at run time."""
        if isinstance(value.shape[dim], int):
            return value.shape[dim]
        sizes = self.op("Shape", [value], [(torch.int64, (value.dim,))], dtype=torch.int64)
        at = self.scalar(dim % value.dim, torch.int64)
        return self.op("GatherV2", [sizes, at, self.scalar(0, torch.int64)], [(torch.int64, ())])

    # details

    def _as_value(self, value: Any) -> Value:
        return value if isinstance(value, Value) else self.scalar(value, torch.int64)

    def _data(self, dtype: torch.dtype, shape: Sequence[Any], note: dict[str, Attr]) -> Value:
        if dtype not in TYPES:
            raise NotTaken(f"GE's graphs have no type for {dtype}")
        attrs = {"index": Attr("Int", self._inputs), **note}
        self._inputs += 1
        sizes = _sizes(shape)
        given, made = Desc("x", dtype, sizes), Desc("y", dtype, sizes)
        node = Node(self._unique("Data"), "Data", (), (given,), (made,), attrs)
        self._nodes.append(node)
        return Value(f"{node.name}:0", dtype, tuple(shape))

    def _add(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outs: Sequence[Out],
        attrs: dict[str, Attr],
    ) -> list[Value]:
        prototype = prototypes()[kind]
        layout = "NCHW" if "data_format" in attrs else "ND"
        names = ports(prototype.inputs, len(inputs))
        given = tuple(
            Desc(name, None, unfed=True)
            if value is None
            else Desc(name, value.dtype, _sizes(value.shape), layout)
            for (name, _), value in zip(names, inputs, strict=True)
        )
        unasked = [(None, ())] * (len(prototype.outputs) - len(outs))
        results: list[tuple[torch.dtype | None, Sequence[Any]]] = [*outs, *unasked]
        made = tuple(
            Desc(name, dtype, _sizes(shape), layout)
            for (name, _), (dtype, shape) in zip(
                ports(prototype.outputs, len(results)), results, strict=True
            )
        )
        refs = tuple("" if value is None else value.ref for value in inputs)
        node = Node(self._unique(kind), kind, refs, given, made, attrs)
        self._nodes.append(node)
        return [
            Value(f"{node.name}:{index}", dtype, tuple(shape))
            for index, (dtype, shape) in enumerate(outs)
        ]

    def _fitting(self, value: Value | None, port: Port) -> Value | None:
        if value is None or port.takes(value.dtype):
            return value
        return self.cast(value, _fitting_type(value.dtype, port))

    def _unique(self, kind: str) -> str:
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return f"{kind}_{count}" if count else kind


def described(node: fx.Node) -> Out:
    """Return type and shape of a node's result."""
    value = node.meta["val"]
    return (value.dtype, value.shape) if isinstance(value, Tensor) else (torch.int64, ())


def _fitting_type(dtype: torch.dtype, port: Port) -> torch.dtype:
    """Return the type where the port accepts it, or the next wider one that it accepts."""
    if not port.takes(dtype) and dtype in HALVES and port.takes(torch.float32):
        return torch.float32
    return dtype


def _attribute(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return AS_ATTRIBUTE[value]
    return list(value) if isinstance(value, (tuple, torch.Size)) else value


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)
