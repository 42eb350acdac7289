"""Which of its arguments a call has written: by autograd's count, by its schema, or by a look."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from torch import Tensor

from op_tools import names
from op_tools.call import Call, tensors
from op_tools.snapshot import sample

# They write running statistics of which autograd counts no write.
UNCOUNTED = frozenset(
    """
    batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
    _native_batch_norm_legit _batch_norm_with_update _batch_norm_impl_index
    """.split()
)

# Of torch.distributed: autograd counts no write of them, and looks would be at what waits.
COLLECTIVES = frozenset(
    f"torch.distributed.distributed_c10d.{word}" for word in ("all_reduce", "broadcast")
)

Mark = int | bytes | None  # by which a write is seen: a count of them, or a few elements


def marks(call: Call, given: list[Tensor]) -> list[Mark]:
    """To be taken before the call."""
    if call.operator in UNCOUNTED:
        return [sample(tensor) for tensor in given]
    return [None if tensor.is_inference() else tensor._version for tensor in given]


def written(call: Call, given: list[Tensor], before: list[Mark]) -> dict[int, Tensor]:
    """The arguments that the call has written, by their place."""
    schema = getattr(call.func, "_schema", None) if call.level == "aten" else None
    declared = _declared(call, schema) if schema is not None and schema.is_mutable else ()
    if schema is None and call.operator.startswith("_foreach_") and _writes(call):
        declared = frozenset(map(id, tensors(call.args[:1])))  # a device may count none of them
    found = {}
    for at, (tensor, mark) in enumerate(zip(given, before, strict=True)):
        if mark is None:  # nothing counts the writes of an inference tensor
            changed = _writes(call)
        else:
            changed = (tensor._version if type(mark) is int else sample(tensor)) != mark
        if call.name in COLLECTIVES:
            changed = at == 0 and not _is_asynchronous(call)
        if changed or (declared and id(tensor) in declared):
            found[at] = tensor
    return found


def may_write(call: Call) -> bool:
    """Whether a call may write its arguments. Hot path."""
    if "out" in call.kwargs or may_write_by_name(call.name):
        return True
    # `inplace`, by place or by name
    return any(value is True for value in (*call.args, *call.kwargs.values()))


@cache
def may_write_by_name(name: str) -> bool:
    """The same, of a function; nothing is known of those that are not torch's own."""
    ours = name.startswith("torch.") and not name.startswith(("torch.ops.", "torch.distributed."))
    return not ours or names.last(name) in UNCOUNTED or bool(_IN_PLACE.fullmatch(names.last(name)))


@cache
def is_in_place(word: str) -> bool:
    """Whether a name is that of an operator that writes what it is given first."""
    return bool(_IN_PLACE.fullmatch(word))


_IN_PLACE = re.compile(r"\w*[^_]_|__setitem__|__i\w+__")


def _is_asynchronous(call: Call) -> bool:
    """Whether its result is there only later."""
    return bool(call.kwargs.get("async_op") or call.args[3:4] == (True,))


def _declared(call: Call, schema: Any) -> frozenset[int]:
    """The tensors that a kernel says it writes: below autograd nothing counts that yet."""
    values = dict(zip((arg.name for arg in schema.arguments), call.args, strict=False))
    values.update(call.kwargs)
    written = [arg for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    return frozenset(id(tensor) for arg in written for tensor in tensors(values.get(arg.name)))


def _writes(call: Call) -> bool:
    word = call.name.rsplit(".", 1)[-1]
    return "out" in call.kwargs or word == "__setitem__" or (word[-1:] == "_" != word[-2:-1])
