# SPDX-License-Identifier: Apache-2.0
"""Samples of functions that torch splits into several ops, as calls of the op itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diopi.conformance.cases.sample import Sample
from diopi.op import Op, signature
from diopi.schema import PLACEMENT, RENAMED

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}  # the op takes the number
# arguments that locate a tensor, and whether a function of torch omits a result of the op
DROPPED = PLACEMENT | {"return_indices"}


@cache
def split(op: Op) -> bool:
    """Whether the function of torch never calls the op: it calls several ops, or none."""
    if not op.aten:
        return True
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.aten[0], "CompositeImplicitAutograd")


def bound(op: Op, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Convert the samples whose arguments the op takes, by its own names and without gradients."""
    takes = signature(op)
    for sample in samples:
        named = {RENAMED.get(name, name): value for name, value in sample.kwargs.items()}
        named = {name: value for name, value in named.items() if name not in DROPPED}
        try:
            given = takes.bind(*sample.args, **named)
        except TypeError:  # another overload
            continue
        given.arguments.update(_numbered(given.arguments))
        made = pytree.tree_map_only(Tensor, lambda t: t.detach(), (given.args, given.kwargs))
        yield Sample(tuple(made[0]), dict(made[1]))


def _numbered(arguments: dict[str, Any]) -> dict[str, int]:
    word = arguments.get("reduction")
    return {"reduction": REDUCTIONS[word]} if word in REDUCTIONS else {}
