# SPDX-License-Identifier: Apache-2.0
"""Observation of the C functions and the adaptor's casts in one process, for the conformance suite.

Backward calls run in autograd's own threads, so the observer belongs to the process, not to a
thread or a context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from diopi.inference import Described
from diopi.op import Op


class Observer:
    """Callbacks around each C function; the methods of this base class do nothing."""

    def result(self, kind: Described, device: torch.device) -> torch.Tensor:
        """Allocate the tensor that a C function writes a result to."""
        return kind.empty(device)

    def before(self, op: Op, function: str, given: Mapping[str, Any]) -> None:
        """Called before a C function is called with these arguments of its op."""

    def after(self, op: Op, function: str, results: Sequence[Any]) -> None:
        """Called when a C function has returned without an error."""

    def cast(self, source: torch.dtype, target: torch.dtype) -> None:
        """Called when the adaptor converts an argument or a result."""


_NO_OBSERVER = Observer()
_current = _NO_OBSERVER


def current() -> Observer:
    """Return the observer of this process; one that does nothing where there is none."""
    return _current


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Report calls of this process to the observer inside the block."""
    global _current
    before, _current = _current, observer
    try:
        yield
    finally:
        _current = before
