# SPDX-License-Identifier: Apache-2.0
"""The self-check: compare LMDeploy's layers on dlinfer's ops with plain torch, on random input."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

ALLOWED = 1e-4  # of the largest result; in float32
BLOCK, HEADS, SHARED, SIZE = 16, 4, 2, 32
LENGTHS = (19, 5)  # one beyond a block, one within


def check(backend: Any) -> None:
    """Raise an error that names the layers with other results."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        windowed = {f"{k}, of a window": v for k, v in attention(backend, 3, 2.0).items()}
        found = {"norm": _norm(backend), "gate": _gate(backend), **attention(backend), **windowed}
    wrong = {name: off for name, off in found.items() if not off <= ALLOWED}
    if wrong:
        told = ", ".join(f"{name} off by {off:.1e}" for name, off in wrong.items())
        raise DeeplinkError(
            _(
                "LMDeploy's layers compute something else on dlinfer's ops: {told}; "
                "allowed: {allowed:g} of the largest result."
            ).format(told=told, allowed=ALLOWED),
            _("`DLINFER_VENDOR=reference` shows whether the error is in a kernel or the adaptor."),
        )


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu() - expected).abs().max() / expected.abs().max())


def _norm(backend: Any) -> float:
    specs: Any = importlib.import_module("lmdeploy.pytorch.backends.norm")
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    layer = backend.build_op(specs.RMSNormBuildSpec(64, 1e-6))
    on = (t.to(backend.device) for t in (x, weight, residual))
    normed, total = layer.forward(*on)
    expected = F.rms_norm(x + residual, (64,), weight, 1e-6)
    return max(_off(normed, expected), _off(total, x + residual))


def _gate(backend: Any) -> float:
    specs: Any = importlib.import_module("lmdeploy.pytorch.backends.activation")
    x = torch.randn(3, 64)
    found = backend.build_op(specs.SiluAndMulBuildSpec(inplace=True)).forward(x.to(backend.device))
    return _off(found, F.silu(x[:, :32]) * x[:, 32:])


def attention(backend: Any, window: int = 0, softcap: float = 0.0) -> dict[str, float]:
    """Return the errors of two sequences: tokens in parts, then the last one alone."""
    specs: Any = importlib.import_module("lmdeploy.pytorch.backends.attention")
    layer = backend.build_op(
        specs.PagedAttentionBuildSpec(
            num_heads=HEADS,
            head_dim=SIZE,
            scale=SIZE**-0.5,
            num_kv_heads=SHARED,
            v_head_dim=SIZE,
            alibi=False,
            sliding_window=window or None,
            logit_softcapping=softcap,
            causal=True,
            use_flash_mla=False,
            mla_index_topk=None,
            learnable_sink=False,
            block_sparse_size=1,
        )
    )
    q = [torch.randn(n, HEADS, SIZE) for n in LENGTHS]
    k, v = ([torch.randn(n, SHARED, SIZE) for n in LENGTHS] for _ in "kv")
    expected = [_plain(*parts, window, softcap) for parts in zip(q, k, v, strict=True)]
    caches = [torch.full((8, BLOCK, SHARED, SIZE), torch.nan, device=backend.device) for _ in "kv"]
    table = torch.tensor([[3, 6], [1, 0]], device=backend.device)

    def run(first: tuple[int, ...], last: tuple[int, ...], decoding: bool = False) -> float:
        spans = [slice(a, b) for a, b in zip(first, last, strict=True)]
        new = [torch.cat([t[s] for t, s in zip(ts, spans, strict=True)]) for ts in (q, k, v)]
        context = SimpleNamespace(
            kv_caches=[caches],
            block_offsets=table,
            q_seqlens=torch.tensor(last, device=table.device)
            - torch.tensor(first, device=table.device),
            kv_seqlens=torch.tensor(last, device=table.device),
            is_decoding=decoding,
            max_q_seqlen=max(b - a for a, b in zip(first, last, strict=True)),
            max_kv_seqlen=max(last),
        )
        metadata = backend.update_step_context(context).attn_metadata
        found = layer.forward(*(t.to(backend.device) for t in new), *caches, metadata)
        return _off(found, torch.cat([e[s] for e, s in zip(expected, spans, strict=True)]))

    before = tuple(n - 1 for n in LENGTHS)
    return {
        "attention of a prompt": run((0, 0), (4, 2)),
        "attention over the cache": run((4, 2), before),
        "attention of one token": run(before, LENGTHS, decoding=True),
    }


def _plain(q: Tensor, k: Tensor, v: Tensor, window: int, softcap: float) -> Tensor:
    k, v = (t.repeat_interleave(HEADS // SHARED, 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    if window:
        seen = seen.triu(1 - window)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
