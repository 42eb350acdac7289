"""The fused ops as guests of the suite of the interface: `python -m diopi.conformance`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from dlinfer import kernels
from dlinfer.conformance.case import DTYPES, Case, cases
from dlinfer.conformance.check import wrong
from dlinfer.op import OPS

PREFIX = "dlinfer."
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
Trial = tuple[str, Callable[[], str]]


def ops() -> Sequence[str]:
    return [PREFIX + op for op in OPS]


def dtypes(vendor: str, device: str) -> Mapping[str, Sequence[str]]:
    """Of those that run by the vendor's own kernel; the reference's own are the meanings."""
    with kernels.using(vendor):
        mine = [op for op, by in kernels.routes(torch.device(device).type).items() if by == vendor]
    return {PREFIX + op: list(TYPES) for op in mine}


def trials(op: str, dtype: str, vendor: str, device: str) -> Sequence[Trial]:
    return [_trial(case, vendor, device) for case in cases(op.removeprefix(PREFIX), TYPES[dtype])]


def _trial(case: Case, vendor: str, device: str) -> Trial:
    def find() -> str:
        with kernels.using(vendor):
            return wrong(case, device)

    return case.label, find
