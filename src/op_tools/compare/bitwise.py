"""Bit for bit: what is the CPU's own result, in the same type, needs no other judge."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from deeplink import settings
from deeplink.judge import Verdict
from deeplink.judge.formats import is_inexact
from deeplink.judge.verdict import name_of
from op_tools.compare import host_verdicts
from op_tools.compare.eligibility import declared
from op_tools.compare.host_verdicts import Item, Taken

AGAIN = 16  # calls after which an operator that was not the CPU's bit for bit is tried again


class Tried:
    """Which operators were found to differ a short while ago."""

    def __init__(self) -> None:
        self._differs: Counter[str] = Counter()
        self._lock = threading.Lock()

    def found(self, name: str, look: Callable[[], list[Item] | None]) -> list[Item] | None:
        """What `look` finds, for one that was not; else None."""
        with self._lock:
            self._differs[name] -= 1
            if self._differs[name] > 0:
                return None
        found = look()
        if found is None:
            with self._lock:
                self._differs[name] = AGAIN
        return found


def forward(taken: Taken) -> list[Item] | None:
    """The verdicts on a call that the CPU does alike, bit for bit; None: it does not."""
    run = taken.plain
    if run is None or _has_tolerance(taken):
        return None
    mine, theirs = (
        list(host_verdicts.leaves_of(taken.result)),
        list(host_verdicts.leaves_of(run.result)),
    )
    before = taken.call.given
    if len(mine) != len(theirs):
        return None
    named = declared(taken.call)
    rows = zip(before, taken.after, run.given, run.wrote, strict=True)
    for was, now, should, wrote in rows:
        written = wrote or id(was) in named
        if now is not None and not host_verdicts.identical(now, should if written else was):
            return None
    if not all(_same(a, b) for a, b in zip(mine, theirs, strict=True)):
        return None
    inputs = zip(host_verdicts.labels_of("input", taken.call), taken.after, strict=True)
    read = [(label, now) for label, now in inputs if now is not None]
    items = [Item(label, host_verdicts.unchanged(t)) for label, t in read]
    return items + [Item(label, _equal(t)) for label, t in _named_results(mine)]


def _equal(result: Tensor) -> Verdict:
    """The verdict on a result that no float64 was computed for."""
    verdict = host_verdicts.unchanged(result)
    if not is_inexact(result.dtype):
        return verdict
    return replace(verdict, message=f"equal to the CPU's {verdict.dtype} result")


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return host_verdicts.identical(mine, theirs)
    return type(mine) is type(theirs) and bool(mine == theirs)


def backward(
    taken: Taken, outputs: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> list[Item] | None:
    """The same for the gradients of a call."""
    run = taken.plain
    if run is None:
        return None
    try:
        theirs = run.gradients(outputs)
    except RuntimeError:  # no such kernel in this type
        return None
    found = []
    for label, a, b in zip(
        host_verdicts.labels_of("grad", taken.call), inputs, theirs, strict=True
    ):
        if a is None:
            continue
        if b is None or not host_verdicts.identical(a, b.to(a.dtype)):
            return None
        found.append(Item(label, _equal(a)))
    return found


def _has_tolerance(taken: Taken) -> bool:
    types = {name_of(tensor.dtype) for tensor in taken.results}
    return any(settings.op_tolerance(taken.call.operator, t) is not None for t in types)


def _named_results(leaves: list[Any]) -> Iterator[tuple[str, Tensor]]:
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            yield ("output" if len(leaves) == 1 else f"output[{number}]"), leaf
