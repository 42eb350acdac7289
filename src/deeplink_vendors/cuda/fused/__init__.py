# SPDX-License-Identifier: Apache-2.0
"""Fused kernels of NVIDIA's devices, in Triton: float32, bfloat16 and float16.

They never synchronize with the device, so that a CUDA graph can contain them.
"""

from deeplink_vendors.cuda.fused.attention import (
    dense_attention,
    paged_decode_attention,
    paged_prefill_attention,
    prefill_attention,
)
from deeplink_vendors.cuda.fused.products import (
    fused_moe,
    linear,
    linear_w8a8,
    moe_gating,
    weight_quant_matmul,
)
from deeplink_vendors.cuda.fused.tokens import (
    add_rms_norm,
    add_rms_norm_w8a8,
    dynamic_quant,
    fill_kv_cache,
    gelu_and_mul,
    rms_norm,
    rms_norm_w8a8,
    rotary,
    silu_and_mul,
)
from dlinfer.layout import Layout

CACHE = Layout("NHBD")  # the keys of a head and block are consecutive: longer runs of memory

__all__ = [
    "CACHE",
    "add_rms_norm",
    "add_rms_norm_w8a8",
    "dense_attention",
    "dynamic_quant",
    "fill_kv_cache",
    "fused_moe",
    "gelu_and_mul",
    "linear",
    "linear_w8a8",
    "moe_gating",
    "paged_decode_attention",
    "paged_prefill_attention",
    "prefill_attention",
    "rms_norm",
    "rms_norm_w8a8",
    "rotary",
    "silu_and_mul",
    "weight_quant_matmul",
]
