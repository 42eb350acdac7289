# SPDX-License-Identifier: Apache-2.0
"""The decomposed overloads: torch's core ATen table, without those that a backend keeps."""

from __future__ import annotations

from typing import Any

import torch

from dicp import torch_internals
from dicp.backend import GraphCompiler

aten = torch.ops.aten

# Ops by which fused ops are recognised: they must reach `canonical` and `rewrite` undecomposed.
RECOGNISED: dict[str, tuple[Any, ...]] = {
    "layer_norm": (aten.native_layer_norm.default,),
    "batch_norm": (
        aten._native_batch_norm_legit_no_training.default,
        aten.cudnn_batch_norm.default,
    ),
    "sdpa": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ),
    "swiglu": (aten.silu.default,),
    "linear": (aten.addmm.default, aten.gelu.default, aten.silu.default),
}
PLAIN = (aten.t.default, aten.transpose.int)  # `canonical` gives these one form


def table(backend: GraphCompiler) -> dict[Any, Any]:
    """Return the decompositions for a backend's graphs."""
    kept = set(PLAIN) | backend.keep
    for fused, overloads in RECOGNISED.items():
        if backend.wants(fused):
            kept.update(overloads)
    known = {**torch_internals.decompositions(), **backend.apart()}
    return {op: rule for op, rule in known.items() if op not in kept}
