# SPDX-License-Identifier: Apache-2.0
"""Random ops have no expected values, only distributions, with which their numbers are compared.

The criterion is the Kolmogorov-Smirnov distance of many numbers from the distribution function, at
a level at which a correct generator fails once in a million runs; the numbers follow from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.case import Finding
from diopi.conformance.cases.sample import Sample
from diopi.conformance.execution.running import host

DRAWS = 20_000
LEVEL = 1e-6
SOURCE = "statistics"

Distribution = Callable[[Tensor], Tensor]  # P(X <= x)


@dataclass(frozen=True)
class Draw:
    """A call that generates numbers, and their distribution; `steps` for integers."""

    call: Callable[[torch.device], Tensor]
    distribution: Distribution
    discrete: bool = False


def _normal(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _room(device: torch.device) -> Tensor:
    return torch.empty(DRAWS, device=device)


def _filled(device: torch.device, value: float) -> Tensor:
    return torch.full((DRAWS,), value, device=device)


DRAWN: dict[str, Draw] = {
    "rand": Draw(lambda d: torch.rand(DRAWS, device=d), lambda x: x.clamp(0, 1)),
    "randn": Draw(lambda d: torch.randn(DRAWS, device=d), _normal),
    "uniform": Draw(lambda d: _room(d).uniform_(-1, 3), lambda x: ((x + 1) / 4).clamp(0, 1)),
    "normal": Draw(lambda d: _room(d).normal_(2, 3), lambda x: _normal((x - 2) / 3)),
    "exponential": Draw(
        lambda d: _room(d).exponential_(2.0), lambda x: 1 - torch.exp(-2 * x.clamp(min=0))
    ),
    "bernoulli": Draw(
        lambda d: torch.bernoulli(torch.full((DRAWS,), 0.3, device=d)),
        lambda x: torch.where(x < 0, 0.0, torch.where(x < 1, 0.7, 1.0)),
        discrete=True,
    ),
    "randint": Draw(
        lambda d: torch.randint(0, 10, (DRAWS,), device=d),
        lambda x: ((x.floor() + 1) / 10).clamp(0, 1),
        discrete=True,
    ),
    "randperm": Draw(
        lambda d: torch.randperm(DRAWS, device=d),
        lambda x: ((x.floor() + 1) / DRAWS).clamp(0, 1),
        discrete=True,
    ),
    "multinomial": Draw(
        lambda d: torch.multinomial(torch.tensor([1.0, 3.0], device=d), DRAWS, replacement=True),
        lambda x: torch.where(x < 0, 0.0, torch.where(x < 1, 0.25, 1.0)),
        discrete=True,
    ),
    "dropout": Draw(
        lambda d: torch.native_dropout(torch.ones(DRAWS, device=d), 0.3, True)[0],
        lambda x: torch.where(x < 0, 0.0, torch.where(x < 1.42, 0.3, 1.0)),
        discrete=True,
    ),
    "random": Draw(
        lambda d: _room(d).random_(2, 12),
        lambda x: ((x.floor() - 1) / 10).clamp(0, 1),
        discrete=True,
    ),
    "bernoulli_p": Draw(
        lambda d: torch.bernoulli(_room(d), 0.3),
        lambda x: torch.where(x < 0, 0.0, torch.where(x < 1, 0.7, 1.0)),
        discrete=True,
    ),
    "normal_tensor_float": Draw(
        lambda d: torch.normal(_filled(d, 2.0), 3.0), lambda x: _normal((x - 2) / 3)
    ),
    "normal_float_tensor": Draw(
        lambda d: torch.normal(2.0, _filled(d, 3.0)), lambda x: _normal((x - 2) / 3)
    ),
    "normal_tensor_tensor": Draw(
        lambda d: torch.normal(_filled(d, 2.0), _filled(d, 3.0)), lambda x: _normal((x - 2) / 3)
    ),
    "log_normal": Draw(
        lambda d: _room(d).log_normal_(0.5, 0.25),
        lambda x: _normal((x.clamp(min=1e-30).log() - 0.5) / 0.25),
    ),
    "cauchy": Draw(
        lambda d: _room(d).cauchy_(1.0, 2.0), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi
    ),
    "geometric": Draw(
        lambda d: _room(d).geometric_(0.3),
        lambda x: 1 - 0.7 ** x.floor().clamp(min=0),
        discrete=True,
    ),
    "poisson": Draw(
        lambda d: torch.poisson(_filled(d, 4.0)),
        lambda x: torch.special.gammaincc(x.floor() + 1, torch.full_like(x, 4.0)),
        discrete=True,
    ),
}


def sample(op: str) -> Sample:
    """Return the one call of an op; its argument is the device."""
    return Sample((), {"device": torch.device("cpu"), "_op": op})


def function(op: str) -> Callable[..., Any]:
    """Return the function of a case."""

    def draw(device: Any, _op: str) -> Tensor:
        return DRAWN[op].call(torch.device(device))

    return draw


def check(op: str, result: Tensor, again: Callable[[int], Tensor]) -> list[Finding]:
    """Return findings on the distance from the distribution; `again` uses another seed."""
    drawn = host(result).double().reshape(-1)
    found = []
    distance = distance_of(drawn, DRAWN[op].distribution, DRAWN[op].discrete)
    allowed = math.sqrt(-0.5 * math.log(LEVEL / 2)) / math.sqrt(drawn.numel())
    if not distance <= allowed:
        text = f"its numbers are {distance:.3g} from their distribution, allowed {allowed:.3g}"
        found.append(Finding("statistics", text))
    if torch.equal(host(again(21)).double().reshape(-1), drawn):
        found.append(Finding("statistics", "another seed gives the same numbers"))
    return found


def distance_of(drawn: Tensor, distribution: Distribution, discrete: bool) -> float:
    """Return the largest difference between the share of numbers below a
    value and its probability.
    """
    values = drawn.sort().values
    count = values.numel()
    share = torch.arange(1, count + 1, dtype=torch.float64) / count
    wanted = distribution(values)
    if discrete:  # only at the last of equal values is the share comparable
        last = torch.ones(count, dtype=torch.bool)
        last[:-1] = values[1:] != values[:-1]
        return float((share - wanted)[last].abs().max())
    return float(torch.maximum((share - wanted).abs(), (share - 1 / count - wanted).abs()).max())
