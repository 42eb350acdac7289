# SPDX-License-Identifier: Apache-2.0
"""Samples of rotary embeddings and masked softmax."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes
from diopi.op import get


@makes("rotary_embedding")
def _rotary(dtype: torch.dtype) -> Iterator[Sample]:
    shapes = ((2, 5, 4, 8), (7, 3, 64), (1, 33, 2, 18))
    for shape, conj, interleaved in product(shapes, (False, True), (False, True)):
        angles = draw(torch.float64, shape[-3], 1, shape[-1] // 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        yield called(x=draw(dtype, *shape), cos=cos, sin=sin, conj=conj, interleaved=interleaved)


@makes("rotary_embedding_v2")
def _rotary_v2(dtype: torch.dtype) -> Iterator[Sample]:
    for tokens, heads, key_heads, size in ((5, 4, 2, 8), (1, 8, 1, 64), (33, 2, 2, 18)):
        angles = draw(torch.float64, tokens, 1, size)
        query, key = draw(dtype, tokens, heads, size), draw(dtype, tokens, key_heads, size)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        yield called(query=query, key=key, cos=cos, sin=sin, dim=size)


MASKED = ((2, 4, 5, 5), (1, 3, 17, 33), (2, 1, 129, 129))


@makes("scaled_masked_softmax")
def _scaled_masked_softmax(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, triangle in product(MASKED, (False, True)):
        mask = torch.rand(shape[0], 1, *shape[2:]) < 0.3
        scores = draw(dtype, *shape)
        yield called(input=scores, mask=mask, scale=0.5, fixed_triu_mask=triangle)


@makes("scaled_masked_softmax_backward", fixed=True)
def _scaled_masked_softmax_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _scaled_masked_softmax(dtype):
        given = dict(sample.kwargs)
        output = get("scaled_masked_softmax")(**given)
        grad = torch.randn_like(given.pop("input"))
        yield called(grad_output=grad, output=output, **given)
