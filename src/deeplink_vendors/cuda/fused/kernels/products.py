# SPDX-License-Identifier: Apache-2.0
"""Kernels of products: of quantised weights, of int8 on both sides, of experts."""

import triton
import triton.language as tl

from deeplink_vendors.cuda.fused.kernels.tokens import activated, sigmoid


@triton.jit
def _numbers(
    weight, scale, offset, column, at, there, outer, w_row, groups, group, kind: tl.constexpr,
    FOUR: tl.constexpr, OFFSET: tl.constexpr, WHOLE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Load weights [at, column] as numbers; WHOLE: a step is within one group.
    FOUR: two in a byte.
    """
    place = weight + column[None, :] * w_row
    if FOUR:
        both = tl.load(place + (at // 2)[:, None], there, 0).to(tl.int32)
        made = ((both >> ((at % 2) * 4)[:, None]) & 15).to(tl.float32)
    else:
        made = tl.load(place + at[:, None], there, 0).to(tl.float32)
    if WHOLE:
        of = (column * groups + tl.min(at, 0) // group)[None, :]
        inside = (column < outer)[None, :]
    else:
        of = column[None, :] * groups + (at // group)[:, None]
        inside = there
    if OFFSET:
        made += tl.load(offset + of, inside, 0.0).to(tl.float32)
    return (made * tl.load(scale + of, inside, 0.0).to(tl.float32)).to(kind)


@triton.jit
def weight_quant(
    x, weight, scale, offset, bias, y, count, inner, outer, groups, group, x_row, w_row,
    FOUR: tl.constexpr, OFFSET: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of x @ weight.T, dequantising the weights on the fly."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    made = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, inner, STEP):
        at = start + tl.arange(0, STEP)
        inside = at < inner
        left = tl.load(
            x + row[:, None] * x_row + at[None, :], (row < count)[:, None] & inside[None, :], 0.0
        )
        there = inside[:, None] & (column < outer)[None, :]
        right = _numbers(
            weight, scale, offset, column, at, there, outer, w_row, groups, group, left.dtype,
            FOUR, OFFSET, WHOLE, STEP,
        )  # fmt: skip
        made = tl.dot(left, right, made, input_precision=PRECISION)
    if BIAS:
        made += tl.load(bias + column, column < outer, 0.0).to(tl.float32)[None, :]
    tl.store(
        y + row[:, None] * outer + column[None, :], made,
        (row < count)[:, None] & (column < outer)[None, :],
    )  # fmt: skip


@triton.jit
def restore(
    weight, scale, offset, y, inner, outer, groups, group, w_row,
    FOUR: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Dequantise a part of a row of weights."""
    column = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (at < inner)[:, None] & (column < outer)[None, :]
    made = _numbers(
        weight, scale, offset, column, at, there, outer, w_row, groups, group, y.dtype.element_ty,
        FOUR, OFFSET, False, BLOCK,
    )  # fmt: skip
    tl.store(y + column[None, :] * inner + at[:, None], made, there)


@triton.jit
def w8a8(
    a, b, a_scale, b_scale, bias, y, count, inner, outer, a_row, b_row,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of a @ b.T, exact in int32, then scaled."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    made = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, inner, STEP):
        at = start + tl.arange(0, STEP)
        inside = at < inner
        left = tl.load(
            a + row[:, None] * a_row + at[None, :], (row < count)[:, None] & inside[None, :], 0
        )
        right = tl.load(
            b + column[None, :] * b_row + at[:, None],
            inside[:, None] & (column < outer)[None, :],
            0,
        )
        made = tl.dot(left, right, made, out_dtype=tl.int32)
    scaled = made.to(tl.float32) * tl.load(a_scale + row, row < count, 0.0)[:, None]
    scaled *= tl.load(b_scale + column, column < outer, 0.0)[None, :]
    if BIAS:
        scaled += tl.load(bias + column, column < outer, 0.0).to(tl.float32)[None, :]
    tl.store(
        y + row[:, None] * outer + column[None, :], scaled,
        (row < count)[:, None] & (column < outer)[None, :],
    )  # fmt: skip


@triton.jit
def gate_up(
    x, weight, y, order, tile_expert, tile_first, tile_last, inner, size, chosen, x_row,
    w_expert, w_row, KIND: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one expert's tokens: the gate's activation times the gated values."""
    tile = tl.program_id(0)
    first = tl.load(tile_first + tile)
    last = tl.load(tile_last + tile)
    if first < last:
        expert = tl.load(tile_expert + tile).to(tl.int64)
        row = first + tl.arange(0, ROWS)
        there = row < last
        token = tl.load(order + row, there, 0) // chosen
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < inner
        gates = weight + expert * w_expert + column[None, :] * w_row
        gate = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, size, STEP):
            at = start + tl.arange(0, STEP)
            left = tl.load(
                x + token[:, None] * x_row + at[None, :],
                there[:, None] & (at < size)[None, :], 0.0,
            )  # fmt: skip
            within = (at < size)[:, None] & inside[None, :]
            right = tl.load(gates + at[:, None], within, 0.0)
            gate = tl.dot(left, right, gate, input_precision=PRECISION)
            right = tl.load(gates + inner * w_row + at[:, None], within, 0.0)
            up = tl.dot(left, right, up, input_precision=PRECISION)
        kind = y.dtype.element_ty
        made = activated(gate.to(kind).to(tl.float32), KIND).to(kind).to(tl.float32)
        made *= up.to(kind).to(tl.float32)
        tl.store(
            y + row.to(tl.int64)[:, None] * inner + column[None, :], made,
            there[:, None] & inside[None, :],
        )  # fmt: skip


@triton.jit
def down(
    h, weight, y, shares, order, tile_expert, tile_first, tile_last, inner, size,
    w_expert, w_row, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Project a tile back to the tokens' size, times the tokens' weights, in float32."""
    tile = tl.program_id(0)
    first = tl.load(tile_first + tile)
    last = tl.load(tile_last + tile)
    if first < last:
        expert = tl.load(tile_expert + tile).to(tl.int64)
        row = first + tl.arange(0, ROWS)
        there = row < last
        choice = tl.load(order + row, there, 0).to(tl.int64)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < size
        made = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, inner, STEP):
            at = start + tl.arange(0, STEP)
            left = tl.load(
                h + row.to(tl.int64)[:, None] * inner + at[None, :],
                there[:, None] & (at < inner)[None, :], 0.0,
            )  # fmt: skip
            right = tl.load(
                weight + expert * w_expert + column[None, :] * w_row + at[:, None],
                (at < inner)[:, None] & inside[None, :], 0.0,
            )  # fmt: skip
            made = tl.dot(left, right, made, input_precision=PRECISION)
        made *= tl.load(shares + choice, there, 0.0).to(tl.float32)[:, None]
        tl.store(
            y + choice[:, None] * size + column[None, :], made, there[:, None] & inside[None, :]
        )


@triton.jit
def _best(values, at):
    """Return the first index of the largest value, among indices `at`."""
    largest = tl.max(values, 0)
    return tl.min(tl.where(values == largest, at, 2147483647), 0)


@triton.jit
def gating(
    logits, bias, weights, experts, count, row, scale,
    TOP: tl.constexpr, RENORMALIZE: tl.constexpr, SIGMOID: tl.constexpr, BIAS: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, EXPERTS: tl.constexpr, TOPS: tl.constexpr,
):  # fmt: skip
    """Select one token's experts, best first."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, EXPERTS)
    there = at < count
    scores = tl.load(logits + token * row + at, there, float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = sigmoid(scores)
    else:
        scores = tl.exp(scores - tl.max(scores, 0))
        scores = scores / tl.sum(scores, 0)
    wanted = scores
    if BIAS:
        wanted += tl.load(bias + at, there, 0.0).to(tl.float32)
    wanted = tl.where(there, wanted, float("-inf"))
    if GROUPS > 1:
        parts = tl.reshape(wanted, (GROUPS, EXPERTS // GROUPS))
        worth = tl.max(parts, 1)
        if BIAS:
            inside = tl.reshape(at, (GROUPS, EXPERTS // GROUPS))
            first = tl.min(tl.where(parts == worth[:, None], inside, EXPERTS), 1)
            worth += tl.max(tl.where(inside == first[:, None], float("-inf"), parts), 1)
        group = tl.arange(0, GROUPS)
        kept = tl.zeros((GROUPS,), tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            one = _best(worth, group)
            kept = tl.where(group == one, 1, kept)
            worth = tl.where(group == one, float("-inf"), worth)
        parts = tl.where((kept > 0)[:, None], parts, float("-inf"))
        wanted = tl.reshape(parts, (EXPERTS,))
    place = tl.arange(0, TOPS)
    chosen = tl.zeros((TOPS,), tl.int64)
    share = tl.zeros((TOPS,), tl.float32)
    left = tl.where(there, 1, 0)
    for turn in tl.static_range(TOP):
        values = tl.where(left > 0, wanted, float("-inf"))
        one = _best(values, at)
        chosen = tl.where(place == turn, one.to(tl.int64), chosen)
        share = tl.where(place == turn, tl.sum(tl.where(at == one, scores, 0.0), 0), share)
        left = tl.where(at == one, 0, left)
    if RENORMALIZE:
        share = share / tl.sum(share, 0)
    inside = place < TOP
    tl.store(weights + token * TOP + place, share * scale, inside)
    tl.store(experts + token * TOP + place, chosen, inside)
