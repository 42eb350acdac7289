"""Statistics in JSON, as they stand in a line."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from op_tools.tensors.statistics import Statistics


@lru_cache(10_000)
def start_of(dtype: torch.dtype, shape: torch.Size) -> str:
    """What a tensor is, in front of its numbers."""
    kind = str(dtype).removeprefix("torch.")
    return f'{{"dtype":"{kind}","shape":[{",".join(map(str, shape))}],'


def written(found: Statistics, hash_only: bool) -> str:
    """Statistics in JSON; without a hash where there is none."""
    text = f'"hash":"{found.hash:016x}"' if found.hash is not None else ""
    if hash_only:
        return text
    return f"{numbers_of(*found[1:])}{',' if text else ''}{text}"


def numbers_of(
    low: float | None, high: float | None, mean: float | None, norm: float | None, nonfinite: int
) -> str:
    """The same without the hash."""
    if norm is not None and norm < math.inf:  # so all of them are finite
        return f'"min":{low},"max":{high},"mean":{mean},"norm":{norm},"nonfinite":{nonfinite}'
    texts = map(_number, (low, high, mean, norm))
    return '"min":{},"max":{},"mean":{},"norm":{}'.format(*texts) + f',"nonfinite":{nonfinite}'


def _number(value: float | None) -> str:
    return repr(value) if value is not None and math.isfinite(value) else "null"
