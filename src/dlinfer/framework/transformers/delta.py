# SPDX-License-Identifier: Apache-2.0
"""transformers: layers of the gated delta rule, whose convolution and rule become dlinfer's ops.

The `forward` of such a layer calls four functions of its module by name. A copy of it, for the
models that were given dlinfer's ops, calls those of this file instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from dlinfer import fused
from dlinfer.framework.transformers.gradients import wants_gradients


def net(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Replacement of a layer of the gated delta rule."""
    if wants_gradients(hidden_states):
        return type(self).forward(self, hidden_states, *args, **kwargs)
    layer: Any = type(self)
    return _forward(layer)(self, hidden_states, *args, **kwargs)


def fits(layer: type) -> bool:
    """Whether the layer calls the functions that are replaced, as transformers does since 5.23."""
    code: Any = inspect.unwrap(layer.forward)  # type: ignore[attr-defined]
    return set(FUNCTIONS) <= {*code.__code__.co_names}


@functools.cache
def _forward(layer: type) -> Callable[..., Any]:
    """Return a layer's `forward` with the replaced functions."""
    stock: Any = inspect.unwrap(layer.forward)  # type: ignore[attr-defined]
    names = {**stock.__globals__, **FUNCTIONS}
    made = FunctionType(
        stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__
    )
    made.__kwdefaults__ = stock.__kwdefaults__
    return made


@functools.lru_cache(8)  # every layer requests the same
def _rows(batch: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slots of rows, the limits of the rows' tokens, and that rows are fresh."""
    rows = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return rows[:-1], rows * tokens, torch.ones(batch, dtype=torch.bool, device=device)


def causal_conv1d_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """Convolve one token of each row, [batch, channels, 1], and update the state."""
    slots, _, _ = _rows(hidden_states.shape[0], 1, hidden_states.device)
    x = hidden_states.squeeze(-1)
    out = fused.causal_conv1d_decode(x, weight, bias, conv_state, slots, activation or "")
    return out.unsqueeze(-1)


def causal_conv1d_fn(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> Any:
    """Convolve [batch, channels, tokens]; what was before the tokens counts as zeros."""
    del kwargs
    batch, channels, tokens = hidden_states.shape
    slots, bounds, fresh = _rows(batch, tokens, hidden_states.device)
    x = hidden_states.transpose(1, 2).reshape(batch * tokens, channels)
    state = x.new_empty(batch, channels, weight.shape[1])
    out = fused.causal_conv1d_prefill(
        x, weight, bias, state, slots, bounds, fresh, activation or ""
    )
    return out.view(batch, tokens, channels).transpose(1, 2)


def torch_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply the rule to one token of each row, [batch, 1, heads, size]; the state is updated in
    place, and returned.
    """
    del kwargs
    slots, _, _ = _rows(query.shape[0], 1, query.device)
    given = (t.squeeze(1) for t in (query, key, value, g, beta))
    scale = query.shape[-1] ** -0.5
    out = fused.gated_delta_decode(*given, initial_state, slots, scale, use_qk_l2norm_in_kernel)
    return out.unsqueeze(1), initial_state


def torch_chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply the rule to rows of tokens, [batch, tokens, heads, size], and return the new state."""
    del kwargs
    batch, tokens, _, size = query.shape
    slots, bounds, fresh = _rows(batch, tokens, query.device)
    given = (t.reshape(batch * tokens, *t.shape[2:]) for t in (query, key, value, g, beta))
    if initial_state is None:
        shape = (batch, value.shape[2], size, value.shape[3])
        state, begins = torch.empty(shape, dtype=torch.float32, device=query.device), fresh
    else:
        state, begins = initial_state.clone(), None
    out = fused.gated_delta_prefill(
        *given, state, slots, bounds, size**-0.5, begins, use_qk_l2norm_in_kernel
    )
    return out.view(value.shape), state


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        causal_conv1d_update,
        causal_conv1d_fn,
        torch_recurrent_gated_delta_rule,
        torch_chunk_gated_delta_rule,
    )
}
