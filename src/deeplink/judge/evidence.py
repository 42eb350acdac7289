# SPDX-License-Identifier: Apache-2.0
"""The inputs of a judge for one result; expensive parts are computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def _nothing() -> None:
    return None


@dataclass
class Evidence:
    """A result on the host, its reference, and functions for further evidence.

    `reference`: the result of the call in float64, from the same (already rounded) arguments.
    `run_plain`: computes the call on the CPU in the result's own type; None where that is
    impossible.
    `run_envelope`: computes the standard deviation of each element under rounding (see `envelope`).
    `run_surer`: computes the envelope from more runs.
    `computed_in`: the type of intermediate values, when it is not the result's own: a float32
    gradient
    of a product that autocast ran in bfloat16.
    """

    result: Tensor
    reference: Tensor
    run_plain: Callable[[], Tensor | None] = _nothing
    run_envelope: Callable[[], Tensor | None] = _nothing
    computed_in: torch.dtype | None = None
    run_surer: Callable[[], Tensor | None] = _nothing

    @cached_property
    def plain(self) -> Tensor | None:
        """The CPU's result in the result's own type, if it has the shape of the result."""
        found = self.run_plain()
        if found is None or found.shape != self.result.shape:
            return None
        if found.is_complex() != self.result.is_complex():
            return None
        return found.detach().to(self.result.dtype)

    @cached_property
    def sigma(self) -> Tensor | None:
        """The envelope, in the shape of the reference."""
        return self._like_reference(self.run_envelope())

    @cached_property
    def surer(self) -> Tensor | None:
        """The envelope from more runs, in the shape of the reference."""
        return self._like_reference(self.run_surer())

    def _like_reference(self, found: Tensor | None) -> Tensor | None:
        return found if found is not None and found.shape == self.reference.shape else None

    @property
    def unit(self) -> torch.dtype:
        """The type whose spacing is the unit of the errors."""
        return self.computed_in or self.result.dtype
