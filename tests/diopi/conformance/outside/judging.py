"""Judge one function in this process: the cases of its operator, until one fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any

from diopi.conformance.cases.case import Result
from diopi.conformance.execution.subject import Subject, of_source
from diopi.conformance.outside.sources import Source
from diopi.conformance.outside.spec import Spec
from diopi.conformance.planning import plan, recipes
from diopi.conformance.workers.attempt import attempt
from diopi.op import get

Kernel = Callable[..., Any]


def functions(module: ModuleType) -> dict[str, Kernel]:
    """The kernels of a module of the corpus, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if "__" in name.strip("_") and not name.startswith("_") and callable(value)
    }


def subject(name: str, kernel: Kernel, spec: Spec | None = None) -> Subject:
    """The function as a subject; `operator__what` is a kernel of the operator."""
    op = name.rpartition("__")[0] if not name.count("___") else name.partition("___")[0] + "_"
    made = of_source(spec or Spec("corpus"), Source({op: kernel}))
    assert made.matching is not None and not made.matching.unmatched, made.matching
    return made


def results(made: Subject, tier: str = "quick", dtypes: Collection[str] = ()) -> Iterator[Result]:
    """The results of all cases of a subject's operators."""
    limits = plan.tier_of(tier)
    for op in made.kernels:
        for group in plan.groups(limits, [get(op)], dtypes):
            if group.source.endswith(f"+{recipes.ERRORS}"):
                continue
            samples = recipes.samples(group, limits.read)
            for case, checks in plan.cases(group, samples, limits):
                callee = recipes.callee(group, case.index)
                yield attempt(case, callee, samples[case.index], made, checks)


def first_bad(name: str, kernel: Kernel) -> Result | None:
    """The first case that fails; smaller tiers first."""
    made = subject(name, kernel)
    for tier in ("smoke", "quick"):
        for result in results(made, tier):
            if result.bad:
                return result
    return None
