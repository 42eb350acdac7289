# SPDX-License-Identifier: Apache-2.0
"""Samples of the poolings by name, and of gradients that torch has for two dimensions only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes
from diopi.op import get

INPUTS = {1: ((2, 3, 6), (1, 2, 129)), 2: ((2, 3, 6, 7), (1, 2, 17, 33)), 3: ((1, 2, 6, 5, 7),)}
# kernel, stride, padding, ceil_mode
WINDOWS = ((2, 2, 0, False), (3, 2, 1, False), (3, 1, 1, True))


def _generic(n: int, window: Any, mode: str, adaptive: bool) -> dict[str, Any]:
    kernel, stride, padding, ceil = window
    return {
        "mode": mode,
        "ksize": [kernel] * n,
        "stride": [stride] * n,
        "padding": [padding] * n,
        "dilation": [1] * n,
        "ceil_mode": ceil,
        "exclusive": not ceil,
        "adaptive": adaptive,
    }


def _ways(n: int) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    for shape, mode in product(INPUTS[n], ("max", "avg")):
        for window in WINDOWS:
            yield shape, _generic(n, window, mode, adaptive=False)
        yield shape, _generic(n, WINDOWS[0], mode, adaptive=True)


def _pool(n: int, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, how in _ways(n):
        yield called(input=draw(dtype, *shape), **how, output_size=[3] * n)


def _pool_backward(n: int, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, how in _ways(n):
        input = draw(dtype, *shape)
        # in float32: torch's CPU has no mean over three dimensions in half types
        out = get(f"pool{n}d")(input.float(), **how, output_size=[3] * n)
        grad = draw(dtype, *out.shape)
        yield called(grad_output=grad, input=input, **how, indices=_indices(n, input, how))


def _indices(n: int, input: Tensor, how: dict[str, Any]) -> Tensor | None:
    """Return the indices of the largest elements; None for means."""
    if how["mode"] == "avg":
        return None
    if how["adaptive"]:
        found: Tensor = get(f"adaptive_max_pool{n}d")(input, [3] * n)[1]
        return found
    window = [how[name] for name in "ksize stride padding dilation ceil_mode".split()]
    found = get(f"max_pool{n}d_with_indices")(input, *window)[1]
    return found


for n in (1, 2, 3):
    makes(f"pool{n}d")(partial(_pool, n))
    makes(f"pool{n}d_backward", fixed=True)(partial(_pool_backward, n))


def _lines(dtype: torch.dtype) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    for shape, (kernel, stride, padding, ceil) in product(INPUTS[1], WINDOWS):
        window = {"kernel_size": [kernel], "stride": [stride], "padding": [padding]}
        yield draw(dtype, *shape), {**window, "ceil_mode": ceil}


@makes("max_pool1d_backward", fixed=True)
def _max_pool1d_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for input, window in _lines(dtype):
        given = {**window, "dilation": [1]}
        out, indices = get("max_pool1d_with_indices")(input, **given)
        yield called(grad_output=torch.randn_like(out), input=input, **given, indices=indices)


@makes("avg_pool1d_backward", fixed=True)
def _avg_pool1d_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for (input, window), counted in product(_lines(dtype), (False, True)):
        given = {**window, "count_include_pad": counted}
        grad = torch.randn_like(get("avg_pool1d")(input, **given))
        yield called(grad_output=grad, input=input, **given)


@makes("adaptive_max_pool1d")
def _adaptive_max_pool1d(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, size in product(INPUTS[1], (1, 4)):
        yield called(input=draw(dtype, *shape), output_size=[size])


@makes("adaptive_max_pool1d_backward", fixed=True)
def _adaptive_max_pool1d_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, size in product(INPUTS[1], (1, 4)):
        input = draw(dtype, *shape)
        out, indices = get("adaptive_max_pool1d")(input, [size])
        yield called(grad_output=torch.randn_like(out), input=input, indices=indices)


@makes("adaptive_avg_pool1d_backward", fixed=True)
def _adaptive_avg_pool1d_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, size in product(INPUTS[1], (1, 4)):
        grad = draw(dtype, *shape[:-1], size)
        yield called(grad_output=grad, input=draw(dtype, *shape))
