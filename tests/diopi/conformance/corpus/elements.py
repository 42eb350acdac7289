"""Element by element; indices, pooling and losses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.diopi.conformance.corpus.group import Group, Kernel
from tests.diopi.conformance.corpus.making import (
    after,
    common_bugs,
    cut_off,
    fast_exp,
    hit,
    normals,
    positives,
    rippled_exp,
    rounded_once,
    sequential,
    tail_lost,
)

_FLAT = (4099,)


def _pointwise(
    name: str, kernel: Kernel, right: dict[str, Kernel], wrong: dict[str, Kernel],
    float32_only: frozenset[str] = frozenset(),
) -> Group:  # fmt: skip
    return Group(
        name,
        kernel,
        {"normal": normals(_FLAT), "large": normals(_FLAT, scale=4.0)},
        {"eager": rounded_once(kernel), **right},
        {**wrong, **common_bugs(kernel)},
        frozenset({"truncation"}),
        float32_only,
    )


def activations() -> Iterator[Group]:
    def erf_gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    yield _pointwise(
        "gelu",
        F.gelu,
        {"by erf": rounded_once(erf_gelu)},
        {
            "tanh": rounded_once(lambda x: F.gelu(x, approximate="tanh")),
            "sigmoid": rounded_once(lambda x: x * torch.sigmoid(1.702 * x)),
        },
    )
    yield _pointwise(
        "sigmoid",
        torch.sigmoid,
        {"fast exp": rounded_once(lambda x: 1 / (1 + fast_exp(-x)))},
        {
            "hard": rounded_once(F.hardsigmoid),
            "a ripple of 1e-3": rounded_once(lambda x: 1 / (1 + rippled_exp(-x))),
        },
        frozenset({"a ripple of 1e-3"}),
    )
    yield _pointwise(
        "silu",
        F.silu,
        {"fast exp": rounded_once(lambda x: x / (1 + fast_exp(-x)))},
        {"hard": rounded_once(F.hardswish), "no product": rounded_once(torch.sigmoid)},
    )
    yield _pointwise(
        "exp",
        torch.exp,
        {"fast exp": rounded_once(fast_exp)},
        {"a ripple of 1e-3": rounded_once(rippled_exp), "expm1": rounded_once(torch.expm1)},
        frozenset({"a ripple of 1e-3"}),
    )
    yield _pointwise(
        "tanh",
        torch.tanh,
        {"by sigmoid": rounded_once(torch.tanh)},
        {"first terms": rounded_once(lambda x: (x - x**3 / 3).clamp(-1, 1))},
    )


def add_group() -> Group:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + 0.5 * y

    def transposed(x: Tensor, y: Tensor) -> Tensor:
        return add(x, y.mT.contiguous().reshape(y.shape))

    def shifted(x: Tensor, y: Tensor) -> Tensor:
        return add(x, y.reshape(-1).roll(1).reshape(y.shape))

    shape = (63, 65)
    return Group(
        "add",
        add,
        {"normal": normals(shape, shape), "offset": normals(shape, shape, shift=16.0)},
        {
            "eager": rounded_once(add),
            "fused": rounded_once(lambda x, y: torch.add(x, y, alpha=0.5)),
        },
        {
            "alpha ignored": rounded_once(lambda x, y: x + y),
            "ignores strides": rounded_once(transposed),
            "ignores the offset": rounded_once(shifted),
            "broadcasts a row": rounded_once(lambda x, y: add(x, y[:1].expand_as(y))),
            **common_bugs(add),
        },
        frozenset({"truncation"}),
    )


# Indices, pooling, losses.


def index_add_group() -> Group:
    where = torch.arange(400) % 7

    def add(x: Tensor) -> Tensor:
        return torch.zeros(7, x.shape[1], dtype=x.dtype).index_add(0, where, x)

    def last_wins(x: Tensor) -> Tensor:
        return torch.stack([x[where == i][-1] for i in range(7)])

    def in_type(x: Tensor) -> Tensor:
        return torch.stack([sequential(x[where == i].mT, x.dtype) for i in range(7)])

    shape = (400, 40)
    return Group(
        "index_add",
        add,
        {"normal": normals(shape), "positive": positives(shape)},
        {"eager": rounded_once(add)},
        {
            "the last one wins": last_wins,
            "accumulates in its type": in_type,
            "drops the last": rounded_once(
                lambda x: add(torch.cat([x[:-1], torch.zeros_like(x[:1])]))
            ),
            **common_bugs(add),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


def pools() -> Iterator[Group]:
    shape = (3, 5, 13, 15)
    profiles = {
        "normal": normals(shape),
        "negative": lambda g: tuple(-t for t in positives(shape)(g)),
    }

    def largest(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    yield Group(
        "max_pool2d",
        largest,
        profiles,
        {"eager": rounded_once(largest)},
        {
            "pads with zero": rounded_once(lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)),
            "window off by one": rounded_once(lambda x: largest(x.roll(1, -1))),
            "one wrong element": after(largest, hit),
            "tail not written": after(largest, tail_lost),
        },
    )

    def average(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 2, 1)

    yield Group(
        "avg_pool2d",
        average,
        profiles,
        {"eager": rounded_once(average)},
        {
            "padding not counted": rounded_once(
                lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
            ),
            **common_bugs(average),
        },
        frozenset({"truncation"}),
    )


def cross_entropy_group() -> Group:
    target = torch.arange(300) % 33
    target[::10] = -100

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    def ignored(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target.clamp(min=0), reduction="none")

    shape = (300, 33)
    return Group(
        "cross_entropy",
        loss,
        {"normal": normals(shape), "large": normals(shape, scale=8.0, shift=100.0)},
        {"eager": rounded_once(loss)},
        {
            "ignore_index ignored": rounded_once(ignored),
            "target off by one": rounded_once(
                lambda x: F.cross_entropy(x.roll(1, -1), target, reduction="none")
            ),
            "maximum not subtracted": rounded_once(
                lambda x: (
                    (x.exp().sum(-1).log() - x.gather(-1, target.clamp(min=0)[:, None])[:, 0])
                    * (target >= 0)
                )
            ),
            "truncation": cut_off(loss),
        },
        frozenset({"truncation"}),
    )


GROUPS = (
    *activations(),
    add_group(),
    index_add_group(),
    *pools(),
    cross_entropy_group(),
)
