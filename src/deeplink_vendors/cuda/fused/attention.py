# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences, over caches in blocks, and dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink_vendors.cuda.fused.kernels import attention as kernels
from deeplink_vendors.cuda.fused.shapes import WHOLE, dense, power, processors, same
from deeplink_vendors.cuda.fused.tokens import spread
from diopi.resolve import limited
from dlinfer.fused.attention import by_torch, is_torchs, zero_where_hidden

LARGEST = 256  # maximum head size of the kernels
PARTS = 64  # maximum parts of a row's keys


@dataclass(frozen=True)
class Visibility:
    """The visibility of keys, and the scales of a quantised cache."""

    softcap: float
    window: int
    slopes: Tensor | None
    scales: tuple[Tensor | None, ...] = (None, None, None, None)

    def pointers(self, heads: int, sizes: tuple[int, int], otherwise: Tensor) -> tuple[Tensor, ...]:
        """Return slopes, k_scales, v_scales, k_zeros, v_zeros in the form of the kernels."""
        spreads = (
            spread(scales, heads, size, otherwise)
            for scales, size in zip(self.scales, (*sizes, *sizes), strict=True)
        )
        return (otherwise if self.slopes is None else self.slopes.contiguous(), *spreads)

    def flags(self) -> dict[str, Any]:
        """Return the compile-time flags of the kernels."""
        return {
            "SOFTCAP": bool(self.softcap),
            "WINDOW": bool(self.window),
            "ALIBI": self.slopes is not None,
            "QUANT": self.scales[0] is not None,
            "ZEROS": self.scales[2] is not None,
        }


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        q.dim() == 3
        and k.shape[-1] == q.shape[-1] <= LARGEST
        and 0 < v.shape[-1] <= LARGEST
        and k.shape[-2] == v.shape[-2] > 0 == q.shape[1] % k.shape[-2]
    )


def _cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    k_zeros: Tensor | None,
    v_zeros: Tensor | None,
    sinks: Tensor | None,
) -> bool:
    """Whether the kernels support such a cache."""
    k, v, quantised = k_cache, v_cache, k_scales is not None
    alike = quantised == (v_scales is not None) and (k_zeros is None) == (v_zeros is None)
    kinds = k.dtype == v.dtype == torch.int8 and same(q) if quantised else same(q, k, v)
    return (
        sinks is None
        and alike
        and kinds
        and k.dim() == v.dim() == 4
        and k.shape[:2] == v.shape[:2]
        and _sizes(q, k, v)
        and k.stride(3) == v.stride(3) == 1
        and block_table.dtype in WHOLE
        and kv_lens.dtype in WHOLE
        and block_table.dim() == 2
    )


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _even(*sizes: int) -> bool:
    """Whether heads fill their tiles, so that no mask along them is needed."""
    return all(size == power(size, 16) for size in sizes)


def steps(item: int, largest: int) -> tuple[int, int, int]:
    """Return the keys of a decoding step, warps and stages, for the bytes of an element."""
    if item * largest <= 256:
        return 64, 4, 2
    return 32, 4, 2 if item == 2 else 1


