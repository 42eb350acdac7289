"""What ONNX Runtime has beyond standard ONNX: its own operators, which are faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import Convert, computing
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
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
    return e.op("SimplifiedLayerNormalization", x, w, axis=-1, epsilon=eps, stash_type=1)
