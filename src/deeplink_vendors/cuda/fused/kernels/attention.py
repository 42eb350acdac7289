# SPDX-License-Identifier: Apache-2.0
"""Kernels of attention: one query for each row over parts of its keys; and tiles of queries."""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """Compute tanh accurate to the last bits near 0, where the quotient would lose them."""
    far = tl.abs(x)
    e = tl.exp(-2.0 * far)
    quotient = (1.0 - e) / (1.0 + e)
    s = x * x
    series = s * (-0.05396825396825397 + s * (0.021869488536155203 - s * 0.008863235529902197))
    series = far * (1.0 + s * (-0.3333333333333333 + s * (0.13333333333333333 + series)))
    result = tl.where(far < 0.3, series, quotient)
    return tl.where(x < 0, -result, result)


LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _along(there, at, size, EVEN: tl.constexpr):
    """Return a mask over keys, and over a head's size where it does not fill its tile."""
    return there if EVEN else there & (at < size)


@triton.jit
def _read(pointers, mask, ALL: tl.constexpr):
    """Load what the mask selects, else zeros; ALL: load without a mask."""
    if ALL:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask, 0.0)


@triton.jit
def _scaled_queries(queries, scales, zeros, d, size, ZEROS: tl.constexpr):
    """Multiply queries by the scales of quantised keys; return also the zeros' share of a score."""
    scale = tl.load(scales + d, d < size, 0.0)
    scaled = (queries.to(tl.float32) * scale[None, :]).to(queries.dtype)
    offset = tl.zeros((queries.shape[0],), tl.float32)
    if ZEROS:
        zero = tl.load(zeros + d, d < size, 0.0)
        offset = tl.sum(scaled.to(tl.float32) * zero[None, :], 1)
    return scaled, offset


@triton.jit
def _scaled_values(made, total, scales, zeros, e, size, ZEROS: tl.constexpr):
    """Convert sums of quantised values to sums of values."""
    if ZEROS:
        made -= total[:, None] * tl.load(zeros + e, e < size, 0.0)[None, :]
    return made * tl.load(scales + e, e < size, 0.0)[None, :]


