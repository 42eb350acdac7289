# SPDX-License-Identifier: Apache-2.0
"""Problems of KernelBench: ModelNew judged by Model in float64, on inputs of get_inputs."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diopi.conformance.cases.case import PLAIN, Case, Group
from diopi.conformance.cases.profiles import PROFILES
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.outside.sources import CANDIDATE, REFERENCE, Source
from diopi.conformance.outside.watching import Watch

SOURCE = "problem"
PREFIX = "problem."
DRAWS = 3  # times that the inputs are sampled
VALUES = ("normal", "offset", "small", "wide")  # profiles of the floating inputs
CHECKS = (
    *("structure", "dtype", "shape", "values", "inputs", "torch", "cache", "uninitialised"),
    *("outside", "determinism"),
)
MOST = {"cpu": 1 << 22, "cuda": 1 << 28}  # elements of the inputs and weights; sizes are halved


@dataclass(frozen=True)
class Problem:
    """One problem: the reference, the candidate, and the device that runs the latter."""

    name: str
    reference: ModuleType
    candidate_module: ModuleType
    device: str

    @property
    def group(self) -> Group:
        """The cases of the problem, in the type of its first inputs."""
        try:
            sample = Sample(self._inputs("meta"))
        except Exception:  # inputs that depend on values
            sample = Sample(self._inputs("cpu"))
        return Group(self.name, _dtype(sample), SOURCE)

    @cached_property
    def scale(self) -> int:
        """The number by which the sizes of the problem are divided to fit into memory."""
        return _scale(self.reference, MOST.get(self.device, MOST["cpu"]))

    @cached_property
    def _models(self) -> tuple[torch.nn.Module, torch.nn.Module]:
        with contextlib.ExitStack() as scaled:
            for module in dict.fromkeys((self.reference, self.candidate_module)):
                scaled.enter_context(_scaled(module, self.scale))
            given = self._module_of("get_init_inputs").get_init_inputs()
            made = []
            for module, name in ((self.reference, REFERENCE), (self.candidate_module, CANDIDATE)):
                _seed(0)
                made.append(getattr(module, name)(*given).eval())
        reference, candidate = made
        weights = reference.state_dict()
        if weights and weights.keys() == candidate.state_dict().keys():
            candidate.load_state_dict(weights)
        return reference, candidate.to(self.device)

    def _inputs(self, device: str) -> tuple[Any, ...]:
        module = self._module_of("get_inputs")
        with _scaled(module, self.scale), torch.device(device):
            return tuple(module.get_inputs())

    def _module_of(self, function: str) -> ModuleType:
        return self.reference if hasattr(self.reference, function) else self.candidate_module

    @cached_property
    def callee(self) -> Callee:
        """The reference as a function, in the type of its inputs."""
        by_type: dict[torch.dtype, torch.nn.Module] = {}

        def model(*args: Any) -> Any:
            wide = any(isinstance(a, Tensor) and a.dtype == torch.float64 for a in args)
            dtype = torch.float64 if wide else torch.float32
            if dtype not in by_type:
                plain = self._models[0]
                by_type[dtype] = copy.deepcopy(plain).to(dtype) if wide else plain
            with torch.no_grad():
                return by_type[dtype](*args)

        return Callee(self.name, model)

    def candidate(self, watch: Watch) -> Callable[..., Any]:
        """Return the candidate as a watched function."""
        watched = watch.watched(self.name, self._models[1])

        def model(*args: Any) -> Any:
            with torch.no_grad():
                return watched(*args)

        return model

    def cases(self) -> Iterator[tuple[Case, Sample]]:
        """Yield the cases with their arguments, before the profile of the case changes them."""
        _ = self._models  # creating them uses random numbers, which a case must not
        for draw in range(DRAWS):
            _seed(draw)
            values = self._inputs("cpu")
            sample = Sample(pytree.tree_map_only(Tensor, lambda t: t.detach().cpu(), values))
            profiles = (PLAIN, *VALUES) if not draw else (PLAIN,)
            for profile in profiles:
                assert profile == PLAIN or profile in PROFILES
                yield Case(self.name, _dtype(sample), SOURCE, draw, profile), sample


def problems_of(source: Source, device: str) -> list[Problem]:
    return [
        Problem(f"{PREFIX}{name}", reference, candidate, device)
        for name, reference, candidate in source.problems
    ]


def _dtype(sample: Sample) -> str:
    first = next((t.dtype for t in sample.tensors if t.is_floating_point()), torch.float32)
    return str(first).removeprefix("torch.")


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


@contextmanager
def _scaled(module: ModuleType, factor: int) -> Iterator[None]:
    """Divide the sizes among the constants of a module inside the block."""
    rows = vars(module).items() if factor > 1 else ()
    before = {n: v for n, v in rows if not n.startswith("_") and _is_size(v)}
    for name, value in before.items():
        setattr(module, name, _divided(value, factor))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


LEAST = 32  # smaller numbers are channels, kernel sizes, dimensions: they stay


def _is_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(type(one) is int for one in value) and max(value) > LEAST
    return type(value) is int and value > LEAST


def _divided(value: Any, factor: int) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_divided(one, factor) for one in value)
    return max(LEAST, value // factor) if value > LEAST else value


def _scale(module: ModuleType, most: int) -> int:
    """Return the least power of two that makes the inputs small enough."""
    if not hasattr(module, "get_inputs"):
        return 1
    factor = 1
    while factor < 1 << 16:
        with _scaled(module, factor), torch.device("meta"):
            try:
                values = module.get_inputs()
            except Exception:  # inputs that depend on values: created as they are
                return factor
        count = sum(t.numel() for t in pytree.tree_leaves(values) if isinstance(t, Tensor))
        if count <= most:
            return factor
        factor *= 2
    return factor
