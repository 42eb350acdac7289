# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call that overlap in memory, and copies of them that overlap in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from op_tools.tensors.snapshot import extent


@dataclass(frozen=True)
class Overlap:
    """Arguments of one call and one type whose memory overlaps, as views of one piece of memory."""

    places: tuple[int, ...]  # among the tensors of the call
    views: tuple[tuple[torch.Size, tuple[int, ...], int], ...]  # shape, stride, offset of each
    length: int  # elements

    def together(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The values of the arguments as views of new memory, which overlap as the arguments do."""
        with torch.no_grad():
            memory = values[0].new_zeros(self.length)
            views = [memory.as_strided(*view) for view in self.views]
            for view, value in zip(views, values, strict=True):
                view.copy_(value)
        return views


def overlaps(arguments: list[Tensor]) -> list[Overlap]:
    """The arguments that a write to another argument may change."""
    if len(arguments) < 2:  # hot path
        return []
    storages: dict[tuple[int, torch.dtype], dict[int, int]] = {}
    for place, tensor in enumerate(arguments):
        key = tensor.untyped_storage()._cdata, tensor.dtype
        storages.setdefault(key, {}).setdefault(id(tensor), place)
    return [
        overlap
        for members in storages.values()
        if len(members) > 1
        for overlap in _overlaps_in_storage(arguments, list(members.values()))
    ]


def _overlaps_in_storage(arguments: list[Tensor], places: list[int]) -> list[Overlap]:
    spans = []  # first element, the one behind the last, place
    for place in places:
        tensor = arguments[place]
        # copy_() does not write an expanded tensor
        if tensor.numel() and torch._debug_has_internal_overlap(tensor) != 1:
            begin = int(tensor.storage_offset())
            spans.append((begin, begin + int(extent(tensor.shape, tensor.stride())), place))
    spans.sort()
    groups: list[list[tuple[int, int, int]]] = []
    end = -1
    for span in spans:
        if span[0] >= end:
            groups.append([])
        groups[-1].append(span)
        end = max(end, span[1])
    return [_overlap(arguments, group) for group in groups if len(group) > 1]


def _overlap(arguments: list[Tensor], group: list[tuple[int, int, int]]) -> Overlap:
    first, end = group[0][0], max(span[1] for span in group)
    places = tuple([span[2] for span in group])
    views = [(arguments[at].shape, arguments[at].stride(), begin - first) for begin, _, at in group]
    return Overlap(places, tuple(views), end - first)
