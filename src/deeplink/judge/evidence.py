# SPDX-License-Identifier: Apache-2.0
"""What a judge is given about one result; what is dear is made only when it is asked for."""

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
    """A result, on the host, and what it should have been.

    `reference`: the same call in float64, from the same (already rounded) arguments.
    `run_plain`: the call as the CPU does it in the result's own type; None where it cannot.
    `run_envelope`: what rounding alone may do to each element, as a standard deviation (see
    `envelope`); `run_surer`: the same from more runs. `computed_in`: the type that values were
    rounded to on the way, when it is not the result's own: a float32 gradient of a product that
    autocast did in bfloat16.
    """

    result: Tensor
    reference: Tensor
    run_plain: Callable[[], Tensor | None] = _nothing
    run_envelope: Callable[[], Tensor | None] = _nothing
    computed_in: torch.dtype | None = None
    run_surer: Callable[[], Tensor | None] = _nothing

    @cached_property
    def plain(self) -> Tensor | None:
        """The CPU's own result, where there is one of the same shape."""
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
        """The envelope from more runs."""
        return self._like_reference(self.run_surer())

    def _like_reference(self, found: Tensor | None) -> Tensor | None:
        return found if found is not None and found.shape == self.reference.shape else None

    @property
    def unit(self) -> torch.dtype:
        """The type whose spacing counts."""
        return self.computed_in or self.result.dtype
