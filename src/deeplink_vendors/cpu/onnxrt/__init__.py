# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime as a backend of torch.compile: `torch.compile(model, backend="onnxrtgraph")`.

The module can be imported without the compiler, and then reports what is missing.
"""

from __future__ import annotations

from deeplink_vendors.cpu.onnx.emitter import OnnxEmitter
from deeplink_vendors.cpu.onnx.passes import tidy
from deeplink_vendors.cpu.onnx.support import KEPT, supports
from deeplink_vendors.cpu.onnxrt.conversions import conversions
from deeplink_vendors.cpu.packages import version_of
from dicp.apart import of_dlinfer
from dicp.backend import Executable, Loading
from dicp.entry import Backend


def load(blob: bytes, loading: Loading) -> Executable:
    """Create a session that runs a model on torch's own memory."""
    from deeplink_vendors.cpu.onnxrt.session import Session  # imports onnxruntime

    return Session(blob, loading)


backend = Backend(
    name="onnxrtgraph",
    version=version_of("onnxruntime", "onnxruntime", "onnx"),
    conversions=conversions,
    emitter=OnnxEmitter,
    load=load,
    supports=supports(),
    keep=KEPT,
    apart=of_dlinfer(),
    passes=(tidy,),
    dynamic="native",
    through_host=True,
)
