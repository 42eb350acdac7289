# SPDX-License-Identifier: Apache-2.0
"""transformers: attention by dlinfer's ops, as functions for its registry.

Only a model whose config names them calls them. `attention` is for `generate`, over any cache of
the model; `paged` is for continuous batching, over the blocks of its own cache.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer import fused
from dlinfer.framework.transformers.gradients import wants_gradients
from dlinfer.registry import OPS

modeling: Any = importlib.import_module("transformers.modeling_utils")
masking: Any = importlib.import_module("transformers.masking_utils")
stock: Any = importlib.import_module("transformers.integrations.sdpa_attention")

NAME = "dlinfer"
ROWS = "dlinfer_rows"  # the argument by which `generate`'s loop passes `Rows` to the layers
PAGED = "dlinfer_paged"  # not in the registry of masks, so that no mask is created


def register() -> None:
    """Register the names of the attentions, which affects only configs that select them."""
    modeling.AttentionInterface.register(NAME, attention)
    modeling.AttentionInterface.register(PAGED, paged)
    masking.AttentionMaskInterface.register(NAME, masking.sdpa_mask)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Attend over [batch, heads, tokens, size], as in transformers;
    the result has tokens before heads. s_aux are sinks; indices [batch, tokens, chosen] the only
    keys that a query may see.
    """
    if ROWS in kwargs:
        return _in_rows(module, query, key, value, scaling, s_aux, kwargs), None
    if indices is not None:
        attention_mask = _only(indices, attention_mask, key.shape[2])
    apart = dropout or wants_gradients(query)
    if apart and s_aux is None:
        return stock.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    batch, tokens, keys = q.shape[0], q.shape[1], k.shape[1]
    if apart:
        return _differentiable(q, k, v, attention_mask, causal, scale, s_aux, dropout), None
    if attention_mask is None and tokens == 1:  # every row is one block of the cache
        table, lengths = _rows(batch, keys, query.device)
        out = fused.paged_decode_attention(
            query.squeeze(2), k, v, table, lengths, keys, scale, sinks=s_aux
        )
        return out.unsqueeze(1), None
    if attention_mask is None and causal and tokens == keys:
        bounds = _bounds(batch, tokens, query.device)
        packed = (t.reshape(batch * tokens, *t.shape[2:]) for t in (q, k, v))
        out = fused.prefill_attention(*packed, bounds, bounds, tokens, tokens, scale, sinks=s_aux)
        return out.unflatten(0, (batch, tokens)), None
    seen = causal and attention_mask is None
    return fused.dense_attention(q, k, v, attention_mask, seen, scale, sinks=s_aux), None


@dataclass(frozen=True)
class Rows:
    """The common data of all layers for one forward pass of `generate`'s loop over packed rows."""

    cache: Any
    slots: Tensor  # of the new keys and values
    lengths: Tensor  # of the rows' keys, with the new ones
    bounds: Tensor | None  # limits of the prompts; None: one new token for each row
    longest: int


def _in_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sinks: Tensor | None,
    kwargs: dict[str, Any],
) -> Any:
    """Write the new keys and values to the rows' cache, and attend to it."""
    rows: Rows = kwargs[ROWS]
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    caches = rows.cache.of(module.layer_idx, k, v)
    fused.fill_kv_cache(k, v, *caches, rows.slots)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    seen = {"window": kwargs.get("sliding_window") or 0, "sinks": sinks}
    if rows.bounds is None:
        table, lengths, longest = rows.cache.table, rows.lengths, rows.longest
        out = fused.paged_decode_attention(q, *caches, table, lengths, longest, scale, **seen)
    else:
        bounds, longest = rows.bounds, rows.longest
        out = fused.prefill_attention(q, k, v, bounds, bounds, longest, longest, scale, **seen)
    return out[None]


def _differentiable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    sinks: Tensor | None,
    dropout: float,
) -> Any:
    """Attend with sinks by the op's meaning, which has gradients."""
    if dropout:
        raise DeeplinkError(
            _("attention with sinks is asked for a dropout of {dropout:g}; allowed: 0.").format(
                dropout=dropout
            ),
            _("set attention_dropout of the model's config to 0, or undo dlinfer.apply to train."),
        )
    seen = causal and mask is None
    return OPS["dense_attention"].meaning(q, k, v, mask, seen, scale, sinks=sinks)


def _only(indices: Tensor, mask: Tensor | None, keys: int) -> Tensor:
    """Return a mask [batch, 1, tokens, keys] of bools that hides all keys but the chosen ones."""
    chosen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool)
    seen = chosen.scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        return seen
    return seen & (mask if mask.dtype == torch.bool else mask == 0)


