# SPDX-License-Identifier: Apache-2.0
"""The record of an adaptor's changes to a model, and their undo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_NAME = "_dlinfer_applied"


@dataclass(frozen=True)
class Applied:
    """A model with dlinfer's ops: the number of layers of each class, and the undo function."""

    model: Any = field(repr=False)
    layers: dict[str, int]
    difference: float | None  # of the check: the largest, relative to the largest result
    undoing: tuple[Callable[[], None], ...] = field(repr=False)

    def __post_init__(self) -> None:
        self.model.__dict__[_NAME] = _Held(self)

    def undo(self) -> None:
        """Restore the model."""
        for step in reversed(self.undoing):
            step()
        self.model.__dict__.pop(_NAME, None)


class _Held:
    """The record that a model holds; a copy of the model has none: `undo` is of one model."""

    def __init__(self, applied: Applied | None) -> None:
        self.applied = applied

    def __deepcopy__(self, memo: Any) -> _Held:
        return _Held(None)


def applied_to(model: Any) -> Applied | None:
    """Return the record of the changes to a model; None for one without dlinfer's ops."""
    held: _Held | None = model.__dict__.get(_NAME)
    return held.applied if held is not None else None
