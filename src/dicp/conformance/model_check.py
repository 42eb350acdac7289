# SPDX-License-Identifier: Apache-2.0
"""One model on one backend, judged against float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deeplink.judge import envelope, judge
from deeplink.judge.formats import FORMATS
from dicp.backend import GraphCompiler
from dicp.conformance.models import MODELS, PLAIN, Model
from dicp.dynamo_bridge import report

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WORKS = ("static", "dynamic", "training")
OPTIONS: dict[str, Any] = {"measure": False, "cache": False}


@dataclass(frozen=True)
class ModelResult:
    """The result of a model: right, wrong (with the error) or eager, and the compiled share."""

    model: str
    backend: str
    dtype: str
    work: str  # inference with fixed sizes, with changing sizes, or training
    status: str
    graphs: str = ""
    compiled: str = ""  # operators in partitions, of all
    text: str = ""
    run: str = ""


def check(
    name: str, backend: GraphCompiler, dtype: str, work: str, run: str = "", device: str = "cpu"
) -> ModelResult:
    """Compile a model and judge its results; changing sizes must need one compile only."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = {**MODELS, **PLAIN}[name]()
    model.module.to(device, DTYPES[dtype])
    before = len(report.RECORDS)
    text = (_training if work == "training" else _inference)(model, backend, work == "dynamic")
    made = report.RECORDS[before:]
    taken, nodes = sum(0 if r.stays_eager else r.taken for r in made), sum(r.nodes for r in made)
    status = "wrong" if text else "right" if taken else "eager"
    graphs, compiled = str(len(made)), f"{taken} of {nodes}"
    return ModelResult(name, backend.name, dtype, work, status, graphs, compiled, text, run)


@torch.no_grad()
def _inference(model: Model, backend: GraphCompiler, dynamic: bool) -> str:
    """Return the error of the results; "" when they are correct."""
    compiled = torch.compile(model.module, backend=backend, dynamic=dynamic, options=OPTIONS)
    for size in model.sizes if dynamic else model.sizes[:1]:
        before = len(report.RECORDS)
        arguments = _typed(model, model.arguments(*size))
        text = judged(model, compiled(*arguments), arguments)
        if text:
            return f"{size}: {text}"
        again = len(report.RECORDS) > before and size != model.sizes[0]
        if again and backend.dynamic == "native":
            return f"compiled again for {size}"
    return ""


def _typed(model: Model, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    like = next(model.module.parameters())
    moved = (a.to(like.device) for a in arguments)
    return tuple(a.to(like.dtype) if a.is_floating_point() else a for a in moved)


def _in_float64(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    moved = (a.cpu() for a in arguments)
    return tuple(a.double() if a.is_floating_point() else a for a in moved)


def _wide(module: nn.Module) -> nn.Module:
    wide = copy.deepcopy(module).cpu().double()
    config = getattr(getattr(wide, "inner", None), "config", None)
    if config is not None:  # the faster form of mixtral's experts has no float64
        config._experts_implementation = "eager"
    return wide


def judged(model: Model, result: Tensor, arguments: tuple[Any, ...]) -> str:
    """Return the judge's error for a model's result; the reference is the model in float64."""
    wide = _wide(model.module)
    given = _in_float64(arguments)

    def once() -> list[Tensor]:
        return [wide(*given)]

    reference, between = once()[0], _between(result.dtype)
    samples = 12 if between else 4  # a spread of so few is itself uncertain
    verdict = judge(
        result.cpu(),
        reference,
        run_plain=lambda: model.module(*arguments).cpu(),
        run_envelope=lambda: envelope(once, [reference], between=between, samples=samples)[0],
    )
    return "" if verdict.passed else str(verdict)


def _between(dtype: torch.dtype) -> float:
    """Return the roundoff of the type in which one op hands its result to the next."""
    return 0.0 if dtype == torch.float32 else FORMATS[dtype].roundoff


def _training(model: Model, backend: GraphCompiler, dynamic: bool) -> str:
    """Return the error of the gradients of one step; "" when they are correct."""
    arguments = _typed(model, model.arguments(*model.sizes[0]))
    compiled = torch.compile(model.module, backend=backend, options=OPTIONS)
    mine = gradients(model.module, compiled, arguments)
    plain = gradients(model.module, model.module, arguments)
    wide = _wide(model.module)
    given = _in_float64(arguments)
    exact = gradients(wide, wide, given)
    assert mine.keys() == exact.keys()
    samples = envelope(
        lambda: list(gradients(wide, wide, given).values()),
        list(exact.values()),
        between=_between(next(iter(mine.values())).dtype),
        samples=4,
    )
    for (key, reference), room in zip(exact.items(), samples, strict=True):
        verdict = judge(
            mine[key],
            reference,
            run_plain=lambda key=key: plain[key],  # type: ignore[misc]
            run_envelope=lambda room=room: room,  # type: ignore[misc]
        )
        if not verdict.passed:
            return f"{key}: {verdict}"
    return ""


def gradients(model: nn.Module, run: Any, arguments: tuple[Any, ...]) -> dict[str, Tensor]:
    model.zero_grad()
    run(*arguments).square().mean().backward()
    return {key: p.grad.cpu().clone() for key, p in model.named_parameters() if p.grad is not None}
