# SPDX-License-Identifier: Apache-2.0
"""Fused kernels of the CPU, in C++ on its dispatch key: float32 and bfloat16.

They are built on first use (`deeplink.native`) and use the vector instructions of the processor.
Ops whose time is that of torch's own products and gathers run by their meaning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from deeplink import native as parts
from diopi.resolve import limited
from dlinfer import fused
from dlinfer.fused import attention
from dlinfer.fused.attention import by_torch, is_torchs
from dlinfer.fused.moe import moe_w8a8
from dlinfer.fused.products import linear_w8a8_static  # noqa: F401  # a kernel, as the next ones
from dlinfer.fused.sparse import lightning_indexer, sparse_flash_attention  # noqa: F401
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
    "causal_conv1d_prefill",
    "causal_conv1d_decode",
    "gated_delta_prefill",
    "gated_delta_decode",
)
log = logging.getLogger("dlinfer")


def native(refused: Callable[..., Any]) -> tuple[str, ...]:
    """Register the kernels on the dispatch key; BuildError where they cannot be built."""
    parts.load_extension(__name__, say=log.warning).start(refused)
    return NATIVE


def bypass(on: bool) -> None:
    """Send every call to the fallback of `native` while `on` is set."""
    parts.load_extension(__name__).bypass(on)


def _dense(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    softcap: float,
    sinks: Tensor | None,
) -> bool:
    return sinks is not None or is_torchs(q, k, mask, causal, softcap, sinks)


@limited(_dense)
def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Call torch's own blocked kernel, which has no sinks: with them, attend by the meaning."""
    if sinks is not None:
        out: Tensor = attention.dense_attention(q, k, v, mask, causal, scale, softcap, sinks)
        return out
    return by_torch(q, k, v, mask, causal, scale)


def fused_moe_w8a8(
    x: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Run the native kernels of `dynamic_quant` and `linear_w8a8` for each expert."""
    return moe_w8a8(
        x, gate_up, gate_up_scale, down, down_scale, weights, experts, activation,
        fused.dynamic_quant, fused.linear_w8a8,
    )  # fmt: skip
