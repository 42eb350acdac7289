"""transformers: the layers of models that are known, each by its class, and its attention.

The layers of one model get other `forward`s; the attention is a name in transformers' own registry
that only this model's config asks for. Where gradients are wanted, the layers do as they did.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections import Counter
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeplink.errors import DeeplinkError
from dlinfer import fused
from dlinfer.framework.applied import Applied

log = logging.getLogger("dlinfer")

# An extra: not installed everywhere, so its types are not known.
transformers: Any = importlib.import_module("transformers")
modeling: Any = importlib.import_module("transformers.modeling_utils")
masking: Any = importlib.import_module("transformers.masking_utils")
stock: Any = importlib.import_module("transformers.integrations.sdpa_attention")

NAME = "dlinfer"
TESTED = ("5.22",)  # releases that the tests ran with
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
Forward = Callable[..., Any]


def apply(model: Any, *, check: bool = True) -> Applied:
    """See `dlinfer.apply`."""
    if not transformers.__version__.startswith(TESTED):
        known = ", ".join(TESTED)
        log.warning("transformers %s; dlinfer is tested with %s", transformers.__version__, known)
    found = [(module, FORWARDS[name]) for module in model.modules() if (name := _known(module))]
    if not found:
        raise DeeplinkError(
            f"dlinfer knows no layer of {type(model).__name__}.",
            f"known: {', '.join(sorted(FORWARDS))}.",
        )
    found += [(module, product) for module in model.modules() if type(module) is nn.Linear]
    before = _logits(model) if check else None
    undoing: list[Callable[[], None]] = []
    implementation = model.config._attn_implementation
    for module, forward in found:
        module.forward = MethodType(forward, module)
        undoing.append(functools.partial(delattr, module, "forward"))
    modeling.AttentionInterface.register(NAME, attention)
    masking.AttentionMaskInterface.register(NAME, masking.sdpa_mask)
    model.set_attn_implementation(NAME)
    undoing.append(functools.partial(model.set_attn_implementation, implementation))
    difference = None if before is None else _difference(_logits(model), before)
    layers = dict(Counter(type(module).__name__ for module, _ in found))
    applied = Applied(model, layers, difference, tuple(undoing))
    allowed = TOLERANCE.get(model.dtype, 1e-4)
    if difference is not None and not difference <= allowed:
        applied.undo()
        raise DeeplinkError(
            f"{type(model).__name__} computes something else with dlinfer's ops: off by "
            f"{difference:.1e} of its largest logit; allowed: {allowed:g}.",
            "the model is as it was; please report its config.",
        )
    return applied


def _known(module: nn.Module) -> str:
    """The class of a layer that is replaced; empty for others, and for what was put into one."""
    name = type(module).__name__
    home = type(module).__module__
    if name not in FORWARDS or not home.startswith("transformers.models."):
        return ""
    parts = PARTS.get(name.removeprefix("Llama").removeprefix("Qwen2"), ())
    plain = all(type(getattr(module, part)) is nn.Linear for part in parts)
    silu = type(getattr(module, "act_fn", nn.SiLU())).__name__ in ("SiLU", "SiLUActivation")
    return name if plain and silu else ""


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    """Of random tokens: two rows, one of them padded, and then one token more with the cache."""
    generator = torch.Generator().manual_seed(0)
    size = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(size, (2, 7), generator=generator).to(model.device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    training = model.training
    model.eval()
    try:
        first = model(ids, attention_mask=mask)
        plain = model(ids, use_cache=True)
        past = plain.past_key_values
        last = model(ids[:, :1], past_key_values=past, use_cache=True)
    finally:
        model.train(training)
    kept = (first.logits[0, 3:], first.logits[1], plain.logits.flatten(0, 1), last.logits[:, 0])
    return torch.cat(kept).float()


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


class Merged:
    """Several linear layers as one product; their weights become parts of one tensor."""

    def __init__(self, parts: tuple[nn.Linear, ...]) -> None:
        self.parts = parts
        self.held: list[Tensor] = []  # kept, so that nothing else comes to lie at their addresses
        self.addresses: list[int] = []

    def __call__(self, x: Tensor) -> Any:
        if self._addresses() != self.addresses:  # the first time, or moved, cast or replaced since
            self._merge()
        return fused.linear(x, *self.held)

    def _addresses(self) -> list[int]:
        tensors = [t for part in self.parts for t in (part.weight, part.bias) if t is not None]
        return [tensor.data_ptr() for tensor in tensors]

    @torch.no_grad()
    def _merge(self) -> None:
        sizes = [part.out_features for part in self.parts]
        names = ("weight", "bias") if self.parts[0].bias is not None else ("weight",)
        self.held = []
        for name in names:
            pieces: list[Tensor] = [getattr(part, name) for part in self.parts]
            whole = torch.cat(pieces)
            for piece, place in zip(pieces, whole.split(sizes), strict=True):
                piece.data = place
            self.held.append(whole)
        self.addresses = self._addresses()


def _merged(module: Any, *names: str) -> Merged:
    found: Merged | None = module.__dict__.get("_dlinfer_merged")
    if found is None:
        found = Merged(tuple(getattr(module, name) for name in names))
        module.__dict__["_dlinfer_merged"] = found
    return found


def _wants_gradients(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def norm(self: Any, hidden_states: Tensor) -> Any:
    """`rms_norm`."""
    if _wants_gradients(hidden_states):
        return type(self).forward(self, hidden_states)
    return fused.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def product(self: Any, input: Tensor) -> Any:
    """`linear`."""
    if torch.is_grad_enabled():
        return F.linear(input, self.weight, self.bias)
    return fused.linear(input, self.weight, self.bias)


def mlp(self: Any, x: Tensor) -> Any:
    """One product for the gate and what it gates, then `silu_and_mul`."""
    if _wants_gradients(x):
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
    """One product for queries, keys and values, `rotary`, and the attention of the config."""
    if _wants_gradients(hidden_states):
        return type(self).forward(
            self, hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs
        )
    batch, tokens, _ = hidden_states.shape
    heads, shared = (p.out_features // self.head_dim for p in (self.q_proj, self.k_proj))
    both = _merged(self, "q_proj", "k_proj", "v_proj")(hidden_states)
    q, k, v = both.view(batch * tokens, -1, self.head_dim).split((heads, shared, shared), 1)
    cos, sin = (t.expand(batch, -1, -1).reshape(batch * tokens, -1) for t in position_embeddings)
    q, k = fused.rotary(q, k, cos, sin)
    q, k, v = (t.unflatten(0, (batch, tokens)).transpose(1, 2) for t in (q, k, v))
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    interface = modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
        self.config._attn_implementation, stock.sdpa_attention_forward
    )
    window = getattr(self, "sliding_window", None)
    out, weights = interface(
        self, q, k, v, attention_mask, scaling=self.scaling, sliding_window=window, **kwargs
    )
    return self.o_proj(out.reshape(batch, tokens, -1)), weights


def layer(self: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
    """`add_rms_norm` between attention and the rest."""
    after = self.post_attention_layernorm
    if _wants_gradients(hidden_states) or after._forward_hooks or after._forward_pre_hooks:
        return type(self).forward(self, hidden_states, **kwargs)
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, total = fused.add_rms_norm(
        attended, hidden_states, after.weight, after.variance_epsilon
    )
    return total + self.mlp(normed)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> Any:
    """[batch, heads, tokens, size] as transformers has it; the result with tokens before heads."""
    if dropout or _wants_gradients(query):
        return stock.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    batch, tokens, keys = q.shape[0], q.shape[1], k.shape[1]
    if attention_mask is None and tokens == 1:  # every row is one block of the cache
        table, lengths = _rows(batch, keys, query.device)
        out = fused.paged_decode_attention(q[:, 0], k, v, table, lengths, keys, scale)
        return out[:, None], None
    if attention_mask is None and causal and tokens == keys:
        bounds = _bounds(batch, tokens, query.device)
        packed = (t.reshape(batch * tokens, *t.shape[2:]) for t in (q, k, v))
        out = fused.prefill_attention(*packed, bounds, bounds, tokens, tokens, scale)
        return out.unflatten(0, (batch, tokens)), None
    seen = causal and attention_mask is None
    return fused.dense_attention(q, k, v, attention_mask, seen, scale), None


@functools.lru_cache(8)  # every layer asks for the same
def _rows(batch: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
    return table, torch.full((batch,), keys, dtype=torch.int32, device=device)


@functools.lru_cache(8)
def _bounds(batch: int, tokens: int, device: torch.device) -> Tensor:
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens


PARTS = {
    "MLP": ("gate_proj", "up_proj", "down_proj"),
    "Attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
_KINDS: dict[str, Forward] = {
    "RMSNorm": norm,
    "MLP": mlp,
    "Attention": self_attention,
    "DecoderLayer": layer,
}
FORWARDS: dict[str, Forward] = {
    f"{family}{kind}": forward for family in ("Llama", "Qwen2") for kind, forward in _KINDS.items()
}
