# SPDX-License-Identifier: Apache-2.0
"""Which arguments a call writes: by its schema, `out=`, autograd's count, or their values."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from op_tools.core import op_names
from op_tools.core.call import Call, tensors
from op_tools.tensors.snapshot import sample

# Autograd counts no write of these functions, and a sample would be read before the write.
COLLECTIVES = frozenset(
    f"torch.distributed.distributed_c10d.{word}" for word in ("all_reduce", "broadcast")
)

Mark = int | bytes | None  # changes with a write: autograd's count, or a few elements


def marks(call: Call, arguments: list[Tensor]) -> list[Mark]:
    """The marks of the arguments before the call, for `written`."""
    if call.operator in op_names.UNCOUNTED:
        return [sample(tensor) for tensor in arguments]
    return [None if tensor.is_inference() else tensor._version for tensor in arguments]


def written(call: Call, arguments: list[Tensor], before: list[Mark]) -> dict[int, Tensor]:
    """The arguments that the call has written, by their places."""
    by_schema = declared(call)
    result = {}
    for at, (tensor, mark) in enumerate(zip(arguments, before, strict=True)):
        if mark is None:  # the writes of an inference tensor are not counted
            changed = "out" in call.kwargs or op_names.sounds_in_place(call.name)
        else:
            changed = (tensor._version if type(mark) is int else sample(tensor)) != mark
        if call.name in COLLECTIVES:
            asynchronous = call.kwargs.get("async_op") or call.args[3:4] == (True,)
            changed = at == 0 and not asynchronous
        if changed or id(tensor) in by_schema:
            result[at] = tensor
    return result


def unreturned(changed: dict[int, Tensor], results: list[Tensor]) -> dict[int, Tensor]:
    """The written arguments that are not among the results of the call."""
    returned = set(map(id, results))
    return {at: tensor for at, tensor in changed.items() if id(tensor) not in returned}


def may_write(call: Call) -> bool:
    """Whether a call may write its arguments. Hot path."""
    if "out" in call.kwargs or op_names.may_write(call.name):
        return True
    # `inplace`, by place or by name
    return any(value is True for value in (*call.args, *call.kwargs.values()))


# What a tool that substitutes a call has to know before the call.


def declared(call: Call) -> frozenset[int]:
    """The ids of the arguments that a call declares as written: by its schema or as `out=`."""
    result = written_by_schema(call)
    if call.level == "api" and _is_native(call.func):
        for overload in _overloads(op_names.last(call.name)):
            result += _marked(overload, call)
        if not result and op_names.sounds_in_place(call.name):
            result += tensors(call.args[:1])
    result += tensors(call.kwargs.get("out"))
    return frozenset(map(id, result))


@cache
def is_counted(word: str) -> bool:
    """Whether autograd's count reports every argument that an operator of torch writes.

    The count of a fused optimizer's tensors does not change.
    """
    marked = [a.is_write for one in _overloads(word) for a in one._schema.arguments[1:]]
    return word not in op_names.UNCOUNTED and not any(marked)


def may_write_unseen(call: Call) -> bool:
    """Whether a call may write arguments that neither `declared` nor autograd's count reports. The
    values of the arguments have to be compared.
    """
    if op_names.last(call.name) in op_names.UNCOUNTED:
        return True
    if isinstance(call.func, OpOverload):  # a library's own operator may declare too little
        return call.func.namespace != "aten" and not call.func._schema.is_mutable
    if call.level != "api" or not call.name.startswith("torch."):
        return True
    if _is_native(call.func):
        return False
    # Python code of torch, by way of operators that autograd counts, where it counts
    return call.name.startswith("torch.distributed.") or any(t.is_inference() for t in call.inputs)


def written_by_schema(call: Call) -> list[Tensor]:
    """The arguments that an aten operator declares as written; none of any other function."""
    return _marked(call.func, call) if isinstance(call.func, OpOverload) else []


def _marked(overload: OpOverload, call: Call) -> list[Tensor]:
    """The arguments of a call that an operator's schema marks as written."""
    arguments = overload._schema.arguments
    if not overload._schema.is_mutable:
        return []
    values = dict(zip((a.name for a in arguments), call.args, strict=False)) | call.kwargs
    return list(tensors([values.get(a.name) for a in arguments if a.is_write]))


@cache
def _overloads(word: str) -> tuple[OpOverload, ...]:
    """The aten operators of a name that write an argument other than `out=`."""
    packet = getattr(torch.ops.aten, word, None)
    if not isinstance(packet, OpOverloadPacket):  # also an attribute of the namespace: `__eq__`
        return ()
    # else lists are those of TorchScript: aten::sort.int(int[](a!) self)
    lists = op_names.sounds_in_place(word)

    def writes(overload: Any) -> bool:
        if not isinstance(overload, OpOverload):
            return False
        arguments = overload._schema.arguments
        types = [str(a.type) for a in arguments if a.is_write]
        return not any(a.is_out for a in arguments) and any(
            kind in ("Tensor", "Optional[Tensor]") or lists for kind in types
        )

    return tuple(filter(writes, (getattr(packet, name) for name in packet.overloads())))


def _is_native(func: Any) -> bool:
    """Whether a function is one of torch's own that is not written in Python."""
    return isinstance(func, _NATIVE)


_NATIVE = (type(torch.add), type(torch.Tensor.add_), type(torch.Tensor.__setitem__))
