"""Sums, means, variances."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.diopi.conformance.corpus.group import Group
from tests.diopi.conformance.corpus.making import (
    after,
    common_bugs,
    cut_off,
    hit,
    normals,
    positives,
    rounded_once,
    sequential,
)


def _split(x: Tensor, parts: int = 8) -> Tensor:
    return torch.stack([p.sum(-1) for p in x.chunk(parts, -1)]).sum(0)


_ROWS = (24, 1031)
_SUMS = {
    "normal": normals(_ROWS),
    "positive": positives(_ROWS),
    "offset": normals(_ROWS, scale=0.1, shift=4.0),
}


def sum_group() -> Group:
    def total(x: Tensor) -> Tensor:
        return x.sum(-1)

    return Group(
        "sum",
        total,
        _SUMS,
        {
            "eager": rounded_once(total),
            "sequential": lambda x: sequential(x, torch.float32).to(x.dtype),
            "split": rounded_once(_split),
        },
        {
            "accumulates in its type": lambda x: sequential(x, x.dtype),
            "drops the last": rounded_once(lambda x: x[..., :-1].sum(-1)),
            "drops the tail of 16": rounded_once(
                lambda x: x[..., : x.shape[-1] // 16 * 16].sum(-1)
            ),
            "counts one twice": rounded_once(lambda x: x.sum(-1) + x[..., 0]),
            "one wrong element": after(total, hit),
        },
        frozenset({"accumulates in its type"}),
    )


def mean_group() -> Group:
    def mean(x: Tensor) -> Tensor:
        return x.mean(-1)

    return Group(
        "mean",
        mean,
        _SUMS,
        {"eager": rounded_once(mean), "split": rounded_once(lambda x: _split(x) / x.shape[-1])},
        {
            "divides by n - 1": rounded_once(lambda x: x.sum(-1) / (x.shape[-1] - 1)),
            "accumulates in its type": lambda x: sequential(x, x.dtype) / x.shape[-1],
            "drops the last": rounded_once(lambda x: x[..., :-1].mean(-1)),
        },
        # one part in a thousand is less than half types resolve
        frozenset({"accumulates in its type"}),
        frozenset({"divides by n - 1", "drops the last"}),
    )


def _one_pass(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return ((x * x).sum(-1) - x.sum(-1) ** 2 / n) / (n - 1)


def var_group() -> Group:
    def var(x: Tensor) -> Tensor:
        return x.var(-1)

    short = (600, 33)
    return Group(
        "var",
        var,
        {
            "normal": normals(short),
            "offset": normals(short, scale=0.1, shift=16.0),
            "small": normals(short, scale=0.003),
        },
        {
            "eager": rounded_once(var),
            "two passes": rounded_once(
                lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)
            ),
        },
        {
            "biased": rounded_once(lambda x: x.var(-1, correction=0)),
            "one pass": rounded_once(_one_pass),
            "drops the last": rounded_once(lambda x: x[..., :-1].var(-1)),
            "truncation": cut_off(var),
        },
        frozenset({"truncation"}),
        frozenset({"one pass"}),  # in float32 it is below what half types resolve
    )


def cumsum_group() -> Group:
    def cumsum(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    def in_type(x: Tensor) -> Tensor:
        found, total = [], torch.zeros(x.shape[:-1], dtype=x.dtype)
        for i in range(x.shape[-1]):
            total = total + x[..., i]
            found.append(total)
        return torch.stack(found, -1)

    return Group(
        "cumsum",
        cumsum,
        {"normal": normals((6, 515)), "positive": positives((6, 515))},
        {"eager": rounded_once(cumsum), "sequential": lambda x: in_type(x.float()).to(x.dtype)},
        {
            "accumulates in its type": in_type,
            "exclusive": rounded_once(lambda x: x.cumsum(-1) - x),
            **common_bugs(cumsum),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


GROUPS = (
    sum_group(),
    mean_group(),
    var_group(),
    cumsum_group(),
)