def parts_of(programs: int, longest: int, keys: int, device: torch.device) -> int:
    """Return the number of parts into which the keys of a row are divided: it minimises rounds of
    all
    processors times steps of a program, plus the cost of merging, as measured on an H200.
    """
    at_once, count = 5 * processors(device), max(1, -(-longest // keys))

    def cost(parts: int) -> float:
        return -(-programs * parts // at_once) * -(-count // parts) * (1 + 0.03 * parts)

    return min(range(1, min(count, PARTS) + 1), key=cost)


@limited(_cached)
def paged_decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    max_kv: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """Run programs for parts of a row's keys, merged where there are several.

    Nothing synchronizes with the device, so that a graph can contain the kernel.
    """
    count, heads, size = q.shape
    shared, value_size = k_cache.shape[2], v_cache.shape[3]
    out = torch.empty((count, heads, value_size), dtype=q.dtype, device=q.device)
    if not count:
        return out
    q = dense(q)
    seen = Visibility(softcap, window, alibi_slopes, (k_scales, v_scales, k_zeros, v_zeros))
    group = heads // shared
    keys, warps, stages = steps(q.element_size(), power(max(size, value_size), 16))
    parts = parts_of(count * shared, min(max_kv, window or max_kv), keys, q.device)
    made, tops, sums = out, out, out
    if parts > 1:
        room = torch.empty(
            count * heads * parts * (value_size + 2), dtype=torch.float32, device=q.device
        )
        made, tops, sums = room.split([count * heads * parts * n for n in (value_size, 1, 1)])
    kernels.decode[(shared, parts, count)](
        q, k_cache, v_cache, block_table, kv_lens, made, tops, sums,
        *seen.pointers(shared, (size, value_size), q), scale, softcap, window,
        q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        block_table.stride(0), k_cache.shape[1], shared, parts, size, value_size,
        GROUP=group, ROWS=power(group, 16), SIZE=power(size, 16), VALUES=power(value_size, 16),
        KEYS=keys, EVEN=_even(size, value_size), **seen.flags(), WHOLE=parts == 1,
        PRECISION=_precision(q),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if parts > 1:
        kernels.merge[(count * heads,)](
            made, tops, sums, out, parts, value_size, power(parts), power(value_size, 16),
            num_warps=1 if parts * value_size <= 2048 else 4,
        )  # fmt: skip
    return out


def _prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    bounds: Tensor,
    table: Tensor | None,
    max_q: int,
    scale: float,
    causal: bool,
    seen: Visibility,
) -> Tensor:
    """Run tiles of queries; keys are in blocks where there is a table, else packed."""
    tokens, heads, size = q.shape
    shared, value_size = k.shape[-2], v.shape[-1]
    # zeros, because some tokens may belong to no sequence
    out = torch.zeros((tokens, heads, value_size), dtype=q.dtype, device=q.device)
    sequences = cu_q.shape[0] - 1
    if not tokens or sequences < 1 or not max_q:
        return out
    q, k, v = dense(q), dense(k), dense(v)
    strides = [0, *k.stride()[:2], 0, *v.stride()[:2]]
    if table is not None:
        strides = [*k.stride()[:3], *v.stride()[:3]]
    largest = power(max(size, value_size), 16)
    queries, keys, warps, stages = tiles(q.element_size(), largest, max_q)
    kernels.prefill[(-(-max_q // queries), heads, sequences)](
        q, k, v, out, cu_q, bounds, q if table is None else table,
        *seen.pointers(shared, (size, value_size), q), scale, seen.softcap, seen.window,
        q.stride(0), q.stride(1), *strides, 0 if table is None else table.stride(0),
        1 if table is None else k.shape[1], heads, heads // shared, size, value_size,
        QUERIES=queries, KEYS=keys, SIZE=power(size, 16), VALUES=power(value_size, 16),
        PAGED=table is not None, CAUSAL=causal, EVEN=_even(size, value_size), **seen.flags(),
        PRECISION=_precision(q),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def tiles(item: int, largest: int, max_q: int) -> tuple[int, int, int, int]:
    """Return queries and keys of a step, warps and stages, for the bytes of an element."""
    if item > 2:  # no tensor cores at full precision: small tiles, or registers are exhausted
        return (16 if largest > 128 else 32), 32, 4, 1
    if largest > 128:
        return min(64, power(max_q, 16)), 32, 4, 2
    if max_q <= 64:
        return power(max_q, 16), 64, 4, 3
    return 128, 64, 8, 3


def _prefills(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> bool:
    return sinks is None and same(q, k, v) and k.dim() == v.dim() == 3 and _sizes(q, k, v)


def _is_flash(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, largest: int) -> bool:
    """Whether torch's own kernel for packed sequences supports the call; it is faster except for
    few.
    """
    sizes = q.shape[2] == k.shape[2] == v.shape[2] and q.shape[2] % 8 == 0
    plain = not seen.softcap and not seen.window and seen.slopes is None
    there = largest > 16 and q.shape[0] > 0 and k.shape[0] > 0
    return q.device.type == "cuda" and q.element_size() == 2 and sizes and plain and there


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_kv: Tensor,
    sizes: tuple[int, int],
    scale: float,
    causal: bool,
) -> Tensor:
    """Call torch's own kernel; tokens of no sequence become zeros afterwards."""
    given = (dense(q), dense(k), dense(v), cu_q.int(), cu_kv.int(), *sizes)
    out: Tensor = torch.ops.aten._flash_attention_forward(*given, 0.0, causal, False, scale=scale)[
        0
    ]
    tokens, row = out.shape[0], out.shape[1] * out.shape[2]
    kernels.clear_rest[(-(-tokens // 64),)](out, cu_q, cu_q.shape[0] - 1, tokens, row, BLOCK=1024)
    return out


@limited(_prefills)
def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_kv: Tensor,
    max_q: int,
    max_kv: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Call torch's own kernel where it applies, else a program for each head of a
    tile of queries.
    """
    seen = Visibility(softcap, window, alibi_slopes)
    if _is_flash(q, k, v, seen, max_q):
        return _flash(q, k, v, cu_q, cu_kv, (max_q, max_kv), scale, causal)
    return _prefill(q, k, v, cu_q, cu_kv, None, max_q, scale, causal, seen)


@limited(_cached)
def paged_prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    max_q: int,
    max_kv: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """Run a program for each head of a tile of queries."""
    seen = Visibility(softcap, window, alibi_slopes, (k_scales, v_scales, k_zeros, v_zeros))
    return _prefill(q, k_cache, v_cache, cu_q, kv_lens, block_table, max_q, scale, causal, seen)


@limited(is_torchs)
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
    """Call torch's own kernel; a query whose mask hides all keys gives zeros."""
    out = by_torch(q, k, v, mask, causal, scale)
    return zero_where_hidden(out, mask) if mask is not None and mask.dtype == torch.bool else out
