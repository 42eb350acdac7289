# SPDX-License-Identifier: Apache-2.0
"""A captured call as plain values, for both file formats: nothing in a file can run.

Values that neither JSON nor a weights-only `torch.load` knows are written as
`{"__op_tools__": kind, "value": …}`; `decode` turns them back.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from op_tools.core import op_names
from op_tools.core.call import tensors
from op_tools.tensors import snapshot

TAG = "__op_tools__"
PARTS = ("input", "output", "grad_inputs", "grad_outputs")
Header = dict[str, Any]  # of a call: id, name, time, level, step, module, site, autocast, …


@dataclass(frozen=True)
class Part:
    """One of the four parts of a captured call, encoded, with snapshots in the place of tensors."""

    kind: str  # one of PARTS
    header: Header
    args: Any
    kwargs: Any
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """A captured call, decoded. Tensors are on the CPU; `devices` are the devices they were on.

    The lists of gradients have an item for each tensor among the arguments or the results, None if
    autograd computed no gradient. Both lists are None if no backward pass was captured.
    """

    header: Header
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    devices: list[str]  # of the tensors among args and kwargs, in order
    output: Any = None
    has_output: bool = False
    mutated: dict[int, Tensor] = field(default_factory=dict)  # place among them -> value after
    written: frozenset[int] = frozenset()  # places that the call wrote, its results among them
    grad_inputs: list[Tensor | None] | None = None
    grad_outputs: list[Tensor | None] | None = None
    complete: bool = True

    @property
    def name(self) -> str:
        return str(self.header["name"])


def recorded(header: Header, parts: Mapping[str, Mapping[str, Any]]) -> Recorded:
    """Build a captured call from its decoded parts, by kind; the input is always one of them."""
    inputs, output = parts["input"], parts.get("output", {})
    args, kwargs = tuple(inputs["args"]), dict(inputs["kwargs"])
    gradients = {kind: list(parts[kind]["args"]) for kind in PARTS[2:] if kind in parts}
    count = sum(1 for _ in tensors(args, kwargs))
    return Recorded(
        header,
        args,
        kwargs,
        list(header.get("devices") or [str(header.get("device") or "")] * count),
        output["args"][0] if output else None,
        bool(output),
        {int(place): value for place, value in output.get("mutated", {}).items()},
        frozenset(output.get("written", ())),
        gradients.get("grad_inputs"),
        gradients.get("grad_outputs"),
        bool(parts.get("grad_inputs", {}).get("complete", True)),
    )


class Opaque(str):
    """The text of a value that cannot be encoded."""

    __slots__ = ()


class Device(str):
    """The name of a device that this process does not have, such as "npu:0"."""

    __slots__ = ()

    def __new__(
        cls, kind: str, index: int | None = None
    ) -> Device:  # the arguments of torch.device
        return super().__new__(cls, kind if index is None else f"{kind}:{index}")


def device_type(device: str | int | torch.device) -> str:
    """The type of a device: "npu" of "npu:0". The device need not exist in this process."""
    return str(device).partition(":")[0]


def _device(name: str) -> torch.device | Device:
    try:
        return torch.device(name)
    except RuntimeError:  # captured on another machine
        return Device(name)


class Drawing:
    """A generator of random numbers: its device and its state before the call."""

    def __init__(self, device: str, state: Tensor) -> None:
        self.device = device
        self.state = state


# Plain values of torch and Python: kind, type, conversion to a plain value, and back.

_VALUES: tuple[tuple[str, type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    ("complex", complex, lambda v: [v.real, v.imag], lambda v: complex(*v)),
    ("dtype", torch.dtype, lambda v: _word(v), lambda v: _of_torch(v, torch.dtype)),
    ("device", torch.device, str, _device),
    ("layout", torch.layout, lambda v: _word(v), lambda v: _of_torch(v, torch.layout)),
    (
        "memory_format",
        torch.memory_format,
        lambda v: _word(v),
        lambda v: _of_torch(v, torch.memory_format),
    ),
    ("size", torch.Size, list, torch.Size),
    ("ellipsis", type(...), lambda v: None, lambda v: ...),
    ("range", range, lambda v: [v.start, v.stop, v.step], lambda v: range(*v)),
    ("bytes", bytes, lambda v: v.hex(), bytes.fromhex),
)
_DECODERS = {kind: back for kind, _, _, back in _VALUES}
# Types that a weights-only torch.load reads. It cannot read a torch.device of another machine.
_NATIVE = (complex, bytes, torch.dtype, torch.Size, torch.layout)


def _word(value: object) -> str:
    return str(value).removeprefix("torch.")


def _of_torch(word: str, kind: type) -> Any:
    value = getattr(torch, word, None)
    if not isinstance(value, kind):
        raise ValueError(f"torch has no {kind.__name__} {word!r}")
    return value


def encode(value: Any, leaf: Callable[[Tensor], Any], native: bool = False) -> Any:
    """Convert a value to a plain structure, with `leaf(tensor)` in the place of each tensor.

    `native` keeps what a weights-only `torch.load` reads on any machine: tuples, dtypes, ….
    """

    def walk(item: Any) -> Any:
        return encode(item, leaf, native)

    if isinstance(value, Tensor):
        return _tensor(value, leaf, walk)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if native and isinstance(value, _NATIVE):
        return value
    for kind, of, plain, _ in _VALUES:
        if isinstance(value, of):
            return _tagged(kind, plain(value))
    if isinstance(value, tuple):
        return _tuple(value, walk, native)
    if isinstance(value, list):
        return [walk(item) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and TAG not in value:
            return {key: walk(item) for key, item in value.items()}
        return _tagged("dict", [[walk(key), walk(item)] for key, item in value.items()])
    if isinstance(value, slice):
        return _tagged("slice", [walk(p) for p in (value.start, value.stop, value.step)])
    own = type(value)
    if dataclasses.is_dataclass(own) and own.__module__.startswith("torch."):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(own) if f.init}
        return _tagged("dataclass", [own.__module__, own.__qualname__, walk(parts)])
    return _rest(value, leaf)


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: kind, "value": value}


def _tensor(value: Tensor, leaf: Callable[[Tensor], Any], walk: Callable[[Any], Any]) -> Any:
    if value.layout is torch.strided and not value.is_nested:  # hot path
        return leaf(value)
    if value.layout == torch.sparse_coo:
        parts = [value._indices(), value._values()]
        return _tagged("sparse_coo", [*map(walk, parts), list(value.shape), value.is_coalesced()])
    if value.layout in _COMPRESSED:
        parts = [getattr(value, name)() for name in (*_COMPRESSED[value.layout], "values")]
        return _tagged("sparse", [_word(value.layout), *map(walk, parts), list(value.shape)])
    if value.is_nested and value.layout == torch.strided:
        return _tagged("nested", [walk(part) for part in value.unbind()])
    return leaf(value)


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def _tuple(value: tuple[Any, ...], walk: Callable[[Any], Any], native: bool) -> Any:
    items, kind = [walk(item) for item in value], type(value)
    if kind.__module__ == "torch.return_types":
        return _tagged("return_type", [kind.__name__, items])
    if hasattr(kind, "_fields"):
        return _tagged("namedtuple", [kind.__name__, list(kind._fields), items])
    return tuple(items) if native else _tagged("tuple", items)


def _rest(value: Any, leaf: Callable[[Tensor], Any]) -> Any:
    for plain, kinds in ((int, (int, torch.SymInt)), (float, (float, torch.SymFloat)), (str, str)):
        if isinstance(value, kinds):  # also of a subclass: an enum, for example
            return plain(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return _tagged("ndarray", leaf(torch.from_numpy(np.ascontiguousarray(value))))
    if isinstance(value, torch.Generator):
        state = leaf(value.get_state())
        return _tagged("generator", [str(value.device), state])
    if callable(value) and op_names.name_of(value) in op_names.known():
        return _tagged("function", op_names.name_of(value))
    return _tagged("opaque", repr(value)[:200])


def decode(value: Any, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """Decode a value of `encode`. `leaf` makes a tensor of the description of kind "tensor"."""

    def walk(item: Any) -> Any:
        return decode(item, leaf)

    if isinstance(value, dict):
        if TAG not in value:
            return {key: walk(item) for key, item in value.items()}
        kind, inner = value[TAG], value.get("value")
        if kind == "tensor":
            return leaf(inner)
        if kind in _DECODERS:
            return _DECODERS[kind](inner)
        if kind in _MAKERS:
            return _MAKERS[kind](walk(inner))
        raise ValueError(f"a value of the unknown kind {kind!r}")
    if type(value) is list:
        return [walk(item) for item in value]
    if type(value) is tuple:
        return tuple(walk(item) for item in value)
    return value


def _return_type(parts: list[Any]) -> Any:
    kind = getattr(torch.return_types, parts[0], None)
    return kind(parts[1]) if isinstance(kind, type) else tuple(parts[1])


def _namedtuple(parts: list[Any]) -> Any:
    name, fields, items = parts
    if not all(re.fullmatch(r"[A-Za-z]\w*", word) for word in (name, *fields)):
        raise ValueError(f"{name!r} is no name of a tuple")
    return collections.namedtuple(name, fields)(*items)


def _dataclass(parts: list[Any]) -> Any:
    """Build a dataclass of options that torch defines; other classes are never built."""
    module, name, fields = parts
    kind = getattr(sys.modules.get(module), name, None) if module.startswith("torch.") else None
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        return Opaque(f"{module}.{name}({fields})")
    return kind(**fields)


def _sparse(parts: list[Any]) -> Any:
    name, compressed, plain, values, shape = parts
    layout = _of_torch(name, torch.layout)
    with _unchecked():
        return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout)


def _sparse_coo(parts: list[Any]) -> Any:
    indices, values, shape, coalesced = parts
    with _unchecked():
        return torch.sparse_coo_tensor(indices, values, shape)._coalesced_(coalesced)


def _unchecked() -> Any:
    """Switch off torch's check of sparse tensors; torch 2.11 warns of `check_invariants=False`."""
    return torch.sparse.check_sparse_tensor_invariants(False)


def _function(name: str) -> Any:
    if name not in op_names.known():
        raise ValueError(f"{name!r} is no function of torch's")
    return op_names.resolve(name)


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "slice": lambda parts: slice(*parts),
    "dict": lambda pairs: {key: item for key, item in pairs},  # noqa: C416 - pairs are lists
    "return_type": _return_type,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "sparse": _sparse,
    "sparse_coo": _sparse_coo,
    "nested": lambda parts: torch.nested.nested_tensor(parts),
    "ndarray": lambda tensor: tensor.numpy(),
    "generator": lambda parts: Drawing(*parts),
    "function": _function,
    "opaque": Opaque,
    "strided": lambda parts: snapshot.rebuild(parts[0], tuple(parts[1]), tuple(parts[2])),
}