@triton.jit
def _shaped(scores, softcap, slope, far, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Convert scores to the input of softmax, to the base 2."""
    if SOFTCAP:
        scores = softcap * tanh(scores / softcap)
    if ALIBI:
        scores -= slope * tl.abs(far)
    return scores * LOG2E


@triton.jit
def decode(
    q, k, v, table, lens, out, tops, sums, slopes, k_scales, v_scales, k_zeros, v_zeros,
    scale, softcap, window, q_row, q_head, k_block, k_place, k_head, v_block, v_place, v_head,
    table_row, block, heads, parts, size, value_size,
    GROUP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    KEYS: tl.constexpr, EVEN: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    ALIBI: tl.constexpr, QUANT: tl.constexpr, ZEROS: tl.constexpr, WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with the queries that share a head of keys and values, over one part of a row's keys.

    WHOLE: there is one part, and `out` is the result; else it is in float32, before division.
    """
    head = tl.program_id(0)
    part = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    length = tl.load(lens + row).to(tl.int32)
    begin = 0
    if WINDOW:
        begin = tl.maximum(0, length - window)
    share = tl.cdiv(tl.cdiv(length - begin, parts), KEYS) * KEYS
    first = begin + part * share
    last = tl.minimum(length, first + share)
    query = tl.arange(0, ROWS)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, VALUES)
    own = query < GROUP
    queries = tl.load(
        q + row * q_row + (head * GROUP + query)[:, None] * q_head + d[None, :],
        own[:, None] & (d < size)[None, :], 0.0,
    )  # fmt: skip
    if QUANT:
        queries, offset = _scaled_queries(
            queries, k_scales + head * size, k_zeros + head * size, d, size, ZEROS
        )
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    made = tl.zeros((ROWS, VALUES), tl.float32)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head * GROUP + query, own, 0.0).to(tl.float32)[:, None]
    k += head * k_head
    v += head * v_head
    table += row * table_row
    for start in range(first, last, KEYS):
        key = start + tl.arange(0, KEYS)
        there = key < last
        number = tl.load(table + key // block, there, 0).to(tl.int64)
        place = key % block
        keys = tl.load(
            k + (number * k_block + place * k_place)[None, :] + d[:, None],
            _along(there[None, :], d[:, None], size, EVEN), 0.0,
        )  # fmt: skip
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION)
        if QUANT:
            scores -= offset[:, None]
        far = (length - 1 - key)[None, :]
        scores = _shaped(scores * scale, softcap, slope, far, SOFTCAP, ALIBI)
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        values = tl.load(
            v + (number * v_block + place * v_place)[:, None] + e[None, :],
            _along(there[:, None], e[None, :], value_size, EVEN), 0.0,
        ).to(queries.dtype)  # fmt: skip
        made = made * shrink[:, None]
        made = tl.dot(weights.to(values.dtype), values, made, input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        top = higher
    if QUANT:
        of_values = head * value_size
        made = _scaled_values(
            made, total, v_scales + of_values, v_zeros + of_values, e, value_size, ZEROS
        )
    stored = own[:, None] & (e < value_size)[None, :]
    of_head = (row * heads + head) * GROUP + query
    if WHOLE:
        made = made / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(out + of_head[:, None] * value_size + e[None, :], made, stored)
    else:
        place = of_head * parts + part
        tl.store(out + place[:, None] * value_size + e[None, :], made, stored)
        tl.store(tops + place, top, own)
        tl.store(sums + place, total, own)


@triton.jit
def merge(parts_out, tops, sums, out, parts, value_size, PARTS: tl.constexpr, VALUES: tl.constexpr):
    """Merge the parts of a query's keys to its result."""
    query = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    e = tl.arange(0, VALUES)
    there = part < parts
    inside = (e < value_size)[None, :]
    place = query * parts + part
    top = tl.load(tops + place, there, float("-inf"))
    total = tl.load(sums + place, there, 0.0)
    highest = tl.max(top, 0)
    share = tl.where(total == 0, 0.0, tl.exp2(top - tl.where(total == 0, top, highest)))
    whole = tl.sum(share * total, 0)
    made = tl.load(
        parts_out + place[:, None] * value_size + e[None, :], there[:, None] & inside, 0.0
    )
    result = tl.sum(made * share[:, None], 0) / tl.where(whole == 0, 1.0, whole)
    tl.store(out + query * value_size + e, result, e < value_size)


@triton.jit
def prefill(
    q, k, v, out, cu_q, bounds, table, slopes, k_scales, v_scales, k_zeros, v_zeros,
    scale, softcap, window, q_token, q_head, k_block, k_place, k_head, v_block, v_place, v_head,
    table_row, block, heads, group, size, value_size,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    PAGED: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, ALIBI: tl.constexpr, QUANT: tl.constexpr, ZEROS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with one head of a tile of a sequence's queries.

    PAGED: `bounds` holds the lengths of the keys, which are in blocks; else their starts and ends.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    origin = tl.load(cu_q + row).to(tl.int64)
    count = (tl.load(cu_q + row + 1) - origin).to(tl.int32)
    if tile * QUERIES < count:
        shared = head // group
        k += shared * k_head
        v += shared * v_head
        if PAGED:
            length = tl.load(bounds + row).to(tl.int32)
            table += row.to(tl.int64) * table_row
        else:
            start = tl.load(bounds + row).to(tl.int64)
            length = (tl.load(bounds + row + 1) - start).to(tl.int32)
            k += start * k_place
            v += start * v_place
        query = tile * QUERIES + tl.arange(0, QUERIES)
        d = tl.arange(0, SIZE)
        e = tl.arange(0, VALUES)
        queries = tl.load(
            q + (origin + query)[:, None] * q_token + head * q_head + d[None, :],
            (query < count)[:, None] & (d < size)[None, :], 0.0,
        )  # fmt: skip
        place = query + (length - count)  # of a query among the keys
        lowest = tile * QUERIES + (length - count)
        highest = tl.minimum(lowest + QUERIES, length) - 1
        first = 0
        last = length
        if CAUSAL:
            last = tl.minimum(length, highest + 1)
        if WINDOW:
            first = tl.maximum(0, lowest - window + 1) // KEYS * KEYS
            last = tl.minimum(last, highest + window)
        slope = 0.0
        if ALIBI:
            slope = tl.load(slopes + head).to(tl.float32)
        if QUANT:
            queries, offset = _scaled_queries(
                queries, k_scales + shared * size, k_zeros + shared * size, d, size, ZEROS
            )
        top = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        made = tl.zeros((QUERIES, VALUES), tl.float32)
        # keys that are visible to every query of the tile need no mask
        clear = length
        if CAUSAL:
            clear = tl.minimum(clear, lowest + 1)
        if WINDOW:
            clear = first
        clear = tl.maximum(first, first + (clear - first) // KEYS * KEYS)
        for phase in tl.static_range(2):
            begin = first if phase == 0 else clear
            end = clear if phase == 0 else last
            for at in range(begin, end, KEYS):
                key = at + tl.arange(0, KEYS)
                there = key < length
                if PAGED:
                    number = tl.load(table + key // block, there, 0).to(tl.int64)
                    k_at = number * k_block + (key % block) * k_place
                    v_at = number * v_block + (key % block) * v_place
                else:
                    k_at = key.to(tl.int64) * k_place
                    v_at = key.to(tl.int64) * v_place
                keys = _read(
                    k + k_at[None, :] + d[:, None],
                    _along(there[None, :], d[:, None], size, EVEN), EVEN and phase == 0,
                )  # fmt: skip
                scores = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION)
                if QUANT:
                    scores -= offset[:, None]
                far = place[:, None] - key[None, :]
                scores = _shaped(scores * scale, softcap, slope, far, SOFTCAP, ALIBI)
                if phase == 1:
                    seen = there[None, :]
                    if CAUSAL:
                        seen = seen & (far >= 0)
                    if WINDOW:
                        seen = seen & (far < window) & (far > -window)
                    scores = tl.where(seen, scores, float("-inf"))
                higher = tl.maximum(top, tl.max(scores, 1))
                level = tl.where(higher == float("-inf"), 0.0, higher)
                weights = tl.exp2(scores - level[:, None])
                shrink = tl.exp2(top - level)
                values = _read(
                    v + v_at[:, None] + e[None, :],
                    _along(there[:, None], e[None, :], value_size, EVEN), EVEN and phase == 0,
                ).to(queries.dtype)  # fmt: skip
                made = made * shrink[:, None]
                made = tl.dot(weights.to(values.dtype), values, made, input_precision=PRECISION)
                total = total * shrink + tl.sum(weights, 1)
                top = higher
        if QUANT:
            of_values = shared * value_size
            made = _scaled_values(
                made, total, v_scales + of_values, v_zeros + of_values, e, value_size, ZEROS
            )
        made = made / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(
            out + ((origin + query)[:, None] * heads + head) * value_size + e[None, :],
            made, (query < count)[:, None] & (e < value_size)[None, :],
        )  # fmt: skip


@triton.jit
def clear_rest(out, bounds, last, tokens, size, BLOCK: tl.constexpr):
    """Write zeros for tokens of no sequence among 64: those after the last bound."""
    first = tl.program_id(0) * 64
    end = tl.load(bounds + last).to(tl.int32)
    if first + 64 > end:
        for token in range(tl.maximum(first, end), tl.minimum(first + 64, tokens)):
            for start in range(0, size, BLOCK):
                at = start + tl.arange(0, BLOCK)
                place = out + token.to(tl.int64) * size + at
                tl.store(place, tl.zeros((BLOCK,), out.dtype.element_ty), at < size)
