# SPDX-License-Identifier: Apache-2.0
"""The kind of most of a graph's work, from its multiplications with weights."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from dicp import torch_internals

PRODUCTS, CONVOLUTIONS = "products with weights", "convolutions"
KINDS: dict[Any, str] = {
    F.linear: PRODUCTS,
    torch.conv1d: CONVOLUTIONS,
    torch.conv2d: CONVOLUTIONS,
    torch.conv3d: CONVOLUTIONS,
}


def of(gm: fx.GraphModule) -> str:
    """Return the kind of most multiplications of dynamo's graph, of those in float32, for which
    backends were measured; "" where there are none.
    """
    found: Counter[str] = Counter()
    for target, kind in KINDS.items():
        for node in gm.graph.find_nodes(op="call_function", target=target):
            found[kind] += _multiplications(node)
    return max(found, key=found.__getitem__) if found.total() else ""


def _multiplications(node: fx.Node) -> int:
    made = node.meta.get("example_value")
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    weight = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    if not isinstance(made, Tensor) or not isinstance(weight, Tensor):
        return 0
    if weight.dtype != torch.float32 or made.dtype != torch.float32:
        return 0
    sizes = [torch_internals.hint(size) for size in (*made.shape, *weight.shape[1:])]
    return math.prod(1 if size is None else int(size) for size in sizes)
