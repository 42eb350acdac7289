# SPDX-License-Identifier: Apache-2.0
"""The record of an adaptor's changes to a model, and their undo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Applied:
    """A model with dlinfer's ops: the number of layers of each class, and the undo function."""

    model: Any = field(repr=False)
    layers: dict[str, int]
    difference: float | None  # of the check: the largest, relative to the largest result
    undoing: tuple[Callable[[], None], ...] = field(repr=False)

    def undo(self) -> None:
        """Restore the model."""
        for step in reversed(self.undoing):
            step()
