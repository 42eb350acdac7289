"""A group of kernels for one op, right ones and wrong ones, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deeplink.judge import envelope
from deeplink.judge.formats import FORMATS
from diopi.conformance.execution.grading import Judged, grade

Kernel = Callable[..., Tensor]
Make = Callable[[torch.Generator], tuple[Tensor, ...]]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Group:
    """An op, the arguments by profile, and kernels for it."""

    name: str
    reference: Kernel
    profiles: dict[str, Make]
    right: dict[str, Kernel] = field(default_factory=dict)
    wrong: dict[str, Kernel] = field(default_factory=dict)
    half_only: frozenset[str] = frozenset()  # bugs that are none in float32
    float32_only: frozenset[str] = frozenset()  # bugs below the resolution of half types

    def bugs(self, dtype: torch.dtype) -> dict[str, Kernel]:
        left_out = self.half_only if dtype not in HALF else self.float32_only
        return {name: kernel for name, kernel in self.wrong.items() if name not in left_out}


@dataclass(frozen=True)
class Outcome:
    """The verdicts on one kernel: the grade by profile."""

    group: str
    dtype: str
    kernel: str
    is_bug: bool
    judged: dict[str, Judged]

    @property
    def noticed(self) -> bool:
        return any(one.grade != "A" for one in self.judged.values())

    def __str__(self) -> str:
        said = {p: (one.grade, str(one.verdict)[:90]) for p, one in self.judged.items()}
        return f"{self.group} {self.dtype} {self.kernel}: {said}"


def run(group: Group, dtype: torch.dtype, seed: int) -> Iterator[Outcome]:
    """Every kernel of a group under every profile."""
    kernels = [(name, False, k) for name, k in group.right.items()]
    kernels += [(name, True, k) for name, k in group.bugs(dtype).items()]
    said: dict[str, dict[str, Judged]] = {name: {} for name, _, _ in kernels}
    for profile, make in group.profiles.items():
        generator = torch.Generator().manual_seed(seed)
        args = tuple(_rounded(arg, dtype) for arg in make(generator))
        wide = tuple(arg.double() if arg.is_floating_point() else arg for arg in args)
        centre = group.reference(*wide)
        sigma: list[Tensor | None] = []

        def noise(
            wide: tuple[Tensor, ...] = wide,
            centre: Tensor = centre,
            sigma: list[Tensor | None] = sigma,
        ) -> Tensor | None:
            if not sigma:
                between = FORMATS[dtype].roundoff
                run = lambda: [group.reference(*wide)]  # noqa: E731
                sigma.extend(envelope(run, [centre], between=between))
            return sigma[0]

        for name, _, kernel in kernels:
            said[name][profile] = grade(kernel(*args), centre, lambda: None, noise)
    for name, is_bug, _ in kernels:
        yield Outcome(group.name, str(dtype)[6:], name, is_bug, said[name])


def _rounded(arg: Tensor, dtype: torch.dtype) -> Tensor:
    return arg.to(dtype) if arg.is_floating_point() else arg
