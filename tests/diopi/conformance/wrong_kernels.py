"""For every op, a vendor with one wrong kernel of it, which the op's cases must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.testing import workers
from deeplink.testing.workers import Lost, Worker
from diopi.conformance.execution.subject import Subject, of_kernels
from diopi.conformance.planning import plan, recipes
from diopi.conformance.workers.attempt import attempt
from diopi.implementation import Implementation
from diopi.op import Op, get


def wrong(op: Op) -> Callable[..., Any]:
    """The op with a wrong element in each result, or in what it writes; what it draws is 0."""
    order = [argument.name for argument in op.arguments]
    written = {argument.name for argument in op.written}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = op.meaning(*args, **kwargs)
        if op.kind == "random":
            return pytree.tree_map_only(Tensor, torch.zeros_like, result)
        if op.returns and not written:
            return pytree.tree_map(_spoilt, result)
        named = dict(zip(order, args, strict=False)) | kwargs
        for value in pytree.tree_leaves([named.get(name) for name in written]):
            if isinstance(value, Tensor):
                value.copy_(_spoilt(value))
        return result

    return kernel


def _spoilt(value: Any) -> Any:
    """Another value: the last element of a tensor, the number itself."""
    if isinstance(value, int | float):
        return not value if isinstance(value, bool) else value + 1
    if not isinstance(value, Tensor) or not value.numel():
        return value
    made = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.preserve_format)
    last = (-1,) * made.dim()
    made[last] = ~made[last] if made.dtype == torch.bool else made[last].nan_to_num() * 2 + 1
    return made


def only(op: Op, kernel: Callable[..., Any]) -> Subject:
    """A vendor with one kernel."""
    return of_kernels("wrong", Implementation("wrong", {op.name: kernel}))


def found(name: str, tier: str = "smoke") -> str:
    """The id of the first case that fails on the wrong kernel; "" when none does."""
    op = get(name)
    subject, limits = only(op, wrong(op)), plan.tier_of(tier)
    for group in plan.groups(limits, [op]):
        samples = recipes.samples(group, limits.read)
        for case, checks in plan.cases(group, samples, limits):
            callee = recipes.callee(group, case.index)
            if attempt(case, callee, samples[case.index], subject, checks).bad:
                return case.id
    return ""


MODULE = "tests.diopi.conformance.wrong_kernels"
LIMIT = 900.0  # seconds for the cases of one op
TIERS = "smoke", "quick"  # the second where the first finds nothing


class _Worker(Worker):
    """Tests one op's wrong kernels at a time; the first op comes with the start."""

    name = ""


def found_in_all(names: Sequence[str], jobs: int) -> dict[str, str]:
    """Return for each op the case that finds its wrong kernel, "" for none,
    or why the process died.
    """
    left, answers = list(reversed(names)), {}
    running: list[_Worker] = []
    try:
        while left or running:
            while left and len(running) < jobs:
                running.append(_Worker(MODULE, {}))
                _next(running[-1], left)
            for worker, said in workers.listen(running, lambda _: LIMIT):
                lost = isinstance(said, Lost)
                answers[worker.name] = f"{said.status}: {said.message}" if lost else said
                if lost or not left:
                    running.remove(worker)
                    worker.stop()
                else:
                    _next(worker, left)
    finally:
        for worker in running:
            worker.stop()
    return answers


def _next(worker: _Worker, left: list[str]) -> None:
    worker.name = left.pop()
    worker.assign(worker.name)


def main() -> None:
    """Answers names with their findings until the pipe closes."""
    line, _ = workers.connect()
    torch.set_num_threads(1)
    while (name := line.receive()) is not workers.CLOSED:
        line.send(next((case for tier in TIERS if (case := found(name, tier))), ""))


if __name__ == "__main__":
    main()
