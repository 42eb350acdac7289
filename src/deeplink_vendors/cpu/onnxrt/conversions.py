# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's own operators in addition to standard ONNX, which are faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import Convert, computing, fake
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.nodes import MICROSOFT, Node
from deeplink_vendors.cpu.onnx.support import table

conversions = table()
fused = torch.ops.dicp


def _own(target: Any) -> Callable[[Convert], Convert]:
    def register(function: Convert) -> Convert:
        conversions.register_conversion(target)(computing(function))
        return function

    return register


@_own(fused.rms_norm.default)
def rms_norm(e: OnnxEmitter, node: fx.Node, x: Value, w: Value, eps: float) -> Name:
    added = _sum(e, node.args[0], x)
    if added is None:
        return e.op("SimplifiedLayerNormalization", x, w, axis=-1, epsilon=eps, stash_type=1)
    kind = "SkipSimplifiedLayerNormalization"
    outputs = (e.new(), "", "", x.name)
    return e.put(Node(kind, [*added.inputs, w.name], outputs, MICROSOFT, {"epsilon": eps}))


def _sum(e: OnnxEmitter, node: Any, x: Value) -> Node | None:
    """Return the sum of two tensors of equal shape that a norm reads:
    one operator computes both.
    """
    if node.target is not torch.ops.aten.add.Tensor or x.rank not in (2, 3):
        return None
    shapes = {str(list(fake(term).shape)) for term in node.args if isinstance(term, fx.Node)}
    if len(node.args) != 2 or node.kwargs or shapes != {str(x.shape)}:
        return None
    return e.remove("Add", x.name)
