"""Kinds of calls that a device judges, and which of them the host looks at all the same."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import cache

import torch

from deeplink import settings
from deeplink.judge.formats import FORMATS
from deeplink.judge.verdict import name_of
from op_tools import kernels, names, reference
from op_tools.call import Call
from op_tools.comparison import Taken

FIRST = 2  # calls of a kind that the host looks at, and then every so many-th
EVERY = 512
MOVED = 256  # the same of kernels that only move values: both of the device's may err alike

# They compute nothing: only where a value comes from can be wrong, and that is alike in each type.
MOVERS = names.VIEWS | frozenset(
    """
    cat concat stack hstack vstack dstack gather take take_along_dim index_select __getitem__
    __setitem__ index index_put index_put_ masked_select masked_fill masked_fill_ masked_scatter
    scatter scatter_ embedding flip roll rot90 repeat tile where copy_ clone tril tril_ triu
    triu_ pad constant_pad_nd zero_ fill_ zeros_like ones_like full_like pixel_shuffle
    _foreach_copy_
    """.split()
)


@cache
def is_judged(name: str) -> bool:
    """Whether a device can say anything about calls of this name."""
    word = names.last(name)
    odd = word in reference.BY_TYPE or word in names.TRANSFERS
    return not odd and word not in reference.NOT_UNIQUE


def size_to_widen(call: Call) -> int:
    """Bytes of a call's tensors, where they lie on its device and are of types that float64 holds,
    some of them floating; -1: they are others.
    """
    helper = kernels.loaded()
    if helper is not None:  # hot path
        return int(helper.size_to_widen(call.given))
    size, widened = 0, False
    for tensor in call.given:
        if tensor.device != call.device and tensor.dim():
            return -1
        if tensor.dtype in FORMATS:
            if tensor.is_complex() or tensor.dtype == torch.float64:
                return -1
            widened = True
        size += tensor.nbytes
    return size if widened else -1


class Kind:
    """Calls whose errors are alike: how many there were, and whether the host is to look at one."""

    __slots__ = ("_backward", "_every", "_forward", "_lock", "asked", "key", "tolerance")

    def __init__(self, key: Hashable, name: str) -> None:
        self.key = key
        self._every = MOVED if names.last(name) in MOVERS else EVERY
        self._forward = self._backward = 0
        self._lock = threading.Lock()
        self.asked, self.tolerance = -1, False

    @property
    def expected(self) -> int:
        """The number of the next call."""
        return self._forward + 1

    def next(self, forward: bool) -> int:
        """The number of one more call, or backward pass."""
        with self._lock:
            if forward:
                self._forward += 1
                return self._forward
            self._backward += 1
            return self._backward

    def is_due(self, number: int) -> bool:
        """Whether the host looks at that of this number."""
        return number <= FIRST or number % self._every == 0


class Asked:
    """What was set for operators, remembered until it is to be forgotten: hot path."""

    def __init__(self) -> None:
        self._tolerances: dict[tuple[str, torch.dtype], bool] = {}
        self._wide: set[str] = set()
        self._time = 0

    def forget(self) -> None:
        """It may be set otherwise from now on."""
        self._time += 1
        self._tolerances.clear()
        self._wide.clear()

    def is_wide(self, call: Call) -> bool:
        """Whether the reference of a call is in float64."""
        if call.name in self._wide:
            return True
        wide = reference.types_for(call) is reference.WIDE
        if wide and names.last(call.name) != "view":  # of which the arguments say it
            self._wide.add(call.name)
        return wide

    def by_tolerance(self, taken: Taken, kind: Kind) -> bool:
        """Whether a tolerance was set for results of a call: then it decides, on the host."""
        if kind.asked != self._time:
            operator = taken.call.operator
            types = {taken.again.type_of(tensor) for tensor in taken.call.given}
            kind.tolerance = any(self.tolerance(operator, dtype) for dtype in types)
            kind.asked = self._time
        return kind.tolerance

    def tolerance(self, operator: str, dtype: torch.dtype) -> bool:
        """Whether one was set for an operator and a type."""
        found = self._tolerances.get((operator, dtype))
        if found is None:
            found = settings.op_tolerance(operator, name_of(dtype)) is not None
            self._tolerances[operator, dtype] = found
        return found
