"""Gradients of calls that their device judges: gathered natively, with no Python in the backward
pass, where there is a native part; `gradients.watch` elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from op_tools import diagnostics, gradients, interception, kernels
from op_tools.call import Call, tensor_list
from op_tools.comparison import Taken

PART = "the backward pass went through a part of it"


class Gathered:
    """Those of one run of the tool; `full` is called in a backward pass that made too many."""

    def __init__(self, tool: Any, full: Callable[[], None]) -> None:
        self._tool, self._full = tool, full
        helper = kernels.helper()
        self._hanging: Any = None if helper is None else helper.Hanging
        self._native: Any = None if helper is None else helper.Gathered(self._too_many)
        self._late: list[Any] = []

    def arguments(self, call: Call) -> Any:
        """Where a call's arguments hang in the graph before it; `wanted`: whether any does."""
        return gradients.arguments(call) if self._hanging is None else self._hanging(call.given)

    def watch(self, call: Call, given: Any, result: Any, taken: Taken, views: bool) -> bool:
        """Gathers the gradients of a call from now on; whether it can."""
        if self._native is None or isinstance(given, gradients.Arguments):
            return False
        given.watch(self._native, tensor_list(result), call.sequence, views, taken)
        return True

    def limit(self, size: int, count: int) -> None:
        """Bytes and tensors that are too many."""
        if self._native is not None:
            self._native.limit(size, count)

    def waiting(self) -> tuple[int, int]:
        """Bytes and tensors that are there."""
        return (0, 0) if self._native is None else self._native.waiting()

    def taken(self) -> Iterator[tuple[Taken, Any]]:
        """All that are there, from now on no longer."""
        native = [part for part in (self._native, *self._late) if part is not None]
        return self._found([row for part in native for row in part.taken()])

    def _found(self, rows: list[Any]) -> Iterator[tuple[Taken, Any]]:
        rows.reverse()
        while rows:  # one by one: what has been judged is held no longer
            taken, flown = rows.pop()
            if flown.error:
                error = RuntimeError(flown.error)
                diagnostics.add(type(self._tool).__name__, taken.call.name, error)
            else:
                yield taken, flown  # with all that `Gradients` has

    def close(self) -> None:
        """A backward pass that comes later is too many by itself; nothing else holds this then."""
        if self._native is not None:
            self._native.limit(0, 0)
            self._native = None

    def _too_many(self, native: Any) -> None:
        # the backward pass runs under the mode that watches calls, and these are our own
        with torch._C.DisableTorchFunction(), interception.unseen():
            self._late = [] if native is self._native else [native]
            try:
                self._full()
            finally:
                self._late = []
