"""Lists of tensors, as an optimizer's calls have them, measured and known as one.

What a list is, apart from its values, is found out once; a mark stands for the texts of all its
tensors. Hot path: an optimizer's step mentions each parameter a dozen times and more.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from weakref import ref

import torch
from torch import Tensor

from op_tools import statistics
from op_tools.call import PLAIN
from op_tools.reducing import Together
from op_tools.snapshot import is_dense
from op_tools.statistics_groups import Laid, Listed, laid_out, moved, values_of
from op_tools.statistics_text import start_of

LISTS = 64  # that are known at most


class Known:
    """A list of dense tensors of one device, and its texts while they are as they were."""

    kinds: list[_Kind]
    starts: list[str]
    laid: Laid

    def __init__(self, tensors: list[Tensor], hash_only: bool, like: Known | None) -> None:
        self.refs = [ref(tensor) for tensor in tensors]
        self.ids = frozenset(map(id, tensors))
        self.device = tensors[0].device
        self.addresses = [tensor.data_ptr() for tensor in tensors]
        storages = [tensor.untyped_storage() for tensor in tensors]
        self.memories = frozenset([storage._cdata for storage in storages])
        self.bytes = sum([storage.nbytes() for storage in storages])
        if like is not None:
            self.kinds, self.starts = like.kinds, like.starts
            self.laid = moved(like.laid, like.addresses, self.addresses)
        else:
            self.kinds = _kinds(tensors)
            self.starts = [start_of(tensor.dtype, tensor.shape) for tensor in tensors]
            values = [values_of(tensor) for tensor in tensors]
            self.laid = laid_out(self.addresses, values, hash_only)
        self.versions: list[int] = []
        self.fresh = False  # autograd may be about to count the write that has made them
        self.valid = False
        self.listed: Listed | None = None

    def is_as_it_was(self, tensors: Iterable[Tensor]) -> bool:
        """But for its values."""
        return _kinds(tensors) == self.kinds

    def holds(self, versions: list[int]) -> bool:
        """Whether what was measured is still so."""
        if not self.valid:
            return False
        if versions == self.versions:
            return True
        return self.fresh and versions == [number + 1 for number in self.versions]


_Kind = tuple[torch.dtype, torch.Size, tuple[int, ...]]


def _kinds(tensors: Iterable[Tensor]) -> list[_Kind]:
    return [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]


class Lists:
    """Those that are known; with the lock of what reduces them."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._known: dict[tuple[int, ...], Known] = {}

    def find(self, tensors: list[Tensor]) -> Known | None:
        """What is known of a list; None: it is none that is measured as one."""
        if self._together.refused:
            return None
        key = tuple(map(id, tensors))
        known = self._known.get(key)
        if (
            known is not None
            and all(map(is_, tensors, [one() for one in known.refs]))
            and known.addresses == [tensor.data_ptr() for tensor in tensors]
            and (known.valid or known.is_as_it_was(tensors))
        ):
            return known
        like = self._like(tensors)
        if not self._fits(tensors, like is not None):
            return None
        if len(self._known) >= LISTS:
            live = [
                one
                for one in self._known.items()
                if all(each() is not None for each in one[1].refs)
            ]
            self._known = dict(live[-LISTS // 2 :])
        known = self._known[key] = Known(tensors, self._together.hash_only, like)
        return known

    def _like(self, tensors: list[Tensor]) -> Known | None:
        """One of the same shapes, as most lists of an optimizer are."""
        first, count = tensors[0], len(tensors)
        kinds = None
        for known in self._known.values():
            if len(known.kinds) == count and known.kinds[0][1] == first.shape:
                kinds = kinds or _kinds(tensors)
                if known.kinds == kinds:
                    return known
        return None

    def _fits(self, tensors: list[Tensor], dense: bool) -> bool:
        together, device = self._together, tensors[0].device
        if statistics.is_seen(tensors[0]) or torch.is_grad_enabled():
            return False
        for tensor in tensors:
            if (
                type(tensor) not in PLAIN
                or tensor.layout != torch.strided
                or tensor.device != device
                or tensor.grad_fn is not None  # it is held: so would be its graph
                or tensor.is_inference()
                or tensor.is_complex()
                or tensor.is_neg()
                or not (dense or tensor.is_contiguous() or is_dense(tensor))
            ):
                return False
        one_of_each = {tensor.dtype: tensor for tensor in tensors}
        return all(map(together.takes, one_of_each.values()))

    def text(self, known: Known, tensors: list[Tensor], fresh: bool = False) -> Listed:
        """Its texts, or where they will be; `fresh`: it was just written."""
        versions = [tensor._version for tensor in tensors]
        if known.holds(versions):
            assert known.listed is not None
            return known.listed
        together = self._together
        with together.lock:
            together.enter(known.device)
            known.listed = together.put_list(
                *(tensors, known.addresses, versions, known.laid, known.starts),
                *(known.memories, known.bytes),
            )
        known.versions, known.valid, known.fresh = versions, True, fresh
        return known.listed

    def written(self, memories: frozenset[int]) -> None:
        """Storages were."""
        for known in list(self._known.values()):
            if known.valid and not known.memories.isdisjoint(memories):
                known.valid = False

    def forget(self, tensor: Tensor) -> None:
        """A tensor was written."""
        if self._known and tensor.layout == torch.strided and not tensor.is_nested:
            memory = tensor.untyped_storage()._cdata
            for known in list(self._known.values()):
                if memory in known.memories:
                    known.valid = False

    def clear(self) -> None:
        """Any may have been written."""
        for known in list(self._known.values()):
            known.valid = False
