# SPDX-License-Identifier: Apache-2.0
"""The wire form of GE's GraphDef: protocol buffers, written and read by a table of its fields.

A message is a plain dict without fields that have their default value, as in proto3. Fields that
are not in the table are skipped when a message is read. The bytes of equal messages are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

# message -> field number -> (name, type); a type is a scalar's, a message's, `*` repeated, or a map
# from strings to a message, `{…}`. The members of AttrDef are alternatives: zero is written, too.
FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "GraphDef": {
        1: ("name", "string"),
        4: ("input", "string*"),
        5: ("output", "string*"),
        6: ("op", "OpDef*"),
        11: ("attr", "{AttrDef}"),
    },
    "OpDef": {
        1: ("name", "string"),
        2: ("type", "string"),
        5: ("input", "string*"),
        10: ("attr", "{AttrDef}"),
        33: ("input_desc", "TensorDescriptor*"),
        34: ("output_desc", "TensorDescriptor*"),
    },
    "TensorDescriptor": {
        1: ("name", "string"),
        2: ("dtype", "int"),
        3: ("shape", "ShapeDef"),
        4: ("layout", "string"),
        5: ("attr", "{AttrDef}"),
    },
    "ShapeDef": {1: ("dim", "int*")},
    "TensorDef": {1: ("desc", "TensorDescriptor"), 2: ("data", "bytes")},
    "AttrDef": {
        1: ("list", "ListValue"),
        2: ("s", "bytes"),
        3: ("i", "int"),
        4: ("f", "float"),
        5: ("b", "int"),
        12: ("t", "TensorDef"),
        14: ("list_list_int", "ListListInt"),
        15: ("dt", "int"),
    },
    "ListValue": {
        2: ("s", "bytes*"),
        3: ("i", "int*"),
        4: ("f", "float*"),
        5: ("b", "int*"),
        12: ("dt", "int*"),
        20: ("val_type", "int"),
    },
    "ListListInt": {1: ("list_list_i", "ListInt*")},
    "ListInt": {1: ("list_i", "int*")},
}
ALTERNATIVES = {"AttrDef"}
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
WIDTH = {FIXED64: 8, FIXED32: 4}


def encode(kind: str, message: Message) -> bytes:
    """Encode a message, its fields in the order of their numbers."""
    out = bytearray()
    for number, (name, form) in FIELDS[kind].items():
        value = message.get(name)
        if value is None or (kind not in ALTERNATIVES and value in (0, "", b"", [], {})):
            continue
        for payload, wire in _payloads(form, value):
            out += _varint(number << 3 | wire) + payload
    return bytes(out)


def decode(kind: str, data: bytes) -> Message:
    """Decode a message; a missing repeated field is an empty list, a missing map a dict."""
    message: Message = {
        name: {} if form.startswith("{") else []
        for name, form in FIELDS[kind].values()
        if form.startswith("{") or form.endswith("*")
    }
    for number, wire, payload in _read(data):
        if number not in FIELDS[kind]:
            continue
        name, form = FIELDS[kind][number]
        if form.startswith("{"):
            entry = _entry(form[1:-1], payload)
            message[name][entry[0]] = entry[1]
        elif form.endswith("*"):
            message[name] += _unpacked(form[:-1], wire, payload)
        else:
            message[name] = _value(form, payload)
    return message


def _payloads(form: str, value: Any) -> Iterator[tuple[bytes, int]]:
    """Yield what is written for a field: one payload,
    or one for each element that is not packed.
    """
    if form.startswith("{"):
        for key in sorted(value):
            entry = _tagged(1, key.encode()) + _tagged(2, encode(form[1:-1], value[key]))
            yield _sized(entry), LENGTH
    elif form in ("int*", "float*"):
        yield _sized(b"".join(_payload(form[:-1], item)[0] for item in value)), LENGTH
    elif form.endswith("*"):
        for item in value:
            yield _payload(form[:-1], item)
    else:
        yield _payload(form, value)


def _payload(form: str, value: Any) -> tuple[bytes, int]:
    if form == "int":
        return _varint(int(value)), VARINT
    if form == "float":
        return struct.pack("<f", value), FIXED32
    if form == "string":
        return _sized(value.encode()), LENGTH
    if form == "bytes":
        return _sized(value), LENGTH
    return _sized(encode(form, value)), LENGTH


def _value(form: str, payload: bytes | int) -> Any:
    if isinstance(payload, int):
        return payload
    if form == "float":
        return struct.unpack("<f", payload)[0]
    if form == "string":
        return payload.decode()
    return payload if form == "bytes" else decode(form, payload)


def _unpacked(form: str, wire: int, payload: bytes | int) -> list[Any]:
    if wire != LENGTH or isinstance(payload, int) or form not in ("int", "float"):
        return [_value(form, payload)]
    if form == "float":
        return list(struct.unpack(f"<{len(payload) // 4}f", payload))
    values, at = [], 0
    while at < len(payload):
        value, at = _read_varint(payload, at)
        values.append(value)
    return values


def _entry(form: str, payload: bytes | int) -> tuple[str, Message]:
    assert isinstance(payload, bytes)
    key, value = "", b""
    for number, _, part in _read(payload):
        assert isinstance(part, bytes)
        key, value = (part.decode(), value) if number == 1 else (key, part)
    return key, decode(form, value)


def _read(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield number, wire type and payload of each field."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _read_varint(data, at)
            yield number, wire, value
            continue
        size, at = (WIDTH[wire], at) if wire in WIDTH else _read_varint(data, at)
        yield number, wire, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value - (1 << 64) if value >= 1 << 63 else value), at


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers need ten bytes
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _tagged(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | LENGTH) + _sized(data)