@functools.lru_cache(8)  # every layer requests the same
def _rows(batch: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
    return table, torch.full((batch,), keys, dtype=torch.int32, device=device)


@functools.lru_cache(8)
def _bounds(batch: int, tokens: int, device: torch.device) -> Tensor:
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens


@dataclass(frozen=True)
class Step:
    """The common data of a group's layers for one forward pass, computed by the first of them."""

    slots: Tensor  # slots of the new keys and values; negative: not written
    table: Tensor | None  # blocks of each sequence; None: nothing is cached yet
    lengths: Tensor  # of the sequences' keys
    longest: int


def paged(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    """Write the new keys and values to the cache's blocks, and attend over the blocks."""
    if cache is None:  # of a tower without a cache, as for images
        return attention(module, query, key, value, attention_mask, **kwargs)
    group = group_of(cache, module.layer_idx)
    for name in ("max_length_q", "max_length_k"):  # their names since 5.20
        kwargs.setdefault(name, kwargs.get(name.replace("length", "seqlen")))
    if group.layer_type != "full_attention":
        return _sliding(module, query, key, value, cache, **kwargs)
    if module.layer_idx == group.layer_indices[0]:
        group.dlinfer_step = _step(group, kwargs)
    step: Step = group.dlinfer_step
    k_cache, v_cache = group.get_cache_for_block_table(module.layer_idx)
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    fused.fill_kv_cache(k, v, k_cache, v_cache, step.slots)
    bounds, scale, sinks = kwargs["cu_seq_lens_q"], kwargs["scaling"], kwargs.get("s_aux")
    if kwargs.get("block_table") is not None:
        out = fused.paged_decode_attention(
            q, k_cache, v_cache, step.table, step.lengths, step.longest, scale, sinks=sinks
        )
    elif step.table is None:
        longest = kwargs["max_length_q"]
        out = fused.prefill_attention(q, k, v, bounds, bounds, longest, longest, scale, sinks=sinks)
    else:
        out = fused.paged_prefill_attention(
            q,
            k_cache,
            v_cache,
            step.table,
            bounds,
            step.lengths,
            kwargs["max_length_q"],
            step.longest,
            scale,
            sinks=sinks,
        )
    return out[None], None


def group_of(cache: Any, layer: int) -> Any:
    """Return the layers that share block tables with a layer."""
    if hasattr(cache, "layer_to_allocator"):
        return cache.layer_to_allocator[layer]
    index, _ = cache.layer_index_to_group_indices[layer]
    groups = cache.__dict__.setdefault("dlinfer_groups", {})
    if index not in groups:
        groups[index] = Group(cache, index)
    return groups[index]


class Group:
    """A group of layers, for which releases before 5.20 have no object."""

    def __init__(self, cache: Any, index: int) -> None:
        places = cache.layer_index_to_group_indices
        self.index = index
        self.layer_indices = [layer for layer, place in places.items() if place[0] == index]
        self.tokens_per_page = cache.block_size
        full = cache.sliding_windows[self.layer_indices[0]] == 1
        self.layer_type = "full_attention" if full else "sliding_attention"
        shape = (-1, cache.block_size, *cache.key_cache[0].shape[-2:])
        self.caches = {
            layer: (cache.key_cache[place[1]].view(shape), cache.value_cache[place[1]].view(shape))
            for layer, place in places.items()
        }
        self.dlinfer_step: Step | None = None

    def get_cache_for_block_table(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the blocks of a layer's keys and values."""
        found: tuple[Tensor, Tensor] = self.caches[layer]
        return found


def _step(group: Any, kwargs: dict[str, Any]) -> Step:
    bounds = _of(group, kwargs["cu_seq_lens_k"])
    size, lengths = group.tokens_per_page, bounds.diff()
    given = kwargs.get("block_table")
    if given is not None:  # one new token for each row; a padding row has length 0
        table = given[group.index]
        last = (lengths - 1).clamp_min(0)
        block = table.gather(1, (last // size)[:, None].long())[:, 0]
        slots = torch.where(lengths > 0, block * size + last % size, -1)
        return Step(slots, table, lengths, table.shape[1] * size)
    slots, read = kwargs["write_index"][group.index], kwargs["read_index"][group.index]
    longest = _of(group, kwargs["max_length_k"])
    if not read.numel():
        return Step(slots, None, lengths, longest)
    # a sequence is read block by block, each from its first place on
    places = torch.arange(0, longest, size, device=read.device)
    table = read[(bounds[:-1, None] + places).clamp_max(read.numel() - 1)] // size
    return Step(slots, table, lengths, longest)


def _of(group: Any, given: Any) -> Any:
    """Return the value for a kind of attention, or the common value."""
    return given[group.layer_type] if isinstance(given, dict) else given


def _sliding(
    module: Any, query: Tensor, key: Tensor, value: Tensor, cache: Any, **kwargs: Any
) -> Any:
    """Attend over the last keys only, which the cache gathers from a ring buffer."""
    group, q = group_of(cache, module.layer_idx), query[0].transpose(0, 1)
    if isinstance(group, Group):  # it takes the indices, and returns tokens first
        indices = {name: kwargs[name] for name in ("read_index", "write_index")}
        k, v = cache.update(key, value, module.layer_idx, **indices)
    else:
        key, value = cache.update(key, value, module.layer_idx, dict(kwargs))
        k, v = key[0].transpose(0, 1), value[0].transpose(0, 1)
    out = fused.prefill_attention(
        q,
        k,
        v,
        kwargs["cu_seq_lens_q"],
        _of(group, kwargs["cu_seq_lens_k"]),
        kwargs["max_length_q"],
        _of(group, kwargs["max_length_k"]),
        kwargs["scaling"],
        window=kwargs["sliding_window"] or 0,
        sinks=kwargs.get("s_aux"),
    )
    return out[None], None
