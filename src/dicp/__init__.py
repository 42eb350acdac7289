# SPDX-License-Identifier: Apache-2.0
"""torch.compile on any vendor's graph compiler: `torch.compile(model, backend="onnxrtgraph")`."""

from dicp import fused
from dicp.backend import Executable, GraphCompiler, Loading, find
from dicp.conversion import Conversions
from dicp.emitter import Emitter
from dicp.entry import Backend

__all__ = [
    "Backend",
    "Conversions",
    "Emitter",
    "Executable",
    "GraphCompiler",
    "Loading",
    "find",
    "fused",
]
