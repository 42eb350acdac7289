# SPDX-License-Identifier: Apache-2.0
"""OpenVINO as a backend of torch.compile: `torch.compile(model, backend="openvinograph")`.

It reads the ONNX of this folder. The module can be imported without the compiler, and then reports
what is missing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deeplink_vendors.cpu.onnx.conversion import known
from deeplink_vendors.cpu.onnx.emitter import OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.passes import tidy
from deeplink_vendors.cpu.onnx.support import KEPT
from deeplink_vendors.cpu.openvino.conversions import conversions, supports
from deeplink_vendors.cpu.packages import version_of
from dicp import workload
from dicp.apart import of_dlinfer
from dicp.backend import Executable, Loading
from dicp.entry import Backend

LARGE = 2.0**110  # larger numbers are not rounded: 65537 times their value may overflow


class OpenvinoEmitter(OnnxEmitter):
    """An emitter with weights as inputs, which become constants on torch's memory on loading."""

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Convert the value to another type.

        Where sizes change, OpenVINO (2026.4) rounds to bfloat16 by the last kept bit alone: it
        truncates if that bit is 0. So the number is rounded before, to (x - 65537 x) + 65537 x,
        each step in float32.
        """
        if dtype != torch.bfloat16 or value.dtype == dtype or known(*value.shape):
            return super().cast(value, dtype)
        x = super().cast(value, torch.float32)
        near = self.op("Clip", x, *(self.array(v, torch.float32) for v in (-LARGE, LARGE)))
        far = self.op("Mul", near, self.array(65537.0, torch.float32))
        head = self.op("Add", self.op("Sub", near, far), far)
        rest = self.op("Sub", near, head)
        return super().cast(replace(x, name=self.op("Sub", x, rest)), dtype)

    def constant(self, name: str, tensor: Tensor) -> Value:
        value = Value(name, tensor, tensor.dtype)
        self._inputs.append(self._tensor_info(name, value))
        return value


def load(blob: bytes, loading: Loading) -> Executable:
    """Load a compiled model that runs on torch's own memory."""
    from deeplink_vendors.cpu.openvino.model import Compiled  # imports openvino

    return Compiled(blob, loading)


backend = Backend(
    name="openvinograph",
    version=version_of("openvino", "openvino", "onnx"),
    conversions=conversions,
    emitter=OpenvinoEmitter,
    load=load,
    supports=supports,
    keep=KEPT,
    apart=of_dlinfer(),
    passes=(tidy,),
    dynamic="native",
    through_host=True,
    fastest=frozenset({workload.CONVOLUTIONS}),
)
