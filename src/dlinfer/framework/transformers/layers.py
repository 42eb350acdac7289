# SPDX-License-Identifier: Apache-2.0
"""transformers: the new `forward`s of the supported models' layers, by class.

A layer's `forward` is replaced in one module only. Where gradients are required it runs unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlinfer import fused, weights
from dlinfer.framework.transformers import cache, delta, sparse
from dlinfer.framework.transformers.gradients import wants_gradients

# An optional dependency: its types are unknown where it is not installed.
modeling: Any = importlib.import_module("transformers.modeling_utils")
stock: Any = importlib.import_module("transformers.integrations.sdpa_attention")

Forward = Callable[..., Any]


class Merged:
    """Several linear layers as one product; their weights become parts of one tensor."""

    def __init__(self, parts: tuple[nn.Linear, ...]) -> None:
        self.sizes = [part.out_features for part in parts]
        self.names = ("weight",) if parts[0].bias is None else ("weight", "bias")
        self.places: list[tuple[Any, str]] = [
            (part._parameters, name) for name in self.names for part in parts
        ]
        # keeps the memory, so that no other tensor gets these addresses
        self.held: list[Tensor] = []
        self.addresses: list[int] = []

    def __call__(self, x: Tensor) -> Any:
        if self._addresses() != self.addresses:  # the first time, or moved, cast or replaced since
            self._merge()
        return fused.linear(x, *self.held)

    def _addresses(self) -> list[int]:
        return [parameters[name].data_ptr() for parameters, name in self.places]

    @torch.inference_mode(False)  # for later training or saving the model needs plain tensors
    @torch.no_grad()
    def _merge(self) -> None:
        self.held = []
        for name in self.names:
            pieces: list[Tensor] = [held[name] for held, kind in self.places if kind == name]
            whole = weights.joined(pieces)
            for piece, place in zip(pieces, whole.split(self.sizes), strict=True):
                piece.data = place
            self.held.append(whole)
        self.addresses = self._addresses()


def _merged(module: Any, *names: str) -> Merged:
    found: Merged | None = module.__dict__.get("_dlinfer_merged")
    if found is None:
        found = Merged(tuple(getattr(module, name) for name in names))
        module.__dict__["_dlinfer_merged"] = found
    return found


def part(modules: Iterable[nn.Module]) -> None:
    """Invalidate the merged weights of layers."""
    for module in modules:
        module.__dict__.pop("_dlinfer_merged", None)


def norm(self: Any, hidden_states: Tensor) -> Any:
    """Replacement of a norm, by `rms_norm`."""
    if wants_gradients(hidden_states):
        return type(self).forward(self, hidden_states)
    return fused.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def norm_around_one(self: Any, x: Tensor) -> Any:
    """Replacement of a norm whose weight is stored as its difference from 1, by `rms_norm`."""
    if wants_gradients(x):
        return type(self).forward(self, x)
    return fused.rms_norm(x, 1.0 + self.weight, self.eps)


def product(self: Any, input: Tensor) -> Any:
    """Replacement of a linear layer, by `linear`."""
    if torch.is_grad_enabled():
        return F.linear(input, self.weight, self.bias)
    return fused.linear(input, self.weight, self.bias)


def mlp(self: Any, x: Tensor) -> Any:
    """Replacement of an MLP: one product for both halves, then `silu_and_mul`."""
    if wants_gradients(x):
        return type(self).forward(self, x)
    both = _merged(self, "gate_proj", "up_proj")(x)
    return self.down_proj(fused.silu_and_mul(both))


def self_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> Any:
    """Replacement of attention: one product for queries, keys and values, `rotary`, and the
    attention
    of the config.
    """
    if wants_gradients(hidden_states):
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values, **kwargs}
        turned = {"position_embeddings": position_embeddings}
        return type(self).forward(self, hidden_states, **turned, **given)
    batch, tokens, _ = hidden_states.shape
    known = self.__dict__.get("_dlinfer_shape") or _shape(self)
    heads, size = known.heads, known.size
    both = _merged(self, "q_proj", "k_proj", "v_proj")(hidden_states)
    q, k, v = both.view(batch * tokens, -1, size).split_with_sizes(heads, 1)
    if known.normed:
        q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = position_embeddings
    if cos.shape[0] != batch:
        cos, sin = cos.expand(batch, -1, -1), sin.expand(batch, -1, -1)
    q, k = fused.rotary(q, k, cos.flatten(0, 1), sin.flatten(0, 1))
    q = q.view(batch, tokens, heads[0], size).transpose(1, 2)
    k = k.view(batch, tokens, heads[1], size).transpose(1, 2)
    v = v.view(batch, tokens, heads[1], size).transpose(1, 2)
    if past_key_values is not None:
        k, v = cache.extended(past_key_values, k, v, self.layer_idx)
    interface = modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
        self.config._attn_implementation, stock.sdpa_attention_forward
    )
    out, shares = interface(
        self, q, k, v, attention_mask, scaling=self.scaling, sliding_window=known.window, **kwargs
    )
    return self.o_proj(out.reshape(batch, tokens, -1)), shares


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer of attention, cached: reading a config is slow."""

    size: int  # of a head
    heads: tuple[int, int, int]  # of queries, keys and values
    normed: bool  # whether queries and keys are normalised
    window: int | None  # number of visible keys, to and with a query's own


