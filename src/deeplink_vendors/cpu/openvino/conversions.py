# SPDX-License-Identifier: Apache-2.0
"""Calls that OpenVINO's reader of ONNX does not compute exactly enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import REASONS, Reason
from deeplink_vendors.cpu.onnx.support import TYPES, table
from deeplink_vendors.cpu.onnx.support import supports as onnx_supports

aten = torch.ops.aten
conversions = table()


def _rounded(node: fx.Node) -> str | None:
    if not node.meta["val"].dtype.is_floating_point:
        return None
    return "OpenVINO computes the remainder from a rounded quotient"


def _near_zero(node: fx.Node) -> str | None:
    return "OpenVINO's erf is off by 1e-4 of its value near zero"


def _changing_window(node: fx.Node) -> str | None:
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    if all(isinstance(size, int) for size in weight.meta["val"].shape):
        return REASONS[node.target](node) if node.target in REASONS else None
    return "OpenVINO's convolution takes no weight whose sizes change"


OWN: dict[Any, Reason] = {
    aten.convolution.default: _changing_window,
    torch.ops.dicp.conv.default: _changing_window,
    aten.erf.default: _near_zero,
    aten.fmod.Tensor: _rounded,
    aten.fmod.Scalar: _rounded,
    aten.remainder.Tensor: _rounded,
    aten.remainder.Scalar: _rounded,
}
supports = onnx_supports(TYPES, OWN)
