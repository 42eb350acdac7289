# SPDX-License-Identifier: Apache-2.0
"""Common parts of simulations of a chip's compiler: their error, and copies of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError


class SimulationError(DeeplinkError):
    """An emitted graph cannot be run, or its results differ from its declaration."""


def fresh(results: Sequence[Any], given: Sequence[Any]) -> list[Tensor]:
    """Copy results into separate memory, as a chip returns them:
    a kernel here may return a view.
    """
    taken = {x.untyped_storage().data_ptr() for x in given if isinstance(x, Tensor)}
    own: list[Tensor] = []
    for result in results:
        place = result.untyped_storage().data_ptr()
        own.append(
            result.clone(memory_format=torch.contiguous_format)
            if place in taken
            else result.contiguous()
        )
        taken.add(place)
    return own
