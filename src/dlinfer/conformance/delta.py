# SPDX-License-Identifier: Apache-2.0
"""Cases of the gated delta rule and its convolution, and of sparse attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dlinfer.conformance.case import apart, draw, makes
from dlinfer.conformance.paged import BLOCK, bounds, paged

Cases = Iterator[tuple[str, dict[str, Any]]]
# channels, width of the convolution, length of the state: vectors that are filled, and not
CONVS = ((40, 4, 3), (7, 4, 4), (130, 2, 5), (16, 1, 1))


def _conv(dtype: torch.dtype, tokens: int, rows: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for channels, width, length in CONVS:
        state = draw(dtype, rows + 2, channels, length)
        given = {
            "x": draw(dtype, tokens, channels),
            "weight": draw(dtype, channels, width),
            "bias": None,
            "state": state,
            "slots": torch.randperm(rows + 2)[:rows],
        }
        label = f"{channels} channels, width {width} of {length}"
        yield label, given
        yield (
            f"{label}, bias, no activation",
            given | {"bias": draw(dtype, channels)} | {"activation": ""},
        )
        yield f"{label}, views", given | {"x": apart(draw(dtype, tokens, channels))}


@makes("causal_conv1d_decode")
def _conv_decode(dtype: torch.dtype) -> Cases:
    for rows in (3, 1, 0):
        for label, given in _conv(dtype, rows, rows):
            yield f"{rows} rows, {label}", given
    slots = torch.tensor([4, -1, 0], dtype=torch.int32)
    yield (
        "a negative slot",
        given
        | {
            "x": draw(dtype, 3, 16),
            "state": draw(dtype, 5, 16, 2),
            "weight": draw(dtype, 16, 3),
            "slots": slots,
        },
    )


@makes("causal_conv1d_prefill")
def _conv_prefill(dtype: torch.dtype) -> Cases:
    lengths = (1, 9, 0, 2)
    for label, given in _conv(dtype, sum(lengths), len(lengths)):
        yield label, given | {"cu_q": bounds(lengths)}
    fresh = torch.tensor([False, True, False, True])
    given |= {"cu_q": bounds(lengths), "weight": draw(dtype, 16, 4)}
    given |= {"state": draw(dtype, 6, 16, 4), "fresh": fresh}
    yield "some fresh", given
    given["state"][3] = torch.nan  # of no row, and of a fresh one
    slots = torch.tensor([0, 3, -1, 1])
    yield "fresh over NaN, a negative slot", given | {"slots": slots}
    more = torch.cat((given["x"], given["x"][:2]))
    yield "tokens of no sequence", given | {"x": more, "slots": slots}


# heads, value heads, size, value size
RULES = ((2, 2, 16, 16), (1, 3, 20, 12), (2, 4, 32, 72))


def _rule(dtype: torch.dtype, tokens: int, rows: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for heads, value_heads, size, value_size in RULES:
        given = {
            "q": draw(dtype, tokens, heads, size),
            "k": draw(dtype, tokens, heads, size),
            "v": draw(dtype, tokens, value_heads, value_size),
            "decay": -torch.rand(tokens, value_heads) * 2,
            "beta": torch.rand(tokens, value_heads).to(dtype),
            "state": torch.randn(rows + 2, value_heads, size, value_size),
            "slots": torch.randperm(rows + 2, dtype=torch.int32)[:rows],
            "scale": size**-0.5,
        }
        label = f"{heads}/{value_heads} x {size}/{value_size}"
        yield label, given
        if tokens:
            short = {name: given[name] / 8 for name in "qk"}
            yield f"{label}, as they are", given | short | {"normalise": False}
    both = draw(dtype, tokens, 2, 2 * size + value_size)
    views = {"q": both[..., :size], "k": both[..., size : 2 * size]}
    yield "views", given | views


@makes("gated_delta_decode")
def _delta_decode(dtype: torch.dtype) -> Cases:
    for rows in (3, 1, 0):
        for label, given in _rule(dtype, rows, rows):
            yield f"{rows} rows, {label}", given
            if rows == 3:
                slots = torch.tensor([4, -1, 0])
                yield f"{label}, a negative slot", given | {"slots": slots}


@makes("gated_delta_prefill")
def _delta_prefill(dtype: torch.dtype) -> Cases:
    lengths = (1, 70, 0, 5)  # more than a chunk of the meaning
    for label, given in _rule(dtype, sum(lengths), len(lengths)):
        given |= {"cu_q": bounds(lengths)}
        yield label, given
    given["state"][2] = torch.nan
    fresh = torch.tensor([False, True, True, False])
    slots = torch.tensor([1, 2, 0, -1])
    yield "some fresh, a negative slot", given | {"fresh": fresh, "slots": slots}
    far = -torch.rand_like(given["decay"]) * 60  # what is forgotten at once
    yield "large decays", given | {"decay": far, "fresh": fresh, "slots": slots}


# lengths around the limits of a block, and new tokens of each
NEW = (1, 2, BLOCK, 3, 0, 2 * BLOCK + 1)
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 0, 5 * BLOCK + 2)


def _sparse(dtype: torch.dtype, new: tuple[int, ...], size: int, turned: int) -> dict[str, Any]:
    held = paged(dtype, LENGTHS, 1, turned, "NBHD", value_size=size)
    return {
        "rope_cache": held["k_cache"],
        "v_cache": held["v_cache"],
        "k_cache": held["v_cache"],
        "block_table": held["block_table"],
        "kv_lens": held["kv_lens"],
        "cu_q": bounds(new),
        "q": draw(dtype, sum(new), 4, size),
        "q_rope": draw(dtype, sum(new), 4, turned),
        "scale": size**-0.5,
    }


@makes("lightning_indexer")
def _lightning_indexer(dtype: torch.dtype) -> Cases:
    for new, heads, size, top in ((NEW, 4, 32, 5), ((1, 1, 1, 1, 0, 1), 7, 20, 3), (NEW, 1, 8, 40)):
        held = paged(dtype, LENGTHS, 1, size, "NBHD")
        names = ("k_cache", "block_table", "kv_lens", "max_kv")
        given = {name: held[name] for name in names} | {
            "q": draw(dtype, sum(new), heads, size),
            "weights": draw(dtype, sum(new), heads),
            "cu_q": bounds(new),
            "top_k": top,
        }
        yield f"{heads} x {size}, {top} of them", given
    same = given["k_cache"].nan_to_num(0.0) * 0
    yield "equal scores", given | {"k_cache": same, "top_k": 4}
    yield (
        "tokens of no sequence",
        given | {name: torch.cat((given[name], given[name][:2])) for name in ("q", "weights")},
    )


def _indices(new: tuple[int, ...], chosen: int) -> Tensor:
    """Choose distinct positions, of which some are after the query, and others negative."""
    rows = [
        torch.randperm(max(length, chosen) + 2)[:chosen] - 1
        for length, count in zip(LENGTHS, new, strict=True)
        for _ in range(count)
    ]
    return torch.stack(rows).int()


@makes("sparse_flash_attention")
def _sparse_flash_attention(dtype: torch.dtype) -> Cases:
    for new, chosen, size, turned in ((NEW, 7, 32, 8), ((1, 1, 1, 1, 0, 1), 3, 20, 4)):
        given = _sparse(dtype, new, size, turned) | {"indices": _indices(new, chosen)}
        yield f"{size} + {turned}, {chosen} keys", given
        alone = {"q_rope": None, "rope_cache": None}
        yield f"{size}, {chosen} keys", given | alone
        yield f"{size}, no keys", given | {"indices": torch.full_like(given["indices"], -1)}
    yield "int64", given | {name: given[name].long() for name in ("indices", "block_table", "cu_q")}
    more = {name: torch.cat((given[name], given[name][:2])) for name in ("q", "q_rope", "indices")}
    yield "tokens of no sequence", given | more
