# SPDX-License-Identifier: Apache-2.0
"""GE's operator prototypes, and the check of a graph against them.

`prototypes.csv` holds the interface of the emitted operators: names and order of inputs and
outputs, types, attributes; `scripts/ascend_prototypes.py` generates it. A graph that passes the
check has every name, number and type right; it does not show that GE accepts the graph.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from deeplink_vendors.ascend.graph.graph import AS_ATTRIBUTE, Desc, Graph, Node

FLOATS = {"FLOAT", "FLOAT16", "BF16", "DOUBLE"}
WHOLE = {"INT8", "UINT8", "INT16", "INT32", "INT64"}
# GE's classes of types, limited to torch's types. That they contain BF16 is assumed; that bool is
# only in ALL follows from prototypes that name bool in addition to them
CLASSES = {
    "ALL": FLOATS | WHOLE | {"BOOL"},
    "BasicType": FLOATS | WHOLE,
    "NumberType": FLOATS | WHOLE,
    "RealNumberType": FLOATS | WHOLE,
    "FloatingDataType": FLOATS,
    "UnaryDataType": FLOATS,
    "IntegerDataType": WHOLE,
    "IndexNumberType": {"INT32", "INT64"},
}
TYPES = {
    torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BF16",
    torch.float64: "DOUBLE", torch.int8: "INT8", torch.uint8: "UINT8", torch.int16: "INT16",
    torch.int32: "INT32", torch.int64: "INT64", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Port:
    """An input or output: required, optional or dynamic (any number of it)."""

    name: str
    kind: str
    types: frozenset[str] | None  # None: any

    def takes(self, dtype: torch.dtype | None) -> bool:
        return self.types is None or dtype is None or TYPES[dtype] in self.types


@dataclass(frozen=True)
class Attribute:
    name: str
    kind: str
    required: bool
    default: Any = None  # None: there is none


@dataclass(frozen=True)
class Prototype:
    """The inputs, outputs and attributes of an operator, in the order of its interface."""

    op: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: dict[str, Attribute]


# hand-written prototypes of the wheel: without types of their own, or with any type
BY_HAND = (
    ("Data", "input", "x", "ALL"), ("Data", "output", "y", "ALL"), ("Data", "attr", "index", "Int"),
    ("Const", "output", "y", "ALL"), ("Const", "required_attr", "value", "Tensor"),
    ("Cast", "input", "x", "ALL"), ("Cast", "output", "y", "ALL"),
    ("Cast", "required_attr", "dst_type", "Int"),
    ("NetOutput", "dynamic_input", "x", "ALL"),
)  # fmt: skip


@cache
def prototypes() -> dict[str, Prototype]:
    """Read every operator of the table."""
    text = files(__package__).joinpath("prototypes.csv").read_text("utf-8")
    rows = [*csv.reader(text.splitlines()[1:]), *map(list, BY_HAND)]
    grouped: dict[str, list[list[str]]] = {}
    for row in rows:
        grouped.setdefault(row[0], []).append(row)
    return {op: _prototype(op, part) for op, part in grouped.items()}


def _prototype(op: str, rows: list[list[str]]) -> Prototype:
    attributes = [
        Attribute(name, types.split()[0], kind == "required_attr", _default(types))
        for _, kind, name, types in rows
        if kind.endswith("attr")
    ]
    return Prototype(
        op,
        tuple(_port(row) for row in rows if row[1].endswith("input")),
        tuple(_port(row) for row in rows if row[1].endswith("output")),
        {attribute.name: attribute for attribute in attributes},
    )


def _default(types: str) -> Any:
    """Parse `Int 0`, `Bool false`, `ListInt {1, 1}`, `String "NCHW"`, `Type DT_INT64`."""
    kind, _, text = types.partition(" ")
    if not text:
        return None
    if kind.startswith("List"):
        return [int(word) for word in text.strip("{}").split(",") if word.strip()]
    if text.startswith("DT_"):
        return AS_ATTRIBUTE[{name: dtype for dtype, name in TYPES.items()}[text[3:]]]
    plain = {"true": True, "false": False}.get(text, text)
    readers: dict[str, Any] = {"Int": int, "Float": lambda value: float(str(value).rstrip("f"))}
    convert = readers.get(kind)
    return convert(plain) if convert else (text.strip('"') if kind == "String" else plain)


def _port(row: list[str]) -> Port:
    _, kind, name, words = row
    if words == "any":
        return Port(name, kind, None)
    parts = [CLASSES.get(word, {word}) for word in words.split()]
    return Port(name, kind, frozenset().union(*parts))


def ports(declared: tuple[Port, ...], number: int) -> list[tuple[str, Port]]:
    """Return name and port of each of `number` tensors; those of a dynamic port are numbered."""
    dynamic = number - sum(not port.kind.startswith("dynamic") for port in declared)
    out: list[tuple[str, Port]] = []
    for port in declared:
        if port.kind.startswith("dynamic"):
            out += [(f"{port.name}{index}", port) for index in range(dynamic)]
        else:
            out.append((port.name, port))
    return out


def check(graph: Graph) -> list[str]:
    """Return the errors of the graph, one line each; empty: it follows the prototypes."""
    made: dict[str, int] = {}
    errors: list[str] = []
    for node in graph.nodes:
        for source in filter(None, node.inputs):
            name, _, index = source.rpartition(":")
            if name not in made or int(index) >= made[name]:
                errors.append(f"{node.name}: input {source} is not defined before it")
        errors += [f"{node.name} ({node.type}): {what}" for what in check_node(node)]
        made[node.name] = len(node.output_descs)
    return errors


def check_node(node: Node) -> Iterator[str]:
    """Yield the errors of one node."""
    prototype = prototypes().get(node.type)
    if prototype is None:
        yield "there is no prototype of that name"
        return
    yield from _check_ports("input", prototype.inputs, node.input_descs)
    yield from _check_ports("output", prototype.outputs, node.output_descs)
    for source, desc, (name, port) in zip(
        node.inputs, node.input_descs, ports(prototype.inputs, len(node.inputs)), strict=False
    ):
        if desc.unfed != (not source):
            yield f"input {name} is {'not ' if source else ''}given, unlike in its description"
        if not source and port.kind == "input":
            yield f"input {name} is required"
    yield from _check_attributes(prototype, node)


def _check_ports(what: str, declared: tuple[Port, ...], descs: tuple[Desc, ...]) -> Iterator[str]:
    expected = ports(declared, len(descs))
    names = [desc.name for desc in descs]
    if names != [name for name, _ in expected]:
        yield f"{what}s {names}, the prototype has {[name for name, _ in expected]}"
        return
    for desc, (name, port) in zip(descs, expected, strict=True):
        if not desc.unfed and not port.takes(desc.dtype):
            allowed = " ".join(sorted(port.types or ()))
            yield f"{what} {name} is {str(desc.dtype).removeprefix('torch.')}, allowed: {allowed}"


def _check_attributes(prototype: Prototype, node: Node) -> Iterator[str]:
    for name, declared in prototype.attributes.items():
        if declared.required and name not in node.attrs:
            yield f"attribute {name} is required"
    for name, attr in node.attrs.items():
        if name.startswith("_"):  # an annotation of the framework
            continue
        if name not in prototype.attributes:
            yield f"there is no attribute {name}"
        elif attr.kind != prototype.attributes[name].kind:
            yield f"attribute {name} is {attr.kind}, not {prototype.attributes[name].kind}"
