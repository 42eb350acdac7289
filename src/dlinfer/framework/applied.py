# SPDX-License-Identifier: Apache-2.0
"""What an adaptor did to a model, and how it is taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Applied:
    """A model with dlinfer's ops: how many layers of each class, and how to undo it."""

    model: Any = field(repr=False)
    layers: dict[str, int]
    difference: float | None  # of the check: the largest, over the largest result
    undoing: tuple[Callable[[], None], ...] = field(repr=False)

    def undo(self) -> None:
        """The model as it was."""
        for step in reversed(self.undoing):
            step()
