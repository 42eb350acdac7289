# SPDX-License-Identifier: Apache-2.0
"""Observation of the calls of dlinfer's ops while a program runs: which kernels ran, and which of
their results are wrong by the op's meaning on the same arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from deeplink.judge.formats import FORMATS
from dlinfer import kernels
from dlinfer.conformance.case import Case
from dlinfer.conformance.check import copied, off
from dlinfer.registry import OPS, FusedOp

Run = Callable[[], Any]
OnCall = Callable[[FusedOp, dict[str, Any], Run], Any]


@dataclass(frozen=True)
class WrongCall:
    """A call of an op whose result is out of bounds."""

    op: str
    number: int  # of the call among all calls of ops, from 1
    layer: str  # the module that made the call
    kernel: str  # who computed it
    error: str


class _Calls(TorchDispatchMode):
    def __init__(self, on_call: OnCall) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_call = on_call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "dlinfer":
            return func(*args, **kwargs)
        op = OPS[func._schema.name.partition("::")[2]]
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        return self.on_call(op, given, lambda: func(*args, **kwargs))


def kernels_of(run: Run) -> dict[str, Counter[str]]:
    """Run a program and return who computed each op that it called, with counts."""
    found: dict[str, Counter[str]] = {}

    def count(op: FusedOp, given: dict[str, Any], call: Run) -> Any:
        result, kernel = _with_kernel(op, given, call)
        found.setdefault(op.name, Counter())[kernel] += 1
        return result

    with torch.no_grad(), _Calls(count):
        run()
    return found


def first_wrong(run: Run, model: nn.Module) -> WrongCall | None:
    """Run a program and return the first call of an op whose result, or what it wrote, is out of
    bounds; the results of calls are passed on as they are.
    """
    wrong: list[WrongCall] = []
    number = 0

    def judge(op: FusedOp, given: dict[str, Any], call: Run) -> Any:
        nonlocal number
        number += 1
        if wrong:
            return call()
        case = Case(op.name, f"call {number}", _dtype(given), copied(given))
        result, kernel = _with_kernel(op, given, call)
        error = off(case, result, given)
        if error:
            wrong.append(WrongCall(op.name, number, inside[-1] if inside else "", kernel, error))
        return result

    with torch.no_grad(), _entered(model) as inside, _Calls(judge):
        run()
    return wrong[0] if wrong else None


def _with_kernel(op: FusedOp, given: dict[str, Any], call: Run) -> tuple[Any, str]:
    before = kernels.by_reference(op.name)
    result = call()
    device = next(value.device.type for value in given.values() if isinstance(value, Tensor))
    fell_back = kernels.by_reference(op.name) > before
    return result, kernels.REFERENCE if fell_back else kernels.routes(device)[op.name]


def _dtype(given: dict[str, Any]) -> torch.dtype:
    """Return the type of a call: of its first tensor of a floating type that is not a cache's."""
    floats = (v.dtype for v in given.values() if isinstance(v, Tensor) and v.is_floating_point())
    return next((dtype for dtype in floats if dtype in FORMATS), torch.float32)


@contextmanager
def _entered(model: nn.Module) -> Iterator[list[str]]:
    """Keep the names of the modules that are running, the innermost last."""
    inside: list[str] = []
    hooks = []

    def leave(*_: Any) -> None:
        inside.pop()

    for name, module in model.named_modules():

        def enter(module: nn.Module, args: Any, name: str = name) -> None:
            inside.append(name or type(module).__name__)

        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield inside
    finally:
        for hook in hooks:
            hook.remove()
