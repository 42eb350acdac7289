# SPDX-License-Identifier: Apache-2.0
"""Our own arguments, for ops that op_db does not have and for sizes that it does not reach."""

from __future__ import annotations

import importlib
import pkgutil

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import FIXED, MAKERS

__all__ = ["FIXED", "MAKERS", "OWN", "samples"]

OWN = "own"


def samples(op: str, dtype: torch.dtype) -> list[Sample]:
    """Our samples of an op; none for one that has no row here."""
    return list(MAKERS[op](dtype)) if op in MAKERS else []


for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")
