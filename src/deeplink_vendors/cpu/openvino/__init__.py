"""OpenVINO as a backend of torch.compile: `torch.compile(model, backend="openvinograph")`.

It reads the same ONNX as the other compiler of this folder. Loads without the compiler, and says
then what is missing.
"""

from __future__ import annotations

from torch import Tensor

from deeplink_vendors.cpu.onnx.emitter import OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.passes import tidy
from deeplink_vendors.cpu.onnx.support import KEPT, apart
from deeplink_vendors.cpu.openvino.conversions import conversions, supports
from deeplink_vendors.cpu.packages import version_of
from dicp.backend import Backend, Executable, Loading


class OpenvinoEmitter(OnnxEmitter):
    """Weights are inputs of the model; they become constants on torch's memory, when it is read."""

    def constant(self, name: str, tensor: Tensor) -> Value:
        value = Value(name, tensor, tensor.dtype)
        self._inputs.append(self._known(name, value))
        return value


def load(blob: bytes, loading: Loading) -> Executable:
    """A compiled model that runs on torch's own memory."""
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
    apart=apart,
    passes=(tidy,),
    dynamic="native",
)
