# SPDX-License-Identifier: Apache-2.0
"""Cases of attention and of the cache in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dlinfer.cache import new_cache
from dlinfer.conformance.case import apart, draw, makes
from dlinfer.layout import Layout

Cases = Iterator[tuple[str, dict[str, Any]]]
ORDERS = ("NBHD", "NHBD")
BLOCK = 4
# around the limits of a block, and none
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 0, 5 * BLOCK + 2)
# heads, heads of keys and values, size: all ratios, and sizes that fill no vector
HEADS = ((4, 4, 16), (4, 2, 64), (8, 2, 32), (7, 1, 20), (8, 1, 128), (12, 1, 8), (1, 1, 256))
SEEN: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "softcap": {"softcap": 5.0},
    "all of them": {
        "window": 6,
        "softcap": 20.0,
        "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 1]),
    },
    "sinks": {"window": 3, "sinks": torch.tensor([0.5, -80.0, 3.0, 90.0])},
}


def bounds(lengths: Sequence[int]) -> Tensor:
    """Return the limits of packed sequences."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def _cache(dtype: torch.dtype, blocks: int, heads: int, size: int, order: str) -> Tensor:
    cache = new_cache(blocks, BLOCK, heads, size, dtype=dtype, device="cpu", layout=Layout(order))
    return cache.copy_(draw(dtype, blocks, BLOCK, heads, size))


