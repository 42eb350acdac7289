"""Our own arguments, for ops that op_db does not have and for sizes that it does not reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.sample import Sample

OWN = "own"
Maker = Callable[[torch.dtype], Iterator[Sample]]
MAKERS: dict[str, Maker] = {}


def samples(op: str, dtype: torch.dtype) -> list[Sample]:
    """Our samples of an op; none for one that has no row here."""
    return list(MAKERS[op](dtype)) if op in MAKERS else []


def _for(*names: str) -> Callable[[Maker], Maker]:
    def keep(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return keep


def _draw(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 9, shape).to(dtype)
    return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        dtype
    )


ROWS = ((7,), (3, 129), (2, 5, 33), (4, 1031))


@_for("clamp_min", "clamp_max")
def _clamp(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        yield Sample((_draw(shape, dtype), 1))


@_for("safe_softmax")
def _safe_softmax(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        scores = _draw(shape, dtype)
        yield Sample((scores, -1))
        scores[0] = -torch.inf
        yield Sample((scores, -1))


@_for("max_all", "min_all")
def _all(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        yield Sample((_draw(shape, dtype),))


@_for("sgd", "adam", "adamw", "adadelta", "rmsprop")
def _nothing(dtype: torch.dtype) -> Iterator[Sample]:
    yield from ()


# Sizes at which tiles, tails and long sums show: by op, the shapes of its tensors and the rest.
LARGE: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "mm": [(((65, 1031), (1031, 33)), {}), (((1, 4099), (4099, 17)), {})],
    "bmm": [(((3, 33, 515), (3, 515, 17)), {})],
    "sum": [(((100_003,),), {}), (((7, 4099),), {"dim": [1]})],
    "mean": [(((100_003,),), {}), (((4099, 5),), {"dim": [0]})],
    "softmax": [(((9, 4099), -1), {}), (((1031, 6), 0), {})],
    "log_softmax": [(((9, 4099), -1), {})],
    "cumsum": [(((3, 4099), 1), {})],
    "exp": [(((65_537,),), {})],
    "gelu": [(((1031, 17),), {})],
    "add": [(((1031, 33), (1031, 33)), {}), (((1031, 1), (1, 65)), {})],
    "mul": [(((1031, 33), (33,)), {})],
    "sort": [(((3, 4099), -1), {})],
    "topk": [(((5, 4099), 17), {})],
}


def _large(op: str) -> Maker:
    def make(dtype: torch.dtype) -> Iterator[Sample]:
        for args, kwargs in LARGE[op]:
            made = tuple(_draw(a, dtype) if isinstance(a, tuple) else a for a in args)
            yield Sample(made, dict(kwargs))

    return make


MAKERS.update({op: _large(op) for op in LARGE if op not in MAKERS})
