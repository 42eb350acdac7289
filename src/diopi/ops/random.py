# SPDX-License-Identifier: Apache-2.0
"""Random values: judged by their distribution, and by repeating them from one seed."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.op import FLOATS, REALS, op

FAMILY = "random"


def dropout(
    input: Tensor,
    p: float,
    train: bool | None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Keep elements with probability 1 - p, scaled by its inverse; also returns the mask."""
    if not train or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    kept = torch.empty_like(input).bernoulli_(1 - p, generator=generator)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return input * kept * scale, kept.to(torch.bool)


def random(
    input: Tensor, low: int = 0, high: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Integers from `low` up to, not including, `high` (None: the range of the dtype)."""
    fresh = torch.empty_like(input)
    if high is None and low == 0:
        return fresh.random_(generator=generator)
    return fresh.random_(low, high, generator=generator)


def normal(
    input: Tensor, mean: float = 0, std: float = 1, generator: torch.Generator | None = None
) -> Tensor:
    """A tensor like the input, sampled from a normal distribution."""
    return torch.empty_like(input).normal_(mean, std, generator=generator)


GENERATOR = "Generator? generator=None"

# fmt: off
op("dropout", FAMILY, aten="native_dropout", kind="random", dtypes=FLOATS, meaning=dropout,
   text=f"dropout(Tensor input, float p, bool? train, {GENERATOR}) -> (Tensor out, Tensor mask)",
   backward="dropout_backward", opinfo="nn.functional.dropout")
op("dropout_backward", FAMILY, aten="native_dropout_backward", kind="elementwise", dtypes=FLOATS,
   opinfo="native_dropout_backward")
op("uniform", FAMILY, kind="random", dtypes=FLOATS)
op("random", FAMILY, aten="random random.from random.to", kind="random", dtypes=REALS,
   meaning=random, opinfo="",
   text=f"random(Tensor self, int from=0, int? to=None, *, {GENERATOR}) -> Tensor")
op("normal", FAMILY, aten="normal_functional", kind="random", dtypes=FLOATS, meaning=normal,
   text=f"normal(Tensor self, float mean=0, float std=1, *, {GENERATOR}) -> Tensor", opinfo="")
op("normal_tensor_float", FAMILY, aten="normal.Tensor_float", kind="random", dtypes=FLOATS,
   opinfo="normal")
op("normal_float_tensor", FAMILY, aten="normal.float_Tensor", kind="random", dtypes=FLOATS,
   opinfo="normal")
op("normal_tensor_tensor", FAMILY, aten="normal.Tensor_Tensor", kind="random", dtypes=FLOATS,
   opinfo="normal")
op("bernoulli", FAMILY, aten="bernoulli", kind="random", dtypes=FLOATS)
op("bernoulli_p", FAMILY, aten="bernoulli.p", kind="random", dtypes=REALS, opinfo="bernoulli",
   doc="A tensor like the input; each element is 1 with probability p.")
op("randperm", FAMILY, aten="randperm.generator randperm", kind="random", dtypes=(torch.int64,),
   text=f"randperm.generator(int n, *, {GENERATOR}, ScalarType? dtype=None) -> Tensor", opinfo="")
op("rand", FAMILY, aten="rand.generator rand", kind="random", dtypes=FLOATS, opinfo="",
   text=f"rand.generator(SymInt[] size, *, {GENERATOR}, ScalarType? dtype=None) -> Tensor")
op("randn", FAMILY, aten="randn.generator randn", kind="random", dtypes=FLOATS,
   text=f"randn.generator(SymInt[] size, *, {GENERATOR}, ScalarType? dtype=None) -> Tensor")
op("multinomial", FAMILY, kind="random", dtypes=FLOATS)
for name in "exponential geometric cauchy log_normal".split():
    op(name, FAMILY, kind="random", dtypes=FLOATS)
op("poisson", FAMILY, kind="random", dtypes=FLOATS, opinfo="")
