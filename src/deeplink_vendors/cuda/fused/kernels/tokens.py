# SPDX-License-Identifier: Apache-2.0
"""Kernels of token-wise ops: a program for each row, or for a part of one."""

import triton
import triton.language as tl

HALF_STEP = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer


@triton.jit
def whole(x):
    """Round to the nearest int8, ties to even."""
    x = tl.minimum(tl.maximum(x, -128.0), 127.0)
    return ((x + HALF_STEP) - HALF_STEP).to(tl.int8)


@triton.jit
def _scaled(value, numbers, scales, row, size, at, there):
    """Store a row as int8 and its scale."""
    scale = tl.max(tl.where(there, tl.abs(value), 0.0)) / 127
    tl.store(numbers + row * size + at, whole(value / tl.where(scale == 0, 1.0, scale)), there)
    tl.store(scales + row, scale)


@triton.jit
def norm(
    x, residual, weight, y, total, scales, size, x_row, residual_row, eps,
    ADD: tl.constexpr, QUANT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute one row's norm, optionally with the residual's sum before and int8 after."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < size
    value = tl.load(x + row * x_row + at, there, 0.0)
    kind = value.dtype
    if ADD:
        more = tl.load(residual + row * residual_row + at, there, 0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(kind)
        tl.store(total + row * size + at, value, there)
    wide = value.to(tl.float32)
    root = tl.sqrt_rn(tl.sum(wide * wide) / size + eps)
    normed = (wide * (1.0 / root)).to(kind).to(tl.float32)
    normed = normed * tl.load(weight + at, there, 0.0).to(tl.float32)
    if QUANT:
        _scaled(normed.to(kind).to(tl.float32), y, scales, row, size, at, there)
    else:
        tl.store(y + row * size + at, normed, there)


@triton.jit
def quantised(x, numbers, scales, size, x_row, BLOCK: tl.constexpr):
    """Quantise one row to int8 and its scale."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < size
    value = tl.load(x + row * x_row + at, there, 0.0).to(tl.float32)
    _scaled(value, numbers, scales, row, size, at, there)


@triton.jit
def exponential(x):
    """Compute e to the x, also for large x, where the product with log2(e) alone loses digits."""
    powers = (x * 1.4426950408889634 + HALF_STEP) - HALF_STEP
    rest = (x - powers * 0.693359375) + powers * 2.12194440e-4
    return tl.exp2(powers) * tl.exp(rest)


@triton.jit
def sigmoid(x):
    """Compute the sigmoid without overflow."""
    small = exponential(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Compute silu, gelu, or gelu by tanh."""
    if KIND == "silu":
        return x * sigmoid(x)
    elif KIND == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def gated(x, y, half, x_row, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Compute a part of a row: the gate's activation times the gated values."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < half
    gate = tl.load(x + row * x_row + at, there, 0.0).to(tl.float32)
    up = tl.load(x + row * x_row + half + at, there, 0.0).to(tl.float32)
    tl.store(y + row * half + at, activated(gate, KIND) * up, there)


@triton.jit
def _turn(
    x, y, cos, sin, token, heads, first, x_token, x_head, size, turned,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    head = first + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    half = turned // 2
    if INTERLEAVED:
        left, right = 2 * pair, 2 * pair + 1
    else:
        left, right = pair, pair + half
    angle = pair < half
    there = (head < heads)[:, None] & angle[None, :]
    given = x + token * x_token + head[:, None] * x_head
    made = y + (token * heads + head[:, None]) * size
    cos_left = tl.load(cos + token * turned + left, angle, 0.0).to(tl.float32)[None, :]
    cos_right = tl.load(cos + token * turned + right, angle, 0.0).to(tl.float32)[None, :]
    sin_left = tl.load(sin + token * turned + left, angle, 0.0).to(tl.float32)[None, :]
    sin_right = tl.load(sin + token * turned + right, angle, 0.0).to(tl.float32)[None, :]
    a = tl.load(given + left[None, :], there, 0.0).to(tl.float32)
    b = tl.load(given + right[None, :], there, 0.0).to(tl.float32)
    tl.store(made + left[None, :], a * cos_left - b * sin_left, there)
    tl.store(made + right[None, :], b * cos_right + a * sin_right, there)
    if REST > 0:
        beyond = turned + tl.arange(0, REST)
        there = (head < heads)[:, None] & (beyond < size)[None, :]
        tl.store(made + beyond[None, :], tl.load(given + beyond[None, :], there, 0.0), there)


@triton.jit
def rotary(
    q, k, cos, sin, q_out, k_out, q_heads, k_heads, q_token, q_head, k_token, k_head, size, turned,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rotate a few heads of one token: of the queries, then of the keys."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    of_queries = tl.cdiv(q_heads, HEADS)
    if part < of_queries:
        _turn(
            q, q_out, cos, sin, token, q_heads, part * HEADS, q_token, q_head, size, turned,
            INTERLEAVED, HEADS, PAIRS, REST,
        )  # fmt: skip
    else:
        _turn(
            k, k_out, cos, sin, token, k_heads, (part - of_queries) * HEADS, k_token, k_head, size,
            turned, INTERLEAVED, HEADS, PAIRS, REST,
        )  # fmt: skip


@triton.jit
def _put(
    x, cache, scales, zeros, token, head, slot, block, x_token, x_head, c_block, c_place, c_head,
    size, QUANT: tl.constexpr, ZEROS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, SIZE)
    there = at < size
    value = tl.load(x + token * x_token + head * x_head + at, there, 0.0)
    place = cache + (slot // block) * c_block + (slot % block) * c_place + head * c_head + at
    if QUANT:
        moved = value.to(tl.float32) / tl.load(scales + head * size + at, there, 1.0)
        if ZEROS:
            moved += tl.load(zeros + head * size + at, there, 0.0)
        tl.store(place, whole(moved), there)
    else:
        tl.store(place, value.to(cache.dtype.element_ty), there)


@triton.jit
def fill(
    k, v, k_cache, v_cache, slots, k_scales, v_scales, k_zeros, v_zeros, places, block,
    k_token, k_head, v_token, v_head, k_block, k_place, kc_head, v_block, v_place, vc_head,
    k_size, v_size, QUANT: tl.constexpr, ZEROS: tl.constexpr,
    K_SIZE: tl.constexpr, V_SIZE: tl.constexpr,
):  # fmt: skip
    """Write one head of one token to its slot; skip a slot outside of the cache."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if (slot >= 0) & (slot < places):
        _put(
            k, k_cache, k_scales, k_zeros, token, head, slot, block, k_token, k_head,
            k_block, k_place, kc_head, k_size, QUANT, ZEROS, K_SIZE,
        )  # fmt: skip
        _put(
            v, v_cache, v_scales, v_zeros, token, head, slot, block, v_token, v_head,
            v_block, v_place, vc_head, v_size, QUANT, ZEROS, V_SIZE,
        )  # fmt: skip
