# SPDX-License-Identifier: Apache-2.0
"""Fused kernels of the CPU, in C++ on its dispatch key: float32 and bfloat16.

They are built on first use (`deeplink.native`) and use the vector instructions of the processor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from deeplink import native as parts
from diopi.resolve import limited
from dlinfer.fused.attention import by_torch, is_torchs
from dlinfer.layout import Layout

CACHE = Layout("NHBD")  # the keys of a head and block are consecutive: fewer pages to walk
# for few rows each part of the weights is read once for all results, without partial sums
WEIGHTS = "IO"
NATIVE = (
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "rotary",
    "fill_kv_cache",
    "linear",
    "prefill_attention",
    "paged_prefill_attention",
    "paged_decode_attention",
    "gelu_and_mul",
    "dynamic_quant",
    "rms_norm_w8a8",
    "add_rms_norm_w8a8",
    "linear_w8a8",
    "weight_quant_matmul",
    "moe_gating",
    "fused_moe",
)
log = logging.getLogger("dlinfer")


def native(refused: Callable[..., Any]) -> tuple[str, ...]:
    """Register the kernels on the dispatch key; BuildError where they cannot be built."""
    parts.load_extension(__name__, say=log.warning).start(refused)
    return NATIVE


def bypass(on: bool) -> None:
    """Send every call to the fallback of `native` while `on` is set."""
    parts.load_extension(__name__).bypass(on)


@limited(is_torchs)
def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Call torch's own blocked kernel."""
    return by_torch(q, k, v, mask, causal, scale)
