# SPDX-License-Identifier: Apache-2.0
"""The stored cases of models: one compressed file per model, a call's shapes on each line."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError, UnknownOpError
from diopi.conformance.cases.sample import Callee, Sample
from diopi.op import by_aten

FOLDER = Path(__file__).parent
ENDING = ".jsonl.gz"
PREFIX = "model:"
MOST = 1 << 17  # elements of all arguments of a call; larger ones are scaled down
FOREVER = 1 << 40  # the end of a slice without an end
# Sizes above the first number become the second plus up to the third; the first row that is enough.
SCALES = ((1 << 62, 0, 1), (256, 64, 61), (64, 33, 31), (24, 9, 7))
LEFT_OUT = ("group_norm",)  # products of sizes are among its arguments: cannot be scaled
POSITIVE = ("rsqrt", "sqrt", "log", "batch_norm", "lerp", "addcdiv", "div")

Spec = Any  # a number, a text, a list of these, or {"t": shape, "d": dtype, "s": strides}


def names() -> list[str]:
    """Return the names of the models."""
    return sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}"))


def check(name: str) -> None:
    """Raise DeeplinkError unless there is a model of this name."""
    if name not in names():
        raise DeeplinkError(
            f"no model {name!r}; there are: {', '.join(names()) or 'none'}.",
            hint="see --get_model_list.",
        )


def listed() -> dict[str, list[str]]:
    """Return every model with the ops that it calls."""
    return {name: sorted({op for op, _ in calls(name)}) for name in names()}


@lru_cache(maxsize=2)
def calls(name: str) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
    """Return the calls of a model by op and dtype, in the order of the file."""
    check(name)
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(FOLDER / f"{name}{ENDING}", "rt", encoding="utf-8") as file:
        for line in file:
            call = json.loads(line)
            op = _op(call["op"])
            if op and not any(word in call["op"] for word in LEFT_OUT):
                found[op, _dtype(call)].append(call)
    return dict(found)


@cache
def _op(overload: str) -> str:
    """Return the op of the interface for an overload; "" for none."""
    try:
        return by_aten(overload.removeprefix("aten.").removesuffix(".default")).name
    except UnknownOpError:
        return ""


def _dtype(call: dict[str, Any]) -> str:
    tensors = [s for s in _leaves([call["args"], call["kwargs"]]) if isinstance(s, dict)]
    floats = [s["d"] for s in tensors if "float" in s["d"]]
    return str(next(iter([*floats, *(s["d"] for s in tensors)]), "float32"))


def callee(call: dict[str, Any]) -> Callee:
    """Return the callee of a call: the overload itself."""
    base, _, overload = call["op"].removeprefix("aten.").partition(".")
    function = getattr(getattr(torch.ops.aten, base), overload)
    return Callee(call["op"], function, draws=torch.Tag.nondeterministic_seeded in function.tags)


def sample(call: dict[str, Any]) -> Sample:
    """Create the arguments of a call, scaled down to sizes that a small machine judges quickly."""
    given = [call["args"], call["kwargs"]]
    specs = [s for s in _leaves(given) if isinstance(s, dict)]
    scale = _scale(specs, [s for s in _leaves(given) if type(s) is int])
    most = min([d for s in specs for d in map(scale, s["t"]) if d > 1], default=2)
    positive = any(word in call["op"] for word in POSITIVE)

    def make(spec: Spec) -> Any:
        if isinstance(spec, dict) and "t" in spec:
            return _tensor(spec, scale, most, positive)
        if isinstance(spec, dict):
            return getattr(torch, spec["dtype"])
        if isinstance(spec, list):
            return [make(item) for item in spec]
        return scale(spec) if type(spec) is int else spec

    return Sample(tuple(map(make, call["args"])), {k: make(v) for k, v in call["kwargs"].items()})


def _leaves(spec: Spec) -> list[Any]:
    if isinstance(spec, list):
        return [leaf for item in spec for leaf in _leaves(item)]
    if isinstance(spec, dict) and "t" not in spec:
        return [leaf for item in spec.values() for leaf in _leaves(item)]
    return [spec]


def _scale(specs: list[dict[str, Any]], numbers: list[int]) -> Callable[[int], int]:
    """Return a mapping of sizes for all arguments that makes the call small enough.

    A number may be a size of the result (of a vocabulary), next to the last one of an argument.
    """
    counts = [n for n in numbers if n < FOREVER]
    for above, least, more in SCALES:
        chosen = partial(_scaled, above=above, least=least, more=more)
        rows = max((chosen(s["t"][-1]) for s in specs if s["t"]), default=1)
        result = max(map(chosen, counts), default=1) * rows
        if result + sum(math.prod(map(chosen, spec["t"])) for spec in specs) <= MOST:
            break
    return chosen


def _scaled(size: int, above: int, least: int, more: int) -> int:
    return least + size % more if size > above else size


def _tensor(spec: dict[str, Any], scale: Callable[[int], int], most: int, positive: bool) -> Tensor:
    shape, dtype = [scale(size) for size in spec["t"]], getattr(torch, spec["d"])
    if dtype == torch.bool:
        made = torch.rand(shape) < 0.7
    elif not dtype.is_floating_point and not dtype.is_complex:
        made = torch.randint(0, max(1, most), shape).to(dtype)
    else:
        made = torch.randn(shape, dtype=torch.float64)
        made = (made.abs() + 0.1 if positive else made).to(dtype)
    order = spec.get("s")
    if order == "cl" and made.dim() == 4:
        return made.contiguous(memory_format=torch.channels_last)
    if isinstance(order, list):  # the dimensions from the slowest to the fastest
        back = [order.index(i) for i in range(made.dim())]
        return made.permute(order).contiguous().permute(back)
    return made
