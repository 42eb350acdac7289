"""Where OpenVINO's reading of ONNX differs: what it has of its own, and what it lacks."""

from __future__ import annotations

import torch

from deeplink_vendors.cpu.onnx.support import TYPES, table
from deeplink_vendors.cpu.onnx.support import supports as onnx_supports

conversions = table()
supports = onnx_supports(TYPES)
fused = torch.ops.dicp
