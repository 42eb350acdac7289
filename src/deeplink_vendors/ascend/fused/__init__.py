# SPDX-License-Identifier: Apache-2.0
"""Fused ops by torch_npu's own, according to its documentation: arguments are mapped.

Lengths are lists on the host there, so attention synchronizes with the device once per call.
"""

from deeplink_vendors.ascend.fused.attention import (
    dense_attention,
    fill_kv_cache,
    paged_decode_attention,
    paged_prefill_attention,
    prefill_attention,
)
from deeplink_vendors.ascend.fused.products import (
    dynamic_quant,
    fused_moe,
    linear,
    linear_w8a8,
    moe_gating,
    weight_quant_matmul,
)
from deeplink_vendors.ascend.fused.tokens import (
    add_rms_norm,
    add_rms_norm_w8a8,
    rms_norm,
    rms_norm_w8a8,
    rotary,
    silu_and_mul,
)
from dlinfer.layout import Layout

CACHE = Layout("NBHD", block_sizes=(128, 256, 384, 512))
NOTE = "tested against a fake of torch_npu, not on hardware"

__all__ = [
    "CACHE",
    "NOTE",
    "add_rms_norm",
    "add_rms_norm_w8a8",
    "dense_attention",
    "dynamic_quant",
    "fill_kv_cache",
    "fused_moe",
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