def _shape(module: Any) -> Shape:
    heads, shared = (p.out_features // module.head_dim for p in (module.q_proj, module.k_proj))
    if hasattr(module, "sliding_window"):
        window = module.sliding_window
    else:
        window = getattr(module.config, "sliding_window", None)
    found = Shape(module.head_dim, (heads, shared, shared), hasattr(module, "q_norm"), window)
    module.__dict__["_dlinfer_shape"] = found
    return found


def layer(self: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
    """Replacement of a decoder layer, with `add_rms_norm` between attention and MLP."""
    after = self.post_attention_layernorm
    if wants_gradients(hidden_states) or after._forward_hooks or after._forward_pre_hooks:
        return type(self).forward(self, hidden_states, **kwargs)
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, total = fused.add_rms_norm(
        attended, hidden_states, after.weight, after.variance_epsilon
    )
    return total + self.mlp(normed)


def experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Any:
    """Replacement of experts, by `fused_moe`."""
    if wants_gradients(hidden_states):
        return type(self).forward(self, hidden_states, top_k_index, top_k_weights)
    shares = top_k_weights.float()  # the type of `moe_gating`'s results, which kernels expect
    return fused.fused_moe(hidden_states, self.gate_up_proj, self.down_proj, shares, top_k_index)


def router(self: Any, hidden_states: Tensor) -> Any:
    """Replacement of a router: a product and `moe_gating`."""
    if wants_gradients(hidden_states):
        return type(self).forward(self, hidden_states)
    logits = fused.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    summed = bool(getattr(self, "norm_topk_prob", True))  # a class without it always normalises
    shares, chosen = fused.moe_gating(logits, self.top_k, summed)
    kept = shares if not hasattr(self, "norm_topk_prob") else shares.to(logits.dtype)
    return logits, kept, chosen


PARTS = {
    mlp: ("gate_proj", "up_proj", "down_proj"),
    self_attention: ("q_proj", "k_proj", "v_proj", "o_proj"),
}
_NORM_AND_LAYER: dict[str, Forward] = {"RMSNorm": norm, "DecoderLayer": layer}
# Layers that mix attention and the gated delta rule: the decoder layer is transformers' own.
_DELTA: dict[str, Forward] = {"RMSNorm": norm_around_one, "MLP": mlp, "GatedDeltaNet": delta.net}
_DELTA_MOE: dict[str, Forward] = {**_DELTA, "Experts": experts, "TopKRouter": router}
_PLAIN: dict[str, Forward] = {**_NORM_AND_LAYER, "Attention": self_attention, "MLP": mlp}
_MOE: dict[str, Forward] = {**_PLAIN, "Experts": experts, "TopKRouter": router}
# Latent attention: transformers' own products around the attention of the config.
_LATENT: dict[str, Forward] = {**_NORM_AND_LAYER, "MLP": mlp, "Experts": experts}
FAMILIES: dict[str, dict[str, Forward]] = {
    "Llama": _PLAIN,
    "Mistral": _PLAIN,
    "Qwen2": _PLAIN,  # also the MLP of Qwen2VL
    "Qwen3": _PLAIN,
    "Mixtral": {kind: forward for kind, forward in _MOE.items() if kind != "MLP"},
    "Qwen2Moe": _MOE,
    "Qwen3Moe": _MOE,
    "Qwen2VL": {kind: forward for kind, forward in _PLAIN.items() if kind != "MLP"},
    "DeepseekV2": _LATENT,
    "DeepseekV3": _LATENT,
    "DeepseekV32": {**_LATENT, "Attention": sparse.attention},
    "Glm4Moe": {kind: forward for kind, forward in _MOE.items() if kind != "TopKRouter"},
    "Qwen3Next": _DELTA_MOE,
    "Qwen3_5": _DELTA,
    "Qwen3_5Moe": _DELTA_MOE,
    "GptOss": {"RMSNorm": norm},  # its attention calls that of the config, with sinks
}
FORWARDS: dict[str, Forward] = {
    f"{family}{kind}": forward
    for family, kinds in FAMILIES.items()
    for kind, forward in kinds.items()
}


def forward_of(module: nn.Module) -> Forward | None:
    """Return the new `forward` of a supported layer; None for others, and for modified layers."""
    found = FORWARDS.get(type(module).__name__)
    if found is None or not type(module).__module__.startswith("transformers.models."):
        return None
    plain = all(type(getattr(module, part)) is nn.Linear for part in PARTS.get(found, ()))
    silu = type(getattr(module, "act_fn", nn.SiLU())).__name__ in ("SiLU", "SiLUActivation")
    spread = getattr(module, "_is_expert_parallel", False)
    known = found is not delta.net or delta.fits(type(module))
    return found if plain and silu and known and not spread else None
