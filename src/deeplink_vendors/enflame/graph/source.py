# SPDX-License-Identifier: Apache-2.0
"""The Emitter of topsgraph: writes a graph as C++ for TopsGraph's builder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dicp.conversion import NotTaken

PRIMITIVES = {
    torch.bool: "PRED", torch.int8: "S8", torch.int16: "S16", torch.int32: "S32",
    torch.int64: "S64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64",
}  # fmt: skip
# constants are written as the bits of their elements: exact in every type
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WORDS = {1: "uint8_t", 2: "int16_t", 4: "int32_t", 8: "int64_t"}
LARGEST = 4096  # maximum elements of a constant in the source

HEAD = """#include "dtu/hlir_builder/hlir_builder.h"

std::shared_ptr<builder::Builder> build() {
  auto hlir_builder = std::make_shared<builder::Builder>();
  hlir_builder->SetShapeInference(true);
"""
TAIL = """  return hlir_builder;
}
"""

Out = tuple[torch.dtype, Sequence[int]]


@dataclass(frozen=True)
class Value:
    """A tensor in the source: the variable, its type and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def dim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Code:
    """C++ text that is emitted unchanged."""

    text: str


class Source:
    """One function that builds one graph, statement by statement."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0
        self._constants: dict[Any, Value] = {}
        self._inputs: list[str] = []  # the constant for each input; empty: an argument

    # Interface to the core

    def input(self, node: fx.Node) -> Value:
        return self.of(node.meta["val"])

    def of(self, value: Any) -> Value:
        """Create an input for a tensor, or an integer, of known type and shape."""
        if isinstance(value, Tensor):
            return self._create(value.dtype, value.shape, "")
        return self._create(torch.int64, (), "")

    def constant(self, name: str, tensor: Tensor) -> Value:
        return self._create(tensor.dtype, tensor.shape, name)

    def output(self, values: Sequence[Any], nodes: Sequence[fx.Node]) -> None:
        given = [v if isinstance(v, Value) else self.scalar(v, torch.int64) for v in values]
        self._line(f"hlir_builder->SetOutput({written(given)});")

    def finish(self) -> bytes:
        # a comment marks for the loader the inputs that are weights
        weights = "".join(f"// input {i}: {n}\n" for i, n in enumerate(self._inputs) if n)
        return (weights + HEAD + "".join(self._lines) + TAIL).encode()

    # Interface to the conversions

    def call(self, function: str, *args: Any, out: Out) -> Value:
        """Emit a call of a function of the builder; its last argument is the type of its result."""
        dtype, shape = out
        given = ", ".join(written(arg) for arg in (*args, type_of(dtype, shape)))
        return self._assign(f"builder::{function}({given})", dtype, shape)

    def several(self, function: str, *args: Any, outs: Sequence[Out]) -> list[Value]:
        """Emit a call that returns a tuple, and the extraction of its elements."""
        shapes = ", ".join(written([int(size) for size in shape]) for _, shape in outs)
        kinds = ", ".join(primitive(dtype) for dtype, _ in outs)
        row = f"builder::Type(std::vector<std::vector<int64_t>>{{{shapes}}}, {{{kinds}}})"
        given = ", ".join(written(arg) for arg in (*args, Code(row)))
        whole = self._assign(f"builder::{function}({given})", *outs[0])
        return [self.call("GetTupleElement", whole, i, out=out) for i, out in enumerate(outs)]

    def like(self, node: fx.Node, function: str, *args: Any) -> Value:
        """Emit a call whose result has the type and shape of the graph's node."""
        return self.call(function, *args, out=described(node))

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        return self.call("Convert", value, out=(dtype, value.shape))

    def scalar(self, number: Any, dtype: torch.dtype) -> Value:
        """Create a constant without dimensions; a value is cast."""
        if isinstance(number, Value):
            return self.cast(number, dtype)
        return self.const(torch.tensor(number, dtype=dtype))

    def const(self, tensor: Tensor) -> Value:
        """Create a tensor whose values are in the source; equal ones are one variable."""
        if tensor.numel() > LARGEST:
            raise NotTaken(f"a constant of {tensor.numel()} elements in the source")
        size = tensor.element_size()
        bits = tensor.contiguous().reshape(-1).view(BITS[size]).tolist()
        key = (tensor.dtype, tuple(tensor.shape), tuple(bits))
        if key not in self._constants:
            data = f"data{len(self._constants)}"
            row = ", ".join(map(_literal, bits))
            self._line(f"std::vector<{WORDS[size]}> {data}{{{row}}};")
            kind = type_of(tensor.dtype, tensor.shape)
            call = f"builder::Const(hlir_builder, {data}.data(), {kind.text})"
            self._constants[key] = self._assign(call, tensor.dtype, tensor.shape)
        return self._constants[key]

    def spread(self, value: Value, shape: Sequence[int]) -> Value:
        """Broadcast as torch does, because the builder's functions need operands of one shape."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        dims = list(range(len(shape) - value.dim, len(shape)))
        return self.call("BroadcastInDim", value, dims, out=(value.dtype, shape))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        if value.shape == tuple(shape):
            return value
        return self.call("Reshape", value, out=(value.dtype, shape))

    # details

    def _create(self, dtype: torch.dtype, shape: Sequence[int], weight: str) -> Value:
        self._inputs.append(weight)
        call = f"hlir_builder->CreateInput({type_of(dtype, shape).text})"
        return self._assign(call, dtype, shape)

    def _assign(self, expression: str, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        name = f"op{self._count}"
        self._count += 1
        self._line(f"builder::Op {name} = {expression};")
        return Value(name, dtype, tuple(int(size) for size in shape))

    def _line(self, text: str) -> None:
        self._lines.append(f"  {text}\n")


def described(node: fx.Node) -> Out:
    """Return type and shape of a node's result."""
    value = node.meta["val"]
    return (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else (torch.int64, ())


def primitive(dtype: torch.dtype) -> str:
    if dtype not in PRIMITIVES:
        raise NotTaken(f"TopsGraph has no type for {str(dtype).removeprefix('torch.')}")
    return f"builder::PrimitiveType::{PRIMITIVES[dtype]}()"


def type_of(dtype: torch.dtype, shape: Sequence[Any]) -> Code:
    if not all(isinstance(size, int) for size in shape):
        raise NotTaken("a size that changes")
    return Code(f"builder::Type({written(list(shape))}, {primitive(dtype)})")


def written(value: Any) -> str:
    """Format an argument as C++."""
    if isinstance(value, Value):
        return value.name
    if isinstance(value, Code):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value!r}f"
    if isinstance(value, int):
        return str(value)
    items = list(value)
    kind = "builder::Op" if items and isinstance(items[0], Value) else "int64_t"
    return f"std::vector<{kind}>{{{', '.join(map(written, items))}}}"


def _literal(bits: int) -> str:
    """Format bits as C++, which has no literal for the smallest of all integers."""
    return f"{bits + 1} - 1" if bits == -(2**63) else str(bits)
