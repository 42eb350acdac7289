# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention on the CPU by dlinfer's ops, over vLLM's own cache."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from dlinfer import fused

stock: Any = importlib.import_module("vllm.v1.attention.backends.cpu_attn")


class Attention(stock.CPUAttentionBackendImpl):  # type: ignore[misc]
    """Causal attention of a decoder; all other kinds are left to vLLM's own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.ours = (
            self.attn_type == "decoder"
            and self.sliding_window == -1
            and self.alibi_slopes is None
            and self.sinks is None
            and not self.logits_soft_cap
            and not self.is_fp8_kv_cache
        )

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write new keys and values to their slots."""
        if not self.ours:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        count = slot_mapping.shape[0]
        fused.fill_kv_cache(key[:count], value[:count], *_halves(kv_cache), slot_mapping)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *rest: Any,
        **named: Any,
    ) -> Any:
        """Attend over the cache, which holds the new tokens already."""
        if not self.ours or attn_metadata is None:
            given = (query, key, value, kv_cache, attn_metadata, output)
            return super().forward(layer, *given, *rest, **named)
        step = attn_metadata
        count = step.num_actual_tokens
        caches = (*_halves(kv_cache), step.block_table)
        if step.max_query_len == 1:
            done = fused.paged_decode_attention(
                query[:count], *caches, step.seq_lens, step.max_seq_len, self.scale
            )
        else:
            lengths = (step.query_start_loc, step.seq_lens, step.max_query_len, step.max_seq_len)
            done = fused.paged_prefill_attention(query[:count], *caches, *lengths, self.scale)
        output[:count].view(done.shape).copy_(done)
        return output


def _halves(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """View [blocks, heads, places, 2 * size] as two of [blocks, places, heads,
    size], without a copy.
    """
    size = kv_cache.shape[-1] // 2
    shown = kv_cache.permute(0, 2, 1, 3)
    return shown[..., :size], shown[..., size:]


class Backend(stock.CPUAttentionBackend):  # type: ignore[misc]
    """The backend under vLLM's interface."""

    @staticmethod
    def get_impl_cls() -> Any:
        """Return the class of its layers."""
        return Attention
