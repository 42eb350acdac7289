"""Normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.diopi.conformance.corpus.group import Group, Kernel, Make
from tests.diopi.conformance.corpus.making import (
    common_bugs,
    normals,
    rounded_once,
    sequential,
)


def layer_norm_group() -> Group:
    def norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w, b, eps)

    def two_passes(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * w + b

    def with_var(var: Callable[[Tensor], Tensor]) -> Kernel:
        def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred / (var(x).unsqueeze(-1) + 1e-5).sqrt() * w + b

        return kernel

    def outside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.var(-1, correction=0, keepdim=True).sqrt() + 1e-5) * w + b

    def statistics_in_type(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean = sequential(x, x.dtype) / x.shape[-1]
        centred = x.float() - mean.float().unsqueeze(-1)
        var = centred.square().mean(-1, keepdim=True)
        return (centred * torch.rsqrt(var + 1e-5) * w.float() + b.float()).to(x.dtype)

    shapes = ((40, 67), (67,), (67,))

    def make(scale: float, shift: float) -> Make:
        normal = normals(*shapes)

        def scaled(generator: torch.Generator) -> tuple[Tensor, ...]:
            x, w, b = normal(generator)
            return x * scale + shift, w, b

        return scaled

    return Group(
        "layer_norm",
        norm,
        {"normal": make(1.0, 0.0), "offset": make(0.5, 16.0), "small": make(0.003, 0.0)},
        {"eager": rounded_once(norm), "two passes": rounded_once(two_passes)},
        {
            "eps 1e-6": rounded_once(lambda x, w, b: norm(x, w, b, 1e-6)),
            "eps outside of the root": rounded_once(outside),
            "unbiased variance": rounded_once(with_var(lambda x: x.var(-1))),
            "one pass": rounded_once(with_var(lambda x: (x * x).mean(-1) - x.mean(-1) ** 2)),
            "statistics in its type": statistics_in_type,
            "no bias": rounded_once(lambda x, w, b: norm(x, w, torch.zeros_like(b))),
            **common_bugs(norm),
        },
        frozenset({"statistics in its type", "truncation"}),
        frozenset({"one pass"}),  # in float32 it is below what half types resolve
    )


def rms_norm_group() -> Group:
    def norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

    shapes = ((40, 67), (67,))

    def make(scale: float) -> Make:
        normal = normals(*shapes)

        def scaled(generator: torch.Generator) -> tuple[Tensor, ...]:
            x, w = normal(generator)
            return x * scale, w

        return scaled

    return Group(
        "rms_norm",
        norm,
        {"normal": make(1.0), "small": make(0.001)},
        {"eager": rounded_once(norm), "divides": rounded_once(lambda x, w: x / (
            x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w)},
        {
            "eps 1e-5": rounded_once(lambda x, w: norm(x, w, 1e-5)),
            "mean subtracted": rounded_once(lambda x, w: norm(x - x.mean(-1, keepdim=True), w)),
            "divides by n - 1": rounded_once(lambda x, w: norm(x, w) * math.sqrt(66 / 67)),
            "no weight": rounded_once(lambda x, w: norm(x, torch.ones_like(w))),
            **common_bugs(norm),
        },
        frozenset({"truncation"}),
    )  # fmt: skip


def batch_norm_group() -> Group:
    def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
        return F.batch_norm(x, None, None, training=True, eps=eps)

    def unbiased(x: Tensor) -> Tensor:
        mean, var = x.mean((0, 2), keepdim=True), x.var((0, 2), keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5)

    shape = (5, 13, 9)
    return Group(
        "batch_norm",
        norm,
        {"normal": normals(shape), "small": normals(shape, scale=0.003),
         "offset": normals(shape, scale=0.5, shift=16.0)},
        {"eager": rounded_once(norm)},
        {
            "eps 1e-3": rounded_once(lambda x: norm(x, 1e-3)),
            "unbiased variance": rounded_once(unbiased),
            "statistics of each sample": rounded_once(lambda x: F.instance_norm(x)),
            **common_bugs(norm),
        },
        frozenset({"truncation"}),
    )  # fmt: skip


GROUPS = (
    layer_norm_group(),
    rms_norm_group(),
    batch_norm_group(),
)
