# SPDX-License-Identifier: Apache-2.0
"""Cases of matrix products, quantisation and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dlinfer.conformance.case import apart, draw, makes
from dlinfer.conformance.tokens import _add_rms_norm, _rms_norm

Cases = Iterator[tuple[str, dict[str, Any]]]


@makes("linear")
def _linear(dtype: torch.dtype) -> Cases:
    few = (
        (1, 64, 33),
        (7, 100, 18),
        (9, 40, 5),
        (15, 777, 9),
        (16, 100, 18),
        (17, 40, 5),
        (0, 8, 4),
    )
    for rows, inner, outer in few:
        given = {"x": draw(dtype, rows, inner), "weight": draw(dtype, outer, inner)}
        yield f"{rows} x {inner} x {outer}", given
        yield f"{rows} x {inner} x {outer}, bias", given | {"bias": draw(dtype, outer)}
    yield "views", {"x": apart(draw(dtype, 2, 3, 16)), "weight": draw(dtype, 16, 8).t()}
    turned = ((1, 70, 300), (2, 5, 40), (5, 33, 18), (11, 64, 77), (16, 40, 129), (21, 9, 35))
    for rows, inner, outer in turned:
        # [in, out] in memory, part of a larger tensor
        weight = apart(draw(dtype, inner, outer)).t()
        given = {"x": draw(dtype, rows, inner), "weight": weight, "bias": draw(dtype, outer)}
        yield f"{rows} x {inner} x {outer}, turned", given


@makes("weight_quant_matmul")
def _weight_quant_matmul(dtype: torch.dtype) -> Cases:
    for packed, group in ((False, 0), (False, 16), (True, 16), (True, 0)):
        columns = 64 // group if group else 1
        weight = torch.randint(0, 255, (8, 32), dtype=torch.uint8)
        if not packed:
            weight = torch.randint(-128, 127, (8, 64), dtype=torch.int8)
        given = {"x": draw(dtype, 3, 64), "weight": weight, "group_size": group}
        given["scale"] = (torch.rand(8, columns) / 64).to(dtype)
        label = f"{4 if packed else 8} bits, groups of {group}"
        yield label, given
        more = {"offset": draw(dtype, 8, columns), "bias": draw(dtype, 8)}
        yield f"{label}, offset and bias", given | more
        yield f"{label}, many rows", given | more | {"x": draw(dtype, 20, 64)}

    for group, scale in ((16, (8, 4)), (0, (8, 1)), (0, (1, 1)), (24, (1, 3)), (5, (2, 13))):
        weight = (draw(torch.float32, 8, 64) * 4).to(torch.float8_e4m3fn)
        weight.view(torch.uint8)[0, :9] = torch.tensor([0, 1, 7, 8, 126, 128, 129, 135, 254])
        given = {"x": draw(dtype, 3, 64), "weight": weight, "group_size": group}
        scales = torch.rand(scale) / 64
        given["scale"] = scales
        yield f"float8, groups of {group}, scales {scale}", given
        yield (
            f"float8, groups of {group}, scales {scale}, many rows",
            given
            | {
                "x": draw(dtype, 20, 64),
                "scale": scales.to(dtype),
                "bias": draw(dtype, 8),
            },
        )
    weight = torch.randint(0, 255, (5, 37), dtype=torch.uint8)
    given = {"x": draw(dtype, 1, 74), "weight": weight, "group_size": 6}
    yield "4 bits, odd sizes", given | {"scale": torch.rand(5, 13) / 64}


@makes("dynamic_quant")
def _dynamic_quant(dtype: torch.dtype) -> Cases:
    x = draw(dtype, 5, 64)
    x[2] = 0
    yield "with a row of zeros", {"x": x}
    yield "three dimensions", {"x": draw(dtype, 2, 3, 33)}
    yield "no rows", {"x": draw(dtype, 0, 8)}


@makes("linear_w8a8")
def _linear_w8a8(dtype: torch.dtype) -> Cases:
    for rows in (1, 4, 20, 0):
        given = {
            "a": torch.randint(-127, 128, (rows, 64), dtype=torch.int8),
            "b": torch.randint(-127, 128, (16, 64), dtype=torch.int8),
            "a_scale": torch.rand(rows, 1),
            "b_scale": torch.rand(16, 1) / 64,
            "out_dtype": dtype,
        }
        yield f"{rows} rows", given
        yield f"{rows} rows, bias", given | {"bias": draw(dtype, 16)}


@makes("linear_w8a8_static")
def _linear_w8a8_static(dtype: torch.dtype) -> Cases:
    for rows in (1, 20, 0):
        given = {
            "x": draw(dtype, rows, 64),
            "weight": torch.randint(-127, 128, (16, 64), dtype=torch.int8),
            "input_scale": torch.tensor([2.0**-5], dtype=dtype),  # exact: no numbers near a half
            "input_offset": torch.tensor([-7], dtype=torch.int8),
            "deq_scale": torch.rand(16) / 2**12,
            "out_dtype": dtype,
        }
        yield f"{rows} rows", given
        bias = torch.randint(-9000, 9000, (16,), dtype=torch.int32)
        yield f"{rows} rows, bias", given | {"bias": bias}
    yield "beyond int8", given | {"x": draw(dtype, 2, 3, 64) * 9}


makes("rms_norm_w8a8")(_rms_norm)
makes("add_rms_norm_w8a8")(_add_rms_norm)


@makes("moe_gating")
def _moe_gating(dtype: torch.dtype) -> Cases:
    for scoring in ("softmax", "sigmoid"):
        logits = draw(torch.float32, 6, 16).to(dtype) + torch.arange(16).to(dtype) / 2**6
        given = {"logits": logits, "top_k": 4, "scoring": scoring}
        yield scoring, given
        yield f"{scoring}, to 1", given | {"renormalize": True, "scale": 2.5}
        yield f"{scoring}, groups", given | {"groups": 4, "top_groups": 2}
        more = {"groups": 4, "top_groups": 2, "bias": draw(torch.float32, 16)}
        yield f"{scoring}, groups and bias", given | more
        yield f"{scoring}, no tokens", given | {"logits": draw(dtype, 0, 16)}


@makes("fused_moe")
def _fused_moe(dtype: torch.dtype) -> Cases:
    for tokens, activation in ((5, "silu"), (3, "gelu"), (0, "silu")):
        yield (
            f"{tokens} tokens, {activation}",
            {
                "x": draw(dtype, tokens, 16),
                "gate_up": draw(dtype, 4, 24, 16) / 4,
                "down": draw(dtype, 4, 16, 12) / 4,
                "weights": torch.rand(tokens, 2),
                "experts": torch.stack([torch.randperm(4)[:2] for _ in range(tokens)])
                if tokens
                else torch.zeros(0, 2, dtype=torch.int64),
                "activation": activation,
            },
        )


@makes("fused_moe_w8a8")
def _fused_moe_w8a8(dtype: torch.dtype) -> Cases:
    for (label, given), flat in zip(_fused_moe(dtype), (True, False, False), strict=True):
        for name, size in (("gate_up", 24), ("down", 16)):
            weight = given[name]
            given[name] = torch.randint(-127, 128, weight.shape, dtype=torch.int8)
            scale = torch.rand(4, size) / 2**8
            given[f"{name}_scale"] = scale if flat else scale[..., None].to(dtype)
        yield label, given
