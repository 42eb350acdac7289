# SPDX-License-Identifier: Apache-2.0
"""The self-check: compare vLLM's layers and attention on dlinfer's ops with plain torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

ALLOWED = 1e-4  # of the largest result; in float32
BLOCK, HEADS, SHARED, SIZE, LENGTH = 16, 4, 2, 32, 19  # one block, and part of the next
EPSILON = 1e-6


def check(norm: Any, gate: Any, attention: Any) -> None:
    """Raise an error that names the classes with other results."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        found = {**_norm(norm), "gate": _gate(gate), **_attention(attention)}
    wrong = {name: off for name, off in found.items() if not off <= ALLOWED}
    if wrong:
        told = ", ".join(f"{name} off by {off:.1e}" for name, off in wrong.items())
        raise DeeplinkError(
            _(
                "vLLM's layers compute something else on dlinfer's ops: {told}; allowed: "
                "{allowed:g} of the largest result."
            ).format(told=told, allowed=ALLOWED),
            _(
                "vLLM alone: unset DLINFER_VLLM. `DLINFER_VENDOR=reference` shows "
                "whether a kernel is wrong, or the adaptor."
            ),
        )


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _norm(kind: Any) -> dict[str, float]:
    """Check a norm. A layer needs vLLM's config, which does not exist yet:
    use its `forward` alone.
    """
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    layer = SimpleNamespace(
        weight=weight, variance_epsilon=EPSILON, has_weight=True, variance_size_override=None
    )
    normed, total = kind.forward(layer, x, residual)
    expected = F.rms_norm(x + residual, (64,), weight, EPSILON)
    return {
        "norm": _off(kind.forward(layer, x), F.rms_norm(x, (64,), weight, EPSILON)),
        "norm of a sum": max(_off(normed, expected), _off(total, x + residual)),
    }


def _gate(kind: Any) -> float:
    x = torch.randn(3, 64)
    return _off(kind.forward(SimpleNamespace(), x), F.silu(x[:, :32]) * x[:, 32:])


def _attention(kind: Any) -> dict[str, float]:
    """Check a prompt, then one more token, over a cache like vLLM's: by heads,
    keys next to values.
    """
    layer: Any = object.__new__(kind)
    layer.ours, layer.scale = True, SIZE**-0.5
    cache = torch.full((4, SHARED, BLOCK, 2 * SIZE), torch.nan)
    table = torch.tensor([[2, 1]], dtype=torch.int32)
    slots = torch.tensor([table[0, n // BLOCK] * BLOCK + n % BLOCK for n in range(LENGTH)])
    q, k, v = (torch.randn(LENGTH, heads, SIZE) for heads in (HEADS, SHARED, SHARED))
    rows = [t.transpose(0, 1)[None] for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)

    def run(first: int, last: int) -> float:
        step = SimpleNamespace(
            num_actual_tokens=last - first,
            block_table=table,
            max_query_len=last - first,
            max_seq_len=last,
            seq_lens=torch.tensor([last], dtype=torch.int32),
            query_start_loc=torch.tensor([0, last - first], dtype=torch.int32),
        )
        new = [t[first:last] for t in (q, k, v)]
        layer.do_kv_cache_update(None, *new[1:], cache, slots[first:last])
        out = layer.forward(None, *new, cache, step, torch.empty_like(new[0]))
        return _off(out, expected[first:last])

    return {
        "attention of a prompt": run(0, LENGTH - 1),
        "attention of one token": run(LENGTH - 1, LENGTH),
    }
