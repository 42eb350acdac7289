# SPDX-License-Identifier: Apache-2.0
"""The property that separates the wrong calls of an operator from the correct ones.

A call is described by facts about its arguments: types, memory layout, sizes, options. No value of
a tensor is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from deeplink.i18n import _

KINDS_AT_MOST = 512  # kinds of calls that are kept for one operator
TEXTS = 4096  # texts that descriptions share
ALIGNMENTS = (4, 8, 16, 32)


@dataclass(frozen=True, order=True, slots=True)
class Fact:
    """One property of a call. Facts of a lower rank are the simpler explanation."""

    rank: int
    text: str  # completes "All wrong calls have …"


@dataclass(frozen=True, slots=True)
class Description:
    """The facts of a call, and its sizes, whose limits may separate calls."""

    facts: frozenset[Fact]
    sizes: tuple[tuple[str, int], ...] = ()  # (what is counted, how many)


@lru_cache(TEXTS)
def _text(template: str, **fields: Any) -> str:
    """A formatted message, one object for all descriptions that have it."""
    return template.format(**fields)


@lru_cache(TEXTS)
def _fact(rank: int, template: str, **fields: Any) -> Fact:
    return Fact(rank, template.format(**fields))


def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description:
    """Describe a call by its arguments."""
    facts: set[Fact] = set()
    sizes: list[tuple[str, int]] = []
    tensors: list[tuple[str, Tensor]] = []
    for label, value in _leaves(args, kwargs):
        if isinstance(value, Tensor):
            tensors.append((label, value))
            facts.update(_of_tensor(label, value))
            if value.layout is torch.strided and not value.is_nested:
                sizes.append((_text(_("elements in {label}"), label=label), value.numel()))
                sizes += [
                    (_text(_("elements in dimension {dim} of {label}"), dim=d, label=label), n)
                    for d, n in enumerate(value.shape[:5])
                ]
        elif isinstance(value, (bool, int, str, torch.dtype)) or value is None:
            facts.add(_fact(7, "{label} = {value}", label=label, value=str(value)))
    facts.update(_together(tensors))
    return Description(frozenset(facts), tuple(sizes))


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for at, value in enumerate(args):
        yield from _leaf(f"argument {at}", value)
    for name, value in kwargs.items():
        yield from _leaf(name, value)


def _leaf(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for at, item in enumerate(value[:4]):  # the first items describe a long list
            yield from _leaf(f"{label}[{at}]", item)
    else:
        yield label, value


def _of_tensor(label: str, tensor: Tensor) -> Iterator[Fact]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    yield _fact(3, _("{label} of type {dtype}"), label=label, dtype=dtype)
    yield _fact(
        5, _("{label} with {dim} {dim:dimension|dimensions}"), label=label, dim=tensor.dim()
    )
    if tensor.layout is not torch.strided or tensor.is_nested:
        yield _fact(0, _("{label} of layout {layout}"), label=label, layout=str(tensor.layout))
        return
    if tensor.numel() == 0:
        yield _fact(0, _("{label} without elements"), label=label)
        return
    if not tensor.is_contiguous():
        yield _fact(1, _("{label} that is {layout}"), label=label, layout=_layout(tensor))
        yield _fact(2, _("{label} that is not contiguous"), label=label)
    if tensor.storage_offset():
        yield _fact(4, _("{label} that does not start at the start of its storage"), label=label)
    for size in ALIGNMENTS if tensor.dim() else ():
        if tensor.shape[-1] % size:
            template = _("{label} whose last dimension is no multiple of {size}")
            yield _fact(6, template, label=label, size=size)


def _layout(tensor: Tensor) -> str:
    strides = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    if 0 in strides:
        return _("expanded (a stride of 0)")
    if sorted(strides, reverse=True) != strides:
        return _("transposed (not contiguous)")
    return _("a part of a larger tensor (not contiguous)")


def _together(tensors: list[tuple[str, Tensor]]) -> Iterator[Fact]:
    """Facts about several arguments of one call."""
    if len({id(tensor) for _, tensor in tensors}) < len(tensors):
        yield _fact(4, _("the same tensor as two arguments"))
    if len({tensor.dtype for _, tensor in tensors if tensor.is_floating_point()}) > 1:
        yield _fact(3, _("arguments of different floating types"))
    if len(tensors) > 1 and len({tuple(tensor.shape) for _, tensor in tensors}) > 1:
        yield _fact(6, _("arguments of different shapes"))


@dataclass
class Evidence:
    """The described calls of one operator, wrong and correct, in bounded memory."""

    kinds: int = KINDS_AT_MOST  # of each that are kept
    wrong: Counter[Hashable] = field(default_factory=Counter)
    correct: Counter[Hashable] = field(default_factory=Counter)

    def add(self, call: Description, passed: bool) -> None:
        """Count a judged call."""
        calls = self.correct if passed else self.wrong
        if call in calls or len(calls) < self.kinds:
            calls[call] += 1

    def pattern(self) -> str:
        """One sentence on what separates the wrong calls from the correct ones; empty: nothing."""
        return pattern(self.wrong, self.correct)


def pattern(wrong: Counter[Any], correct: Counter[Any]) -> str:
    """Find the simplest property that all wrong calls have and no correct call has."""
    if not wrong:
        return ""
    if not correct:
        return _("Every judged call is wrong ({total:,}).").format(total=wrong.total())
    common = sorted(frozenset.intersection(*(call.facts for call in wrong)))
    others = [call.facts for call in correct]
    texts = [fact.text for fact in common if not any(fact in facts for facts in others)]
    texts = texts or [text for text in [_limit(wrong, correct)] if text]
    texts = texts or [
        _("{text}, and {text2}").format(text=one.text, text2=other.text)
        for one, other in combinations(common, 2)
        if not any(one in facts and other in facts for facts in others)
    ]
    if not texts:
        return ""
    return _sentence(texts[0], wrong.total(), correct.total())


def _sentence(what: str, wrong: int, correct: int) -> str:
    if wrong == 1 and correct == 1:
        text = _("The wrong call has {what}; the correct call does not.")
    elif wrong == 1:
        text = _("The wrong call has {what}; none of the {correct:,} correct calls does.")
    elif correct == 1:
        text = _("All {wrong:,} wrong calls have {what}; the correct call does not.")
    else:
        text = _(
            "All {wrong:,} wrong calls have {what}; none of the {correct:,} correct calls does."
        )
    return text.format(what=what, wrong=wrong, correct=correct)


def _limit(wrong: Iterable[Description], correct: Iterable[Description]) -> str:
    """A size above or below which every call is wrong and no call is correct."""
    sizes = [dict(call.sizes) for call in wrong]
    for what in sizes[0]:
        if not all(what in each for each in sizes):
            continue
        low, high = min(each[what] for each in sizes), max(each[what] for each in sizes)
        others = [size for call in correct for name, size in call.sizes if name == what]
        if others and max(others) < low:
            return _("at least {low:,} {what} (correct: at most {max:,})").format(
                low=low, what=what, max=max(others)
            )
        if others and min(others) > high:
            return _("at most {high:,} {what} (correct: at least {min:,})").format(
                high=high, what=what, min=min(others)
            )
    return ""
