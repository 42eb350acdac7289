# SPDX-License-Identifier: Apache-2.0
"""The suite's own arguments, for ops that op_db lacks and for sizes beyond op_db's."""

from __future__ import annotations

import importlib
import pkgutil

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import FIXED, MAKERS

__all__ = ["FIXED", "MAKERS", "OWN", "samples"]

OWN = "own"


def samples(op: str, dtype: torch.dtype) -> list[Sample]:
    """Return the own samples of an op; empty for an op without a row here."""
    return list(MAKERS[op](dtype)) if op in MAKERS else []


for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")
