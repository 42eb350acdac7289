# SPDX-License-Identifier: Apache-2.0
"""Calls of the overloads that backends convert: from diopi's samples, and from this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dicp.fused  # noqa: F401  # the ops of torch.ops.dicp
from dicp.conformance import overloads
from dicp.conformance.overloads import Call
from diopi.conformance.cases.draws import Portable
from diopi.conformance.cases.sample import Sample
from diopi.conformance.planning import recipes

aten, fused = torch.ops.aten, torch.ops.dicp

Arguments = tuple[Any, ...]


def calls(overload: Any, dtype: str = "float32") -> list[Call]:
    """Return the calls of an overload: this module's own, then those of diopi's samples."""
    heard = overloads.calls(overload, dtype) if overload.namespace == "aten" else ()
    return [*ours(overload, dtype), *heard]


def ours(overload: Any, dtype: str = "float32") -> list[Call]:
    """Return the calls of an overload that this module lists."""
    if overload not in HAND:
        return []
    with recipes.seeded(0), Portable():
        given = HAND[overload](Make(getattr(torch, dtype)))
        return [Call(overload, Sample(args, {})) for args in given]


class Make:
    """Creates tensors of one type: `x(2, 3)`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return (torch.rand(shape) + 0.5).to(self.dtype)


def whole(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape)


def _conv(x: Make) -> list[Arguments]:
    return [
        (x(2, 4, 6, 7), x(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1]),
        (x(2, 4, 6, 7), x(6, 2, 3, 1), x(6), [2, 1], [0, 2], [1, 2]),
    ]


HAND: dict[Any, Callable[[Make], list[Arguments]]] = {
    fused.linear.default: lambda x: [
        (x(5, 4), x(3, 4), x(3), "gelu"),
        (x(2, 5, 4), x(3, 4), None),
        (x(2, 5, 4), x(3, 4), x(3), "silu"),
        (x(5, 4), x(3, 4), None, "relu"),
    ],
    fused.rms_norm.default: lambda x: [(x(2, 5, 8), x(8), 1e-6)],
    fused.layer_norm.default: lambda x: [
        (x(2, 5, 8), 1, x(8), x(8), 1e-5),
        (x(2, 3, 4), 2, None, None, 1e-5),
    ],
    fused.rope.default: lambda x: [(x(2, 3, 5, 8), x(5, 8), x(5, 8))],
    fused.swiglu.default: lambda x: [(x(2, 5, 8), x(2, 5, 8))],
    fused.sdpa.default: lambda x: [
        (x(2, 4, 5, 8), x(2, 2, 7, 8), x(2, 2, 7, 8)),
        (x(2, 3, 5, 8), x(2, 3, 5, 8), x(2, 3, 5, 8), None, True),
        (x(2, 3, 5, 8), x(2, 3, 7, 8), x(2, 3, 7, 8), x(5, 7), False, 0.25),
    ],
    fused.batch_norm.default: lambda x: [
        (x(2, 3, 4, 5), x(3), x(3), x(3), x.positive(3), 1e-5),
        (x(2, 3), None, None, x(3), x.positive(3), 1e-3),
    ],
    fused.conv.default: lambda x: [
        (*given, groups, activation)
        for given, groups, activation in zip(_conv(x), (1, 2), ("relu", ""), strict=True)
    ],
    aten.convolution.default: lambda x: [
        (*given, False, [0, 0], groups) for given, groups in zip(_conv(x), (1, 2), strict=True)
    ],
    aten.convolution_backward.default: lambda x: [
        (x(2, 6, 6, 7), x(2, 4, 6, 7), x(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
         [True, True, True]),
        (x(2, 6, 2, 11), x(2, 4, 6, 7), x(6, 2, 3, 1), None, [2, 1], [0, 2], [1, 2], False, [0, 0],
         2, [True, True, False]),
        (x(1, 2, 3, 3), x(1, 2, 8, 8), x(2, 2, 3, 3), [2], [3, 3], [1, 1], [1, 1], False, [0, 0], 1,
         [True, True, True]),
    ],
    aten._native_batch_norm_legit_functional.default: lambda x: [
        (x(2, 3, 4, 5), x(3), x(3), x(3), x.positive(3), True, 0.1, 1e-5),
        (x(4, 3), None, None, x(3), x.positive(3), True, 0.25, 1e-3),
    ],
    aten._adaptive_avg_pool2d_backward.default: lambda x: [
        (x(2, 3, 2, 3), x(2, 3, 5, 7)),
        (x(3, 1, 1), x(3, 4, 4)),
    ],
    aten.avg_pool2d.default: lambda x: [
        (x(2, 3, 6, 8), [2, 2]),
        (x(2, 3, 6, 8), [3, 3], [2, 1], [1, 1], False, False),
    ],
    aten._adaptive_avg_pool2d.default: lambda x: [(x(2, 3, 6, 8), [1, 1]), (x(2, 3, 5, 7), [2, 3])],
    aten.constant_pad_nd.default: lambda x: [(x(3, 4), [1, 2, 0, 1], 1.5), (x(3, 4), [1, 0])],
    aten.index.Tensor: lambda x: [
        (x(5, 4), [whole(5, 3)]),
        (x(2, 5, 4), [None, whole(5, 3, 2) - 5]),
    ],
    aten.repeat.default: lambda x: [(x(2, 3), [2, 1, 2]), (x(4), [3])],
    aten.reshape.default: lambda x: [(x(2, 6), [3, -1]), (x(2, 3, 4), [6, 4])],
    aten.rsub.Scalar: lambda x: [(x(3, 4), 2.0, 3)],
    aten.rsub.Tensor: lambda x: [(x(3, 4), x(4))],
    aten.silu.default: lambda x: [(x(3, 4),)],
    aten.sum.default: lambda x: [(x(3, 4),)],
    aten.all.default: lambda x: [(x(3, 4) > -1,), (x(3, 4),)],
    aten.all.dim: lambda x: [(x(3, 4) > -1, 1, True), (x(3, 4), 0)],
    aten.tril.default: lambda x: [(x(3, 4), 1), (x(2, 4, 4) > 0,)],
    aten.triu.default: lambda x: [(x(3, 4), -1), (x(2, 4, 4) > 0,)],
    aten.gelu_backward.default: lambda x: [(x(3, 4), x(3, 4))],
    aten._softmax_backward_data.default: lambda x: [(x(3, 4), x(3, 4).softmax(1), 1, x.dtype)],
    aten._log_softmax_backward_data.default: lambda x: [
        (x(3, 4), x(3, 4).log_softmax(1), 1, x.dtype)
    ],
    aten.threshold_backward.default: lambda x: [(x(3, 4), x(3, 4), 0)],
    aten.tanh_backward.default: lambda x: [(x(3, 4), x(3, 4).tanh())],
    aten.sigmoid_backward.default: lambda x: [(x(3, 4), x(3, 4).sigmoid())],
    aten.detach.default: lambda x: [(x(3, 4),)],
    aten.view.default: lambda x: [(x(2, 6), [3, 4])],
    aten._unsafe_view.default: lambda x: [(x(2, 6), [3, 4])],
    torch.ops.prims.convert_element_type.default: lambda x: [
        (x(3, 4), torch.float32),
        (x(3, 4), torch.bool),
        (whole(5, 3), x.dtype),
    ],
}  # fmt: skip
