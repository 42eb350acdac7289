# SPDX-License-Identifier: Apache-2.0
"""What two simulations of a chip's compiler share: their error, and memory of a result's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError


class SimulationError(DeeplinkError):
    """An emitted graph cannot be run, or gives what it does not declare."""


def fresh(results: Sequence[Any], given: Sequence[Any]) -> list[Tensor]:
    """The results in memory of their own, as a chip's would be: a kernel here may give a view."""
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
