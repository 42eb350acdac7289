"""Indices that an operator returns: where values are equal, any choice among them is right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from deeplink.judge import same_choice
from op_tools import names
from op_tools.call import Call, tensors

# Of operators that give indices: where the dimension is among the arguments, its default, and
# whether an element may be chosen once only.
INDICES: dict[str, tuple[int, int | None, bool]] = {
    "argmax": (1, None, False),
    "argmin": (1, None, False),
    "max": (1, None, False),
    "min": (1, None, False),
    "median": (1, None, False),
    "nanmedian": (1, None, False),
    "mode": (1, -1, False),
    "kthvalue": (2, -1, False),
    "topk": (2, -1, True),
    "sort": (1, -1, True),
    "argsort": (1, -1, True),
    "cummax": (1, None, False),
    "cummin": (1, None, False),
}
_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool")


def are_equal(call: Call, mine: Tensor, theirs: Tensor) -> bool:
    """Whether indices differ only among equal values, where any of them is right."""
    word = names.last(call.name)
    values = next(tensors(call.args, call.kwargs), None)
    if values is None or mine.dtype != torch.int64:
        return False
    if word.startswith(_POOLS):
        spatial = next(d for d in (1, 2, 3) if f"{d}d" in word)
        flat = values.flatten(-spatial)
        return same_choice(flat, mine.flatten(-spatial), theirs.flatten(-spatial), -1)
    if word not in INDICES:
        return False
    place, default, distinct = INDICES[word]
    dim = call.kwargs.get("dim", _positional(call, place, default))
    if dim is not None and not isinstance(dim, int):
        return False
    return same_choice(values, mine, theirs, dim, distinct)


def _positional(call: Call, place: int, default: int | None) -> Any:
    if isinstance(call.func, OpOverload):
        named = [a.name for a in call.func._schema.arguments]
        place = named.index("dim") if "dim" in named else place
    return call.args[place] if len(call.args) > place else default
