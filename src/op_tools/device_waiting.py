"""Calls, or their backward passes, that wait for the verdict of their device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from op_tools.comparison import Taken
from op_tools.device_lists import Lists
from op_tools.device_parts import Pairs, Part
from op_tools.gradients import Gradients

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Waiting:
    """A call, or its backward pass, that waits for a verdict."""

    taken: Taken
    given: Gradients | None
    parts: Sequence[Part] = ()
    same: Pairs = ()
    guards: Pairs = ()
    flown: Any = None  # gradients that were gathered natively

    @property
    def found(self) -> Gradients | None:
        """The gradients; None: it is the call itself."""
        flown = self.flown
        if self.given is None and flown is not None:
            self.given = Gradients(flown.outputs, flown.inputs, flown.complete)
        return self.given

    @property
    def is_pass(self) -> bool:
        """Whether it is a backward pass."""
        return self.given is not None or self.flown is not None


def place_of(entry: Waiting | Taken | Lists) -> torch.device:
    """The device that a call was made on."""
    if isinstance(entry, Lists):
        return entry.flats[0].memory.device
    return (entry if isinstance(entry, Taken) else entry.taken).again.place


def each(waiting: list[Waiting | Taken | Lists]) -> Iterator[Waiting]:
    """Those that are no lists, one by one: what has been judged is held no longer."""
    waiting.reverse()
    while waiting:
        entry = waiting.pop()
        if not isinstance(entry, Lists):
            yield Waiting(entry, None) if isinstance(entry, Taken) else entry


def by_place(
    entries: Sequence[_T], place: Callable[[_T], torch.device]
) -> Iterator[tuple[torch.device, list[_T]]]:
    """Entries by the device that they are of."""
    found: dict[torch.device, list[_T]] = {}
    for entry in entries:
        found.setdefault(place(entry), []).append(entry)
    return iter(found.items())
