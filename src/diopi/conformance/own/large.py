# SPDX-License-Identifier: Apache-2.0
"""Sizes at which errors in tiles, tails and long sums appear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import MAKERS, Maker, draw

# By op, the shapes of its tensors and the other arguments.
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
    "mul": [(((1031, 33), (33,)), {}), (((65, 65), (65, 1)), {})],
    "sort": [(((3, 4099),), {"dim": -1})],
    "topk": [(((5, 4099), 17), {})],
}

LOGITS = frozenset({"softmax", "log_softmax"})  # also with logits whose exponential overflows


def _large(op: str) -> Maker:
    def make(dtype: torch.dtype) -> Iterator[Sample]:
        for args, kwargs in LARGE[op]:
            made = tuple(draw(dtype, *a) if isinstance(a, tuple) else a for a in args)
            yield Sample(made, dict(kwargs))
        if op in LOGITS:
            yield Sample((draw(dtype, 9, 129) * 8 + 120, -1))

    return make


MAKERS.update({op: _large(op) for op in LARGE})
