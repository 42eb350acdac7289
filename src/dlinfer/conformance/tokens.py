# SPDX-License-Identifier: Apache-2.0
"""Cases of the token-wise ops: norms, activations, rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dlinfer.conformance.case import apart, draw, makes

Cases = Iterator[tuple[str, dict[str, Any]]]
SHAPES = ((1, 64), (3, 5, 33), (2, 2048), (0, 64), (4, 1))


@makes("rms_norm")
def _rms_norm(dtype: torch.dtype) -> Cases:
    for shape in SHAPES:
        x, weight = draw(dtype, *shape), draw(dtype, shape[-1])
        yield str(shape), {"x": x, "weight": weight, "eps": 1e-6}
    yield "rows apart", {"x": apart(draw(dtype, 3, 64)), "weight": draw(dtype, 64), "eps": 1e-5}
    turned = draw(dtype, 64, 3).t()
    yield "transposed", {"x": turned, "weight": draw(dtype, 64), "eps": 1e-5}
    zeros = torch.zeros(2, 48, dtype=dtype)
    yield "zeros", {"x": zeros, "weight": draw(dtype, 48), "eps": 1e-6}


@makes("add_rms_norm")
def _add_rms_norm(dtype: torch.dtype) -> Cases:
    for label, arguments in _rms_norm(dtype):
        yield label, arguments | {"residual": draw(dtype, *arguments["x"].shape)}


@makes("silu_and_mul")
def _silu_and_mul(dtype: torch.dtype) -> Cases:
    for rows, half in ((1, 33), (3, 64), (0, 8), (2, 1030)):
        yield f"({rows}, 2 * {half})", {"x": draw(dtype, rows, 2 * half)}
    yield "three dimensions", {"x": draw(dtype, 2, 3, 40)}
    yield "rows apart", {"x": apart(draw(dtype, 3, 64))}
    hard = torch.tensor([-1e4, -80.0, -60.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 1e4, torch.nan])
    yield "far out", {"x": torch.cat((hard, torch.ones(10))).to(dtype)[None].repeat(2, 1)}


@makes("gelu_and_mul")
def _gelu_and_mul(dtype: torch.dtype) -> Cases:
    for approximate in ("none", "tanh"):
        yield approximate, {"x": draw(dtype, 3, 66), "approximate": approximate}
        yield f"{approximate}, no rows", {"x": draw(dtype, 0, 8), "approximate": approximate}


@makes("rotary")
def _rotary(dtype: torch.dtype) -> Cases:
    for tokens, heads, shared, size, turned in (
        (1, 4, 4, 64, 64),
        (5, 8, 2, 32, 32),
        (3, 7, 1, 80, 32),
        (4, 2, 2, 20, 6),
        (2, 2, 1, 256, 256),
        (0, 4, 2, 16, 16),
    ):
        angles = torch.rand(tokens, turned) * 6
        given = {
            "q": draw(dtype, tokens, heads, size),
            "k": draw(dtype, tokens, shared, size),
            "cos": angles.cos().to(dtype),
            "sin": angles.sin().to(dtype),
        }
        label = f"{tokens} x {heads}/{shared} x {size}, turned {turned}"
        yield label, given
        yield f"{label}, neighbours", given | {"interleaved": True}
    packed = draw(dtype, 3, 6, 64)  # q, k and v in one tensor, as from a merged product
    angles = torch.rand(3, 64) * 6
    views = {"q": packed[:, :4], "k": packed[:, 4:5]}
    yield "views", views | {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}
    yield "angles in float32", views | {"cos": angles.cos(), "sin": angles.sin()}
