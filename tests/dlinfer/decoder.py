"""A small model in dlinfer's ops, as a framework runs one: a step over a paged cache."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import dlinfer
from dlinfer import fused

HIDDEN, HEADS, SHARED, SIZE, INNER, EXPERTS, BLOCK, WORDS = 32, 4, 2, 8, 48, 4, 4, 61


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; with experts, a mixture in place of the gated layer."""

    norms: tuple[Tensor, Tensor]
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor | None


def layers(count: int, experts: bool, device: str = "cpu") -> list[Layer]:
    """Random weights, the same at each call."""
    drawn = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=drawn) * shape[-1] ** -0.5).to(device)

    many = (EXPERTS,) if experts else ()
    return [
        Layer(
            (1 + draw(HIDDEN), 1 + draw(HIDDEN)),
            draw((HEADS + 2 * SHARED) * SIZE, HIDDEN),
            draw(HIDDEN, HEADS * SIZE),
            draw(*many, 2 * INNER, HIDDEN),
            draw(*many, HIDDEN, INNER),
            draw(EXPERTS, HIDDEN) if experts else None,
        )
        for _ in range(count)
    ]


def caches(count: int, blocks: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    """Zeros, as the device's vendor wants them."""

    def one() -> Tensor:
        cache = dlinfer.new_cache(blocks, BLOCK, SHARED, SIZE, dtype=torch.float32, device=device)
        return cache.zero_()

    return [(one(), one()) for _ in range(count)]


def step(
    model: list[Layer],
    held: list[tuple[Tensor, Tensor]],
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    table: Tensor,
    lengths: Tensor,
    longest: int,
) -> Any:
    """Run one token of every row through the model: x [rows, hidden]."""
    total = x
    normed = fused.rms_norm(x, model[0].norms[0], 1e-6)
    for at, (layer, (k_cache, v_cache)) in enumerate(zip(model, held, strict=True)):
        both = fused.linear(normed, layer.qkv).unflatten(-1, (-1, SIZE))
        q, k, v = both.split((HEADS, SHARED, SHARED), 1)
        q, k = fused.rotary(q, k, cos, sin)
        fused.fill_kv_cache(k, v, k_cache, v_cache, slots)
        seen = fused.paged_decode_attention(
            q, k_cache, v_cache, table, lengths, longest, SIZE**-0.5
        )
        attended = fused.linear(seen.flatten(1), layer.out)
        normed, total = fused.add_rms_norm(attended, total, layer.norms[1], 1e-6)
        made = _gated(layer, normed)
        weight = model[(at + 1) % len(model)].norms[0]
        normed, total = fused.add_rms_norm(made, total, weight, 1e-6)
    return normed


def _gated(layer: Layer, x: Tensor) -> Any:
    if layer.router is None:
        return fused.linear(fused.silu_and_mul(fused.linear(x, layer.gate_up)), layer.down)
    weights, experts = fused.moe_gating(fused.linear(x, layer.router), 2, True)
    return fused.fused_moe(x, layer.gate_up, layer.down, weights, experts)


def given(rows: int, length: int, device: str = "cpu") -> tuple[Any, ...]:
    """Return the arguments of `step` after the caches: each row's token is its `length`-th."""
    drawn = torch.Generator().manual_seed(rows * 100 + length)
    angles = torch.rand(rows, SIZE, generator=drawn)
    blocks = -(-length // BLOCK)
    table = torch.arange(rows * 8, dtype=torch.int32).view(rows, 8)
    slots = table[:, blocks - 1].long() * BLOCK + (length - 1) % BLOCK
    tensors = (
        torch.randn(rows, HIDDEN, generator=drawn), angles.cos(), angles.sin(), slots, table,
        torch.full((rows,), length, dtype=torch.int32),
    )  # fmt: skip
    return (*(t.to(device) for t in tensors), length)
