# SPDX-License-Identifier: Apache-2.0
"""GE's graph as records: nodes, tensor descriptions, attributes;
conversion to and from GraphDef.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deeplink.tensors import bytes_of
from deeplink_vendors.ascend.graph.wire import Message, decode, encode

# GE has two numberings of types: one in GraphDef, another in attributes such as Cast's dst_type
DESCRIBED = {
    torch.float32: 1, torch.float16: 2, torch.int8: 3, torch.uint8: 4, torch.int16: 5,
    torch.int32: 7, torch.int64: 8, torch.bool: 11, torch.float64: 12, torch.bfloat16: 27,
}  # fmt: skip
AS_ATTRIBUTE = {
    torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.uint8: 4,
    torch.int16: 6, torch.int64: 9, torch.float64: 11, torch.bool: 12, torch.bfloat16: 27,
}  # fmt: skip
FROM_DESCRIBED = {number: dtype for dtype, number in DESCRIBED.items()}
FROM_ATTRIBUTE = {number: dtype for dtype, number in AS_ATTRIBUTE.items()}

# kind of attribute, as in the prototypes -> member of AttrDef
MEMBERS = {
    "Int": "i", "Float": "f", "Bool": "b", "String": "s", "Type": "dt", "Tensor": "t",
    "ListInt": "list.i", "ListFloat": "list.f", "ListBool": "list.b", "ListString": "list.s",
    "ListListInt": "list_list_int",
}  # fmt: skip
KINDS = {member: kind for kind, member in MEMBERS.items()}
LIST_TYPES = {"list.s": 1, "list.i": 2, "list.f": 3, "list.b": 4}
UNFED = "_is_unfed_optional"


@dataclass(frozen=True)
class Attr:
    """The value of an attribute; its kind is a name of the prototypes, as Int or ListInt."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Desc:
    """A tensor at a node's input or output; -1 in the shape: known at run time."""

    name: str
    dtype: torch.dtype | None
    shape: tuple[int, ...] = ()
    layout: str = "ND"
    unfed: bool = False


@dataclass(frozen=True)
class Node:
    """One operator; an input is `name:index` of its source, or empty: not given."""

    name: str
    type: str
    inputs: tuple[str, ...]
    input_descs: tuple[Desc, ...]
    output_descs: tuple[Desc, ...]
    attrs: dict[str, Attr] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in an order of execution; the last one is NetOutput."""

    name: str
    nodes: tuple[Node, ...]

    def to_bytes(self) -> bytes:
        return encode("GraphDef", {"name": self.name, "op": [_op(node) for node in self.nodes]})

    @staticmethod
    def from_bytes(data: bytes) -> Graph:
        message = decode("GraphDef", data)
        return Graph(message.get("name", ""), tuple(_node(op) for op in message["op"]))


def _op(node: Node) -> Message:
    return {
        "name": node.name,
        "type": node.type,
        "input": list(node.inputs),
        "attr": {name: _attr_message(attr) for name, attr in node.attrs.items()},
        "input_desc": [_desc_message(desc) for desc in node.input_descs],
        "output_desc": [_desc_message(desc) for desc in node.output_descs],
    }


def _node(op: Message) -> Node:
    return Node(
        op.get("name", ""),
        op.get("type", ""),
        tuple(op["input"]),
        tuple(_desc(message) for message in op["input_desc"]),
        tuple(_desc(message) for message in op["output_desc"]),
        {name: _attr(message) for name, message in op["attr"].items() if message},
    )


def _desc_message(desc: Desc) -> Message:
    unfed = {UNFED: {"i": 1}} if desc.unfed else {}
    return {
        "name": desc.name,
        "dtype": DESCRIBED[desc.dtype] if desc.dtype is not None else 0,
        "shape": {"dim": list(desc.shape)},
        "layout": desc.layout,
        "attr": unfed,
    }


def _desc(message: Message) -> Desc:
    return Desc(
        message.get("name", ""),
        FROM_DESCRIBED.get(message.get("dtype", 0)),
        tuple(message.get("shape", {"dim": []})["dim"]),
        message.get("layout", ""),
        UNFED in message["attr"],
    )


def _attr_message(attr: Attr) -> Message:
    member, value = MEMBERS[attr.kind], attr.value
    if member == "t":
        return {"t": _tensor_message(value)}
    if member == "s":
        return {"s": value.encode()}
    if member == "list_list_int":
        return {member: {"list_list_i": [{"list_i": list(part)} for part in value]}}
    if member.startswith("list."):
        items = [item.encode() if isinstance(item, str) else item for item in value]
        return {"list": {member[5:]: items, "val_type": LIST_TYPES[member]}}
    return {member: value}


def _attr(message: Message) -> Attr:
    (member, value), *_ = ((name, value) for name, value in message.items() if value is not None)
    if member == "list":
        member = next((f"list.{name}" for name in "sifb" if value[name]), "list.i")
        items = value[member[5:]]
        convert: Any = {"list.s": bytes.decode, "list.b": bool}.get(member, lambda item: item)
        return Attr(KINDS[member], [convert(item) for item in items])
    if member == "list_list_int":
        return Attr(KINDS[member], [list(part["list_i"]) for part in value["list_list_i"]])
    if member == "t":
        return Attr("Tensor", _tensor(value))
    if member == "s":
        return Attr("String", value.decode())
    return Attr(KINDS[member], bool(value) if member == "b" else value)


def _tensor_message(tensor: Tensor) -> Message:
    data = bytes_of(tensor)
    desc = _desc_message(Desc("", tensor.dtype, tuple(tensor.shape)))
    return {"desc": desc, "data": data}


def _tensor(message: Message) -> Tensor:
    desc = _desc(message["desc"])
    assert desc.dtype is not None
    data = bytearray(message.get("data", b""))
    if not data:
        return torch.empty(desc.shape, dtype=desc.dtype)
    return torch.frombuffer(data, dtype=desc.dtype).reshape(desc.shape)
