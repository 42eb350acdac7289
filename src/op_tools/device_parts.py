"""A call taken apart: which results are held against which values of a reference beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeplink.judge.formats import FORMATS
from op_tools import comparison, drawing, reference
from op_tools.again import Run
from op_tools.comparison import Taken
from op_tools.device_pairs import Near
from op_tools.gradients import Gradients

Pairs = Sequence[tuple[Tensor, Tensor]]
_Pairs = list[tuple[Tensor, Tensor]]  # while they are found


@dataclass(slots=True, eq=False)  # hot path
class Part:
    """One part of a call: a result that must be near, or one whose bits must be the same."""

    label: str
    mine: Tensor
    place: int
    theirs: Tensor | None = None  # in float64
    unit: torch.dtype | None = None  # whose spacing counts
    as_before: int | None = None  # it is the part of this number, too

    @property
    def near(self) -> Near | None:
        """What is to be measured of it."""
        if self.theirs is None or self.unit is None:
            return None
        return Near(self.mine, self.theirs, self.unit)


Made = tuple[Sequence[Part], Pairs]


def reference_run(taken: Taken) -> Run:
    """The call in float64 on the device, made once; in no other type."""
    if taken.run is None:
        again = taken.again
        taken.run = again.run(again.types, grad=taken.wants_gradient)
    return taken.run


def forward(taken: Taken) -> Made | None:
    """The parts of a call, and pairs that must be the same bit by bit; None: the host must look."""
    run = reference_run(taken)
    parts: list[Part] = []
    same: _Pairs = []
    mine, theirs = taken.result, run.result
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and not any_read(taken):  # hot path
        only = part_of(taken, "output", mine, theirs, 0, same)
        return None if only is None else ((only,), same or ())
    count = len(run.results)
    named = reference.declared(taken.call)
    for place, (label, was, now, should, wrote) in enumerate(_arguments(taken, run)):
        if now is None:
            continue
        if wrote or id(was) in named:
            part = part_of(taken, label, now, should, count + place, same)
        else:
            part = _same(label, now, was, count + place, same)
        if part is None:
            return None
        parts.append(part)
    written = {id(part.mine): at for at, part in enumerate(parts)} if taken.again.writes else {}
    mine, theirs = (list(comparison.leaves_of(made)) for made in (mine, theirs))
    if len(mine) != len(theirs):
        return None
    place = 0
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        label = "output" if len(mine) == 1 else f"output[{number}]"
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            known = written.get(id(a))
            if known is None:
                part = part_of(taken, label, a, b, place, same)
            else:
                part = Part(label, parts[known].mine, parts[known].place, as_before=known)
            if part is None:
                return None
            parts.append(part)
            place += 1
        elif type(a) is not type(b) or not (a is None or a == b):
            return None
    return parts, same


def any_read(taken: Taken) -> bool:
    """Whether some argument was read again after the call."""
    return any(tensor is not None for tensor in taken.after)  # not by ==: it is asked of tensors


def _arguments(taken: Taken, run: Run) -> Iterable[tuple[str, Tensor, Tensor | None, Tensor, bool]]:
    """Label, before, after, what it should be, and whether the reference wrote it."""
    if not any_read(taken):
        return ()
    labels = comparison.labels_of("input", taken.call)
    return zip(labels, taken.call.given, taken.after, run.given, run.wrote, strict=True)


def backward(taken: Taken, found: Gradients, theirs: Sequence[Tensor | None]) -> Made | None:
    """The same of its backward pass, with the gradients of the reference."""
    parts: list[Part] = []
    same: _Pairs = []
    rows = zip(comparison.labels_of("grad", taken.call), found.inputs, theirs, strict=True)
    for place, (label, mine, should) in enumerate(rows):
        if mine is None:
            continue
        part = None if should is None else part_of(taken, label, mine, should, place, same)
        if part is None:
            return None
        parts.append(part)
    return parts, same


def part_of(
    taken: Taken, label: str, mine: Tensor, theirs: Tensor, place: int, same: _Pairs
) -> Part | None:
    if mine.shape != theirs.shape or mine.device != theirs.device:
        return None
    if mine.dtype not in FORMATS:
        return _same(label, mine, theirs, place, same) if mine.dtype == theirs.dtype else None
    if mine.is_complex() or mine.dtype == torch.float64 or theirs.dtype != torch.float64:
        return None
    unit = comparison.computed_in(taken, mine) or mine.dtype
    return Part(label, mine, place, theirs, unit)


def _same(label: str, mine: Tensor, theirs: Tensor, place: int, same: _Pairs) -> Part | None:
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape or mine.device != theirs.device:
        return None
    if mine.numel():
        same.append((mine, theirs))
    return Part(label, mine, place)


def agree(taken: Taken, found: Gradients | None, there: Taken, flown: Gradients | None) -> bool:
    """Whether the device's float64 is the host's: else it is no reference."""
    assert there.run is not None  # by the caller
    try:
        run = reference_run(taken)
        mine: list[Tensor | None] = [*run.results]
        theirs: list[Tensor | None] = [*there.run.results]
        if found is not None and flown is not None:
            mine, theirs = run.gradients(found.outputs), there.run.gradients(flown.outputs)
        return drawing.agree([None if t is None else t.detach().cpu() for t in mine], theirs)
    except Exception:  # no float64, no kernel, no memory: whatever a device may raise
        return False
