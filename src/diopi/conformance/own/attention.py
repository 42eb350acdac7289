# SPDX-License-Identifier: Apache-2.0
"""Samples of fused attention, its gradients, rotary embeddings and masked softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes
from diopi.op import get

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Attention:
    """Sizes and options of one call; lengths of more than one sequence are packed."""

    batch: int = 1
    queries: tuple[int, ...] = (5,)
    keys: tuple[int, ...] = (5,)
    heads: int = 4
    key_heads: int = 4
    size: int = 8
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    alibi: bool = False

    def tensors(self, dtype: torch.dtype, packed: bool) -> Arguments:
        """Create queries, keys and values, of one size per batch or concatenated sequences."""
        rows = ((sum(self.queries),) if packed else (self.batch, self.queries[0]))  # fmt: skip
        columns = ((sum(self.keys),) if packed else (self.batch, self.keys[0]))  # fmt: skip
        return {
            "q": draw(dtype, *rows, self.heads, self.size),
            "k": draw(dtype, *columns, self.key_heads, self.size),
            "v": draw(dtype, *columns, self.key_heads, self.size),
        }

    @property
    def manner(self) -> Arguments:
        """Return the options by the argument names of the flash attention ops."""
        return {
            "p_dropout": 0.0,
            "softmax_scale": self.size**-0.5,
            "is_causal": self.causal,
            "window_size_left": self.window[0],
            "window_size_right": self.window[1],
        }

    def slopes(self) -> Tensor | None:
        return 2.0 ** -torch.arange(1.0, self.heads + 1) if self.alibi else None

    def bounds(self, kind: type) -> Arguments:
        """Return the ends of the packed sequences: a tensor from 0 on, or a list without the 0."""
        ends = [list(accumulate(lengths)) for lengths in (self.queries, self.keys)]
        if kind is list:
            return {"cum_seq_q": ends[0], "cum_seq_kv": ends[1]}
        tensors = [torch.tensor([0, *each], dtype=torch.int32) for each in ends]
        return {"cum_seq_q": tensors[0], "cum_seq_kv": tensors[1]}

    @property
    def longest(self) -> Arguments:
        return {"max_seqlen_q": max(self.queries), "max_seqlen_kv": max(self.keys)}


DENSE = (
    Attention(2),
    Attention(2, (9,), (17,), 6, 2, 16, causal=True),  # fewer heads for keys, a longer past
    Attention(1, (1,), (65,), 2, 1, 32, causal=True),  # one decoded token
    Attention(1, (13,), (13,), window=(3, 2)),
    Attention(1, (7,), (7,), alibi=True, causal=True),
    Attention(1, (0,), (5,)),
)
PACKED = (
    Attention(queries=(3, 4), keys=(3, 4), causal=True),
    Attention(queries=(1, 9, 2), keys=(5, 9, 8), heads=6, key_heads=2, size=16, causal=True),
    Attention(queries=(7, 13), keys=(7, 13), window=(2, 0), alibi=True),
)


def _backward(name: str, given: Arguments, **saved: Any) -> Arguments:
    """Return the arguments of an op's gradient: the op's results, and a random gradient."""
    op = get(name)
    results = dict(zip(op.result_names, op(**given), strict=True))
    kept = {own: results[result] for own, result in saved.items()}
    first = results[op.result_names[0]]
    taken = {argument.name for argument in get(op.backward).arguments}
    return {
        **{key: value for key, value in given.items() if key in taken},
        next(key for key in ("grad_output", "grad_out") if key in taken): torch.randn_like(first),
        **kept,
    }


SAVED = {"attention_out": "attention_out", "softmax_lse": "softmax_lse"}


def _flash(dtype: torch.dtype) -> Iterator[Arguments]:
    for one in DENSE:
        tensors = one.tensors(dtype, packed=False)
        yield {"gen": None, **tensors, "alibi_slopes": one.slopes(), **one.manner}


def _flash_var_len(dtype: torch.dtype) -> Iterator[Arguments]:
    for one in PACKED:
        tensors = {**one.tensors(dtype, packed=True), **one.bounds(Tensor)}
        slopes = {"alibi_slopes": one.slopes()}
        yield {"gen": None, **tensors, **slopes, **one.longest, **one.manner}


@makes("flash_attention")
def _flash_attention(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _flash(dtype))


@makes("flash_attention_backward", fixed=True)
def _flash_attention_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _flash(dtype):
        yield called(**_backward("flash_attention", given, **SAVED))


@makes("flash_attention_var_len", fixed=True)
def _flash_attention_var_len(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _flash_var_len(dtype))


@makes("flash_attention_var_len_backward", fixed=True)
def _flash_attention_var_len_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _flash_var_len(dtype):
        yield called(**_backward("flash_attention_var_len", given, **SAVED))


# --- the dialects --------------------------------------------------------------------------------

KEPT = {name: name for name in "dropout_mask softmax_max softmax_sum softmax_out".split()}
KEPT["attention_out"] = "attention_out"
LAYOUTS = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "SBND": (1, 0, 2, 3)}


def _laid(tensor: Tensor, layout: str) -> Tensor:
    order = LAYOUTS[layout[:2] + "ND" if layout.endswith("H") else layout]
    moved = tensor.permute(order).contiguous()
    return moved.flatten(2) if layout.endswith("H") else moved


def _customized(dtype: torch.dtype) -> Iterator[Arguments]:
    layouts = ("BSND", "BNSD", "SBND", "BSH", "SBH")
    for layout, one in zip(layouts, DENSE, strict=False):
        one = Attention(one.batch, one.queries, one.queries, 4, 4, one.size, one.causal)
        tensors = {n: _laid(t, layout) for n, t in one.tensors(dtype, packed=False).items()}
        hidden = torch.ones(one.queries[0], one.queries[0], dtype=torch.bool).triu(1)
        mask = {"alibi_slopes": None, "attention_mask": None if one.causal else hidden}
        where = {"head_num": 4, "input_layout": layout}
        yield {"gen": None, **tensors, **mask, **one.manner, **where}


def _customized_var_len(dtype: torch.dtype) -> Iterator[Arguments]:
    for one in PACKED:
        tensors = {**one.tensors(dtype, packed=True), **one.bounds(list)}
        mask = {"alibi_slopes": one.slopes(), "attention_mask": None}
        yield {"gen": None, **tensors, **mask, **one.longest, **one.manner}


@makes("customized_flash_attention", fixed=True)
def _customized_flash(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _customized(dtype))


@makes("customized_flash_attention_backward", fixed=True)
def _customized_flash_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _customized(dtype):
        yield called(**_backward("customized_flash_attention", given, **KEPT))


@makes("customized_flash_attention_var_len", fixed=True)
def _customized_flash_var_len(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _customized_var_len(dtype))


@makes("customized_flash_attention_var_len_backward", fixed=True)
def _customized_flash_var_len_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _customized_var_len(dtype):
        yield called(**_backward("customized_flash_attention_var_len", given, **KEPT))


OLD = {"out": "out", "softmax_lse": "softmax_lse"}


def _multi_head(dtype: torch.dtype) -> Iterator[Arguments]:
    for one in DENSE[:3]:
        how = {"dropout_p": 0.0, "is_causal": one.causal, "scale": one.size**-0.5, "gen": None}
        yield {**one.tensors(dtype, packed=False), **how, "return_debug_mask": False}


def _multi_head_var_len(dtype: torch.dtype) -> Iterator[Arguments]:
    for one in PACKED[:2]:
        how = {"dropout_p": 0.0, "is_causal": one.causal, "scale": one.size**-0.5, "gen": None}
        bounds = one.bounds(Tensor)
        where = {"cum_seq_q": bounds["cum_seq_q"], "cum_seq_k": bounds["cum_seq_kv"]}
        where |= {"max_q": max(one.queries), "max_k": max(one.keys)}
        yield {**one.tensors(dtype, packed=True), **where, **how, "return_debug_mask": False}


@makes("multi_head_attention")
def _multi_head_attention(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _multi_head(dtype))


@makes("multi_head_attention_backward", fixed=True)
def _multi_head_attention_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _multi_head(dtype):
        yield called(**_backward("multi_head_attention", given, **OLD))


@makes("multi_head_attention_var_len", fixed=True)
def _multi_head_attention_var_len(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**given) for given in _multi_head_var_len(dtype))


@makes("multi_head_attention_var_len_backward", fixed=True)
def _multi_head_attention_var_len_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in _multi_head_var_len(dtype):
        yield called(**_backward("multi_head_attention_var_len", given, **OLD))
