# SPDX-License-Identifier: Apache-2.0
"""The fused ops in the conformance suite of the interface: `python -m diopi.conformance`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dlinfer import kernels
from dlinfer.conformance.case import DTYPES, Case, cases
from dlinfer.conformance.check import wrong
from dlinfer.registry import OPS

PREFIX = "dlinfer."
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
Trial = tuple[str, Callable[[], str]]


def ops() -> Sequence[str]:
    return [PREFIX + op for op in OPS]


def dtypes(vendor: str, device: str) -> Mapping[str, Sequence[str]]:
    """Return the dtypes of each op for which a vendor has its own kernel."""
    kind = torch.device(device).type
    found = {}
    with kernels.using(vendor):
        for op, by in kernels.routes(kind).items():
            mine = by != kernels.REFERENCE
            taken = [name for name in TYPES if mine and _takes(op, name, kind)]
            if taken:
                found[PREFIX + op] = taken
    return found


def _takes(op: str, dtype: str, device: str) -> bool:
    made = cases(op, TYPES[dtype])
    return any(kernels.takes(op, device, case.arguments) for case in made)


def parameters(op: str) -> Sequence[str]:
    """Return the names of an op's arguments."""
    arguments = OPS[op.removeprefix(PREFIX)].overload._schema.arguments
    return [argument.name for argument in arguments]


def judged(op: str, dtype: str, kernel: Callable[..., Any], device: str) -> Sequence[Trial]:
    """Return the cases of an op for a kernel of someone else, which gets arguments by name."""
    made = cases(op.removeprefix(PREFIX), TYPES[dtype])
    return [(case.label, lambda case=case: wrong(case, device, kernel)) for case in made]  # type: ignore[misc]


def trials(op: str, dtype: str, vendor: str, device: str) -> Sequence[Trial]:
    return [_trial(case, vendor, device) for case in cases(op.removeprefix(PREFIX), TYPES[dtype])]


def _trial(case: Case, vendor: str, device: str) -> Trial:
    def find() -> str:
        with kernels.using(vendor):
            return wrong(case, device)

    return case.label, find
