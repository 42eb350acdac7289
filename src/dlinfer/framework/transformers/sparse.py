# SPDX-License-Identifier: Apache-2.0
"""transformers: sparse attention over a cache of latents, without keys and values for each head.

The products that expand latents to keys and values are moved to the queries and to the results, so
that all heads attend to one latent of each chosen token.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from dlinfer import fused
from dlinfer.framework.transformers.gradients import wants_gradients


def attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    past_key_values: Any = None,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Replacement of sparse attention, by `sparse_flash_attention`."""
    if wants_gradients(hidden_states) or attention_mask is None:
        given = {"past_key_values": past_key_values, "position_ids": position_ids, **kwargs}
        turned = {"position_embeddings": position_embeddings, "attention_mask": attention_mask}
        return type(self).forward(self, hidden_states, **turned, **given)
    batch, tokens, _ = hidden_states.shape
    nope, turned_size, latent = self.qk_nope_head_dim, self.qk_rope_head_dim, self.kv_lora_rank
    residual = self.q_a_layernorm(self.q_a_proj(hidden_states))
    q = self.q_b_proj(residual).view(batch * tokens, -1, nope + turned_size)
    kept, k_rope = self.kv_a_proj_with_mqa(hidden_states).split((latent, turned_size), -1)
    cos, sin = (t.expand(batch, -1, -1).flatten(0, 1) for t in position_embeddings)
    q_rope, k_rope = fused.rotary(
        _halves(q[..., nope:]), _halves(k_rope.reshape(batch * tokens, 1, -1)), cos, sin
    )
    held = self.kv_a_layernorm(kept)[:, None]
    k_rope = k_rope.view(batch, 1, tokens, -1)
    if past_key_values is not None:
        held, k_rope = past_key_values.update(held, k_rope, self.layer_idx)
    indices = self.indexer(
        hidden_states,
        residual,
        position_embeddings,
        attention_mask[:, 0],
        position_ids,
        past_key_values=past_key_values,
    )
    keys = held.shape[2]
    seen = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
    visible = seen[:, 0].expand(batch, tokens, keys).gather(-1, indices.long())
    chosen = torch.where(visible, indices, -1).flatten(0, 1)
    weight = self.kv_b_proj.weight.view(-1, nope + self.v_head_dim, latent)
    q_latent = torch.einsum("thd,hdr->thr", q[..., :nope], weight[:, :nope])
    table, lengths, bounds = _rows(batch, tokens, keys, held.device)
    blocks = held.transpose(1, 2)  # every row is one block of the cache
    out = fused.sparse_flash_attention(
        q_latent,
        blocks,
        blocks,
        chosen,
        table,
        bounds,
        lengths,
        self.scaling,
        q_rope,
        k_rope.transpose(1, 2),
    )
    values = torch.einsum("thr,hdr->thd", out, weight[:, nope:])
    return self.o_proj(values.reshape(batch, tokens, -1)), None


def _halves(x: Tensor) -> Tensor:
    """Move the first elements of adjacent pairs before the second ones."""
    pairs: Tensor = x.unflatten(-1, (-1, 2))
    return pairs.mT.flatten(-2)


@functools.lru_cache(8)  # every layer requests the same
def _rows(
    batch: int, tokens: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return block table, lengths and limits of rows that are one block each."""
    rows = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return (
        rows[:-1, None],
        torch.full((batch,), keys, dtype=torch.int32, device=device),
        rows * tokens,
    )