def paged(
    dtype: torch.dtype,
    lengths: Sequence[int],
    heads: int,
    size: int,
    order: str,
    value_size: int | None = None,
) -> dict[str, Any]:
    """Create caches, a random block table and lengths; unused places are NaN."""
    needed = [-(-length // BLOCK) for length in lengths]
    blocks = sum(needed) + 3
    k = _cache(dtype, blocks, heads, size, order)
    v = _cache(dtype, blocks, heads, value_size or size, order)
    free = torch.randperm(blocks)
    table = torch.full((len(lengths), max([*needed, 1]) + 1), blocks - 1, dtype=torch.int32)
    used = torch.zeros(blocks, BLOCK, dtype=torch.bool)
    start = 0
    for row, (count, length) in enumerate(zip(needed, lengths, strict=True)):
        table[row, :count] = free[start : start + count]
        places = torch.arange(length)
        used[table[row, places // BLOCK].long(), places % BLOCK] = True
        start += count
    k[~used], v[~used] = torch.nan, torch.nan
    return {
        "k_cache": k,
        "v_cache": v,
        "block_table": table,
        "kv_lens": torch.tensor(lengths, dtype=torch.int32),
        "max_kv": max([*lengths, 0]),
    }


@makes("fill_kv_cache")
def _fill_kv_cache(dtype: torch.dtype) -> Cases:
    for order in ORDERS:
        for tokens, heads, size in ((5, 2, 16), (1, 1, 20), (0, 2, 8)):
            caches = {f"{n}_cache": _cache(dtype, 4, heads, size, order) for n in "kv"}
            caches["k_cache"][1] = torch.nan
            slots = torch.randperm(4 * BLOCK)[:tokens]
            new = {n: draw(dtype, tokens, heads, size) for n in "kv"}
            yield f"{order}, {tokens} tokens", {**new, **caches, "slots": slots}
            if tokens > 1:
                slots = slots.int().index_fill(0, torch.tensor([0, 3]), -1)
                yield f"{order}, negative slots", {**new, **caches, "slots": slots}
                views = {name: apart(tensor) for name, tensor in new.items()}
                yield f"{order}, rows apart", {**views, **caches, "slots": slots}
        small = {
            f"{n}_cache": torch.randint(-9, 9, (4, BLOCK, 2, 16), dtype=torch.int8) for n in "kv"
        }
        scales = {f"{n}_scales": torch.rand(2, 16) / 32 + 0.02 for n in "kv"}
        zeros = {f"{n}_zeros": torch.randint(-5, 5, (2, 1)).float() for n in "kv"}
        new = {n: draw(dtype, 5, 2, 16) for n in "kv"} | {"slots": torch.randperm(16)[:5]}
        eight = {f"{n}_cache": draw(dtype, 4, BLOCK, 2, 16).to(torch.float8_e4m3fn) for n in "kv"}
        yield "float8", {**new, **eight}
        yield "float8, scaled", {**new, **eight, **scales, "slots": torch.tensor([3, -1, 9, 0, 15])}
        yield "quantised", {**new, **small, **scales}
        yield "quantised, with zeros", {**new, **small, **scales, **zeros}


@makes("paged_decode_attention")
def _paged_decode(dtype: torch.dtype) -> Cases:
    for at, (heads, shared, size) in enumerate(HEADS):
        order = ORDERS[at % 2]
        given = paged(dtype, LENGTHS, shared, size, order)
        q = draw(dtype, len(LENGTHS), heads, size)
        yield f"{heads}/{shared} x {size} {order}", {"q": q, **given, "scale": size**-0.5}
    for order in ORDERS:
        given = paged(dtype, LENGTHS, 2, 32, order) | {"scale": 0.2}
        q = draw(dtype, len(LENGTHS), 4, 32)
        label = "all of them" if order == "NHBD" else "softcap"
        yield f"{label} {order}", {"q": q, **given, **SEEN[label]}
    packed = draw(dtype, len(LENGTHS), 9, 32)
    given["block_table"], given["kv_lens"] = given["block_table"].long(), given["kv_lens"].long()
    yield "views, int64", {"q": packed[:, 2:6], **given}
    yield (
        "no rows",
        {
            "q": draw(dtype, 0, 4, 32),
            **paged(dtype, (), 2, 32, "NBHD"),
            "scale": 0.2,
        },
    )
    given = paged(dtype, (200, 3), 2, 32, "NBHD", value_size=48)
    yield "long, other values", {"q": draw(dtype, 2, 4, 32), **given, "scale": 0.2}
    given = paged(dtype, LENGTHS, 2, 32, "NHBD") | {"scale": 0.2}
    yield "sinks", {"q": draw(dtype, len(LENGTHS), 4, 32), **given, **SEEN["sinks"]}
    yield from _latent(dtype)
    given = paged(torch.float32, LENGTHS, 2, 16, "NBHD")
    for name in "kv":
        cache = given[f"{name}_cache"].nan_to_num(0.0)
        given[f"{name}_cache"] = (cache * 30).round().clamp(-128, 127).to(torch.int8)
        given[f"{name}_scales"] = torch.rand(2, 16) / 32 + 0.01
        given[f"{name}_zeros"] = torch.randint(-5, 5, (2, 1)).float()
    yield "quantised", {"q": draw(dtype, len(LENGTHS), 4, 16), **given, "scale": 0.2}
    yield "float8", {"q": draw(dtype, len(LENGTHS), 4, 16), **_float8(dtype)}


def _latent(dtype: torch.dtype) -> Cases:
    """Queries over one cache of latents, whose first part is the values too."""
    for heads, size, turned in ((16, 512, 64), (3, 36, 8)):
        given = paged(dtype, LENGTHS, 1, size + turned, "NBHD")
        given["v_cache"] = given["k_cache"][..., :size]
        q = draw(dtype, len(LENGTHS), heads, size + turned)
        yield f"latents, {heads} x {size} + {turned}", {"q": q, **given, "scale": 0.05}


def _float8(dtype: torch.dtype) -> dict[str, Any]:
    """Create caches of float8, with scales."""
    given = paged(torch.float32, LENGTHS, 2, 16, "NBHD")
    for name in "kv":
        cache = (given[f"{name}_cache"] * 30).to(torch.float8_e4m3fn)
        given[f"{name}_cache"] = cache
        given[f"{name}_scales"] = torch.rand(2, 16) / 32 + 0.01
    return given | {"scale": 0.2}


@makes("paged_prefill_attention")
def _paged_prefill(dtype: torch.dtype) -> Cases:
    new: tuple[int, ...] = (1, 2, BLOCK, 3, 0, 2 * BLOCK + 1)  # the number of new tokens of each
    lengths: tuple[int, ...] = LENGTHS
    for at, (heads, shared, size) in enumerate(HEADS[1:6:2]):
        order = ORDERS[at % 2]
        given = paged(dtype, lengths, shared, size, order) | {"cu_q": bounds(new)}
        q = draw(dtype, sum(new), heads, size)
        given |= {"max_q": max(new), "scale": size**-0.5}
        yield f"{heads}/{shared} x {size} {order}", {"q": q, **given}
    given = paged(dtype, lengths, 2, 32, "NBHD") | {"cu_q": bounds(new), "max_q": 9, "scale": 0.2}
    q = draw(dtype, sum(new), 4, 32)
    yield "all of them", {"q": q, **given, **SEEN["all of them"]}
    yield "sinks", {"q": q, **given, **SEEN["sinks"]}
    yield "not causal, window", {"q": q, **given, "causal": False, "window": 3}
    yield "tokens of no sequence", {"q": torch.cat((q, q[:2])), **given}
    long = (20, 3, 33, 18)  # the third with more keys, the last with fewer
    given = paged(dtype, (20, 9, 70, 17), 2, 32, "NHBD") | {"cu_q": bounds(long)}
    given |= {"max_q": max(long), "scale": 0.2}
    q = draw(dtype, sum(long), 4, 32)
    yield "long and short", {"q": q, **given}
    yield "long, sinks", {"q": q, **given, "sinks": SEEN["sinks"]["sinks"]}
    yield "long and short, not causal", {"q": q, **given, "causal": False}


@makes("prefill_attention")
def _prefill(dtype: torch.dtype) -> Cases:
    for heads, shared, size in HEADS[::3]:
        yield f"{heads}/{shared} x {size}", _packed(dtype, (5, 0, 17), heads, shared, size)
    for causal in (True, False):
        more = {"causal": causal}
        lengths = (3, 70) if causal else (50,)
        yield f"long, causal {causal}", _packed(dtype, lengths, 4, 2, 32) | more
        equal = _packed(dtype, (20, 20, 5, 20), 4, 2, 32, (33, 33, 9, 20)) | more
        yield f"of equal lengths, causal {causal}", equal
        uneven = _packed(dtype, (3, 2), 4, 2, 32, (5, 9)) | more
        yield f"more keys, causal {causal}", uneven
        seen = SEEN["all of them" if causal else "window"]
        yield f"not all seen, causal {causal}", _packed(dtype, (9,), 4, 2, 32) | seen | more
        sinks = {"sinks": SEEN["sinks"]["sinks"]}
        yield f"sinks, causal {causal}", _packed(dtype, (9, 30), 4, 2, 32) | sinks | more
    yield "more queries than keys", _packed(dtype, (4, 3), 4, 2, 16, (2, 0))
    packed = draw(dtype, 60, 8, 32)
    views = {"q": packed[:, :4], "k": packed[:, 4:6], "v": packed[:, 6:]}
    yield "views", _packed(dtype, (57, 3), 4, 2, 32) | views
    wider = _packed(dtype, (60,), 4, 2, 32)
    yield "other values", wider | {"v": draw(dtype, 60, 2, 48)}
    given = _packed(dtype, (30, 20), 4, 2, 32)
    yield "tokens of no sequence", given | {"q": draw(dtype, 53, 4, 32)}
    empty = _packed(dtype, (), 4, 2, 32)
    yield "no sequences", empty


def _packed(
    dtype: torch.dtype,
    lengths: Sequence[int],
    heads: int,
    shared: int,
    size: int,
    keys: Sequence[int] | None = None,
) -> dict[str, Any]:
    counts = lengths if keys is None else keys
    return {
        "q": draw(dtype, sum(lengths), heads, size),
        "k": draw(dtype, sum(counts), shared, size),
        "v": draw(dtype, sum(counts), shared, size),
        "cu_q": bounds(lengths),
        "cu_kv": bounds(counts),
        "max_q": max([*lengths, 0]),
        "max_kv": max([*counts, 0]),
        "scale": size**-0.5,
    }


@makes("dense_attention")
def _dense(dtype: torch.dtype) -> Cases:
    for heads, shared, causal in ((4, 4, False), (4, 2, True), (7, 1, True)):
        q = draw(dtype, 2, 5, heads, 16)
        k, v = (draw(dtype, 2, 9, shared, 16) for _ in range(2))
        given = {"q": q, "k": k, "v": v, "mask": None, "causal": causal, "scale": 0.25}
        yield f"{heads}/{shared}, causal {causal}", given
        seen = torch.rand(2, 1, 5, 9) < 0.7
        seen[0, 0, 1] = False  # a query that sees nothing
        yield f"{heads}/{shared}, mask of bools", given | {"mask": seen, "causal": False}
        sinks = {"sinks": torch.randn(heads), "mask": seen, "causal": False}
        yield f"{heads}/{shared}, sinks", given | sinks
        yield f"{heads}/{shared}, mask added", given | {"mask": draw(dtype, 1, heads, 5, 9)}
    heads_first = [draw(dtype, 2, 4, 5, 16).transpose(1, 2) for _ in range(3)]
    views = dict(zip("qkv", heads_first, strict=True))
    yield "views", {**views, "mask": None, "causal": True, "scale": 0.25, "softcap": 10.0}
