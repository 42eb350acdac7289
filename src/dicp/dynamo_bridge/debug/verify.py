# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled graph's results with eager's: judged in float64, result by result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from deeplink.judge import Verdict, envelope, judge
from deeplink.judge.formats import FORMATS, is_inexact

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Mismatch:
    """One result that is not correct."""

    index: int
    verdict: Verdict

    def __str__(self) -> str:
        return f"result {self.index}: {self.verdict}"


def check(gm: fx.GraphModule, args: Sequence[Any], results: Sequence[Any]) -> list[Mismatch]:
    """Return the results that differ from what a graph computes for these arguments."""
    host = [_host(value) for value in args]
    plain = _flat(gm.forward(*host))
    wide = _wide_run(gm, host)
    stored = _coarsest([*host, *plain])
    noise: list[Any] = []

    def sigma(index: int) -> Tensor | None:
        if not noise:
            noise.extend(_noise(gm, host, wide, stored) or [None] * len(wide))
        found: Tensor | None = noise[index]
        return found

    wrong = []
    for i, (result, reference) in enumerate(zip(results, wide, strict=True)):
        if not isinstance(result, Tensor) or not isinstance(reference, Tensor):
            continue
        verdict = judge(
            _host(result),
            reference if is_inexact(result.dtype) else plain[i],
            run_plain=lambda i=i: plain[i],  # type: ignore[misc]
            run_envelope=lambda i=i: sigma(i),  # type: ignore[misc]
        )
        if not verdict.passed:
            wrong.append(Mismatch(i, verdict))
    return wrong


def _host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _coarsest(values: Sequence[Any]) -> torch.dtype:
    types = [v.dtype for v in values if isinstance(v, Tensor) and v.dtype in FORMATS]
    return max(types, key=lambda dtype: FORMATS[dtype].roundoff, default=torch.float64)


class _Wide(fx.Interpreter):
    """An interpreter that runs a graph with every floating type widened to float64."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(_wide_type, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _wide_type(value: Any) -> Any:
    floating = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if floating else value


def _wide_run(gm: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    with torch.no_grad():
        return _flat(_Wide(gm, garbage_collect_values=True).run(*wide))


def _noise(
    gm: fx.GraphModule, args: Sequence[Any], centre: Sequence[Any], stored: torch.dtype
) -> list[Tensor | None] | None:
    floats = [t if isinstance(t, Tensor) and t.dtype in FORMATS else None for t in centre]

    def once() -> list[Tensor | None]:
        return [None if c is None else t for t, c in zip(_wide_run(gm, args), floats, strict=True)]

    # there the reference has errors as well
    inside = 2.0**-52 if stored == torch.float64 else 2.0**-24
    try:
        return envelope(once, floats, inside=inside, between=FORMATS[stored].roundoff)
    except Exception:  # torch raises anything when a call cannot be decomposed
        return None


def watched(
    run: Callable[[list[Any]], Sequence[Any]],
    gm: fx.GraphModule,
    complete: Callable[[list[Any]], list[Any]],
    found: Callable[[list[Any], list[Mismatch]], None],
) -> Callable[[list[Any]], Sequence[Any]]:
    """Wrap `run`: check each result against the graph; `complete` adds the constants."""

    def call(args: list[Any]) -> Sequence[Any]:
        given = complete(list(args))
        results = run(args)
        wrong = check(gm, given, results)
        if wrong:
            found(given, wrong)
        return results

    return call
