# SPDX-License-Identifier: Apache-2.0
"""From a loss that is not finite to the operator that caused it, without an earlier observation:
the tensors that autograd has saved for the backward pass show which operator had finite arguments
and a result that is not finite.

The search runs before the backward pass, which releases the tensors. Tensors behind hooks
(activation checkpointing) are not unpacked, which would recompute them.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deeplink.i18n import _
from op_tools.core import op_names
from op_tools.tensors import finite

MOST = 50_000  # nodes
SHOWN = 4  # operators that may be the cause, arguments, and steps of the path
RESULTS = ("result", "output", "logsumexp")  # the names of results in autograd's formulas
PASS_ON = op_names.VIEWS | {"unsafe_view", "clone", "to_copy"}  # operators that never make a NaN
_TAIL = re.compile(r"Backward\d*$")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
Port = tuple[Any, int]  # a node and which of its results
Judge = Callable[[float], bool]


@dataclass(frozen=True)
class Origin:
    """The operator with the first bad value that still exists."""

    ops: tuple[str, ...]  # the operator, or one of those before it
    kind: str  # NaN or Inf
    given: tuple[str, ...]  # the saved ones among its arguments
    behind: str  # the parameter before it
    before: str  # the first parameter with which the bad value was combined
    upstream: tuple[str, ...]
    outside: str = ""  # the bad value before any operator

    def __str__(self) -> str:
        if self.outside:
            return _("the {kind} came from outside: {where}").format(
                kind=self.kind, where=self.outside
            )
        names = ", ".join(self.ops)
        op = names if len(self.ops) == 1 else _("one of {names}").format(names=names)
        if self.given:
            op = op + _(" (input {names})").format(names=", ".join(self.given))
        places = []
        if self.behind:
            places.append(_("after {name}").format(name=self.behind))
        if self.before:
            places.append(_("before {name}").format(name=self.before))
        where = _(" and ").join(places)
        text = _("first {kind} produced by {where}").format(
            kind=self.kind, where=_(", ").join(filter(None, (op, where)))
        )
        if self.upstream:
            text += _("; inputs from {path}").format(path=" <- ".join(self.upstream))
        return text


@dataclass
class _Saved:
    """A tensor that a node has saved, and the operator that computed it."""

    node: Any
    label: str
    tensor: Tensor
    maker: Port | None  # None: an argument that no operator has computed
    largest: float = 0.0


@dataclass
class _Graph:
    """The nodes in the order of the forward pass, with their saved tensors."""

    nodes: list[Any] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)  # parameters
    saved: list[_Saved] = field(default_factory=list)
    known: dict[Port, float] = field(default_factory=dict)  # the largest value of results
    readers: dict[Port, Any] = field(default_factory=dict)  # the first node with this argument


def origin(loss: Tensor, parameters: Mapping[int, str]) -> Origin | None:
    """Find what made the loss NaN or Inf; None without a graph. `parameters`: names by id."""
    if loss.grad_fn is None:
        return None
    with _disable_current_modes():  # torch hands a dispatch mode saved numbers as Python floats
        return _origin(loss, parameters)


def _origin(loss: Tensor, parameters: Mapping[int, str]) -> Origin:
    graph = _read(loss)
    is_nan = math.isnan(float(loss.detach().abs().max()))
    judge, kind = (math.isnan, "NaN") if is_nan else (math.isinf, "Inf")
    outside = _outside(graph, judge, parameters)
    if outside:
        return Origin((), kind, (), "", "", (), outside)
    first = _first_bad(graph, judge) or (loss.grad_fn, loss.output_nr)
    suspects = _suspects(graph, first, judge)
    infinite = _from_inf(graph, suspects) if is_nan else None
    if infinite is not None:
        first, kind = infinite, "Inf"
        suspects = _suspects(graph, first, math.isinf)
    node, reader = suspects[0], graph.readers.get(first)
    given = [one for one in graph.saved if one.node is node and not _is_result(one.label)]
    return Origin(
        tuple(dict.fromkeys(_op(each) for each in suspects))[:SHOWN],
        kind,
        tuple(map(_text, given[:SHOWN])),
        _parameter(node, parameters),
        _parameter(reader, parameters, near=True) if reader is not None else "",
        tuple(_upstream(node)),
    )


# Reading the graph.


def _read(loss: Tensor) -> _Graph:
    graph = _Graph()
    waiting: deque[Any] = deque([loss.grad_fn])
    seen: set[Any] = set()
    while waiting and len(seen) < MOST:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(_above(node))
        if _is_leaf(node):
            graph.leaves.append(node.variable)
        else:
            graph.nodes.append(node)
    graph.nodes.sort(key=lambda node: node._sequence_nr())
    graph.saved = [one for node in graph.nodes for one in _saved_by(node)]
    sizes = finite.numbers(finite.greatest([one.tensor for one in graph.saved]))
    for one, size in zip(graph.saved, sizes, strict=True):
        one.largest = size
        if one.maker is not None:
            graph.known.setdefault(one.maker, size)
            if not _is_result(one.label):
                graph.readers.setdefault(one.maker, one.node)
    return graph


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")  # AccumulateGrad


def _above(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


@cache
def _labels(kind: Hashable) -> tuple[str, ...]:
    return tuple(name[len("_raw_saved_") :] for name in dir(kind) if name.startswith("_raw_saved_"))


def _saved_by(node: Any) -> Iterator[_Saved]:
    for label in _labels(cast("Hashable", type(node))):
        try:
            raw = getattr(node, f"_raw_saved_{label}")
        except RuntimeError:  # released by an earlier backward pass
            continue
        many = raw if isinstance(raw, (list, tuple)) else [raw]
        for at, one in enumerate(many):
            tensor = _unpacked(one)
            if tensor is not None:
                yield _Saved(node, label, tensor, _maker(node, label, at, one, tensor))


def _unpacked(raw: Any) -> Tensor | None:
    """The saved tensor, if no hook has packed it (before torch 2.8 this is unknown)."""
    if not hasattr(raw, "unpack_hook") or raw.unpack_hook is not None:
        return None
    tensor = raw.data
    if not isinstance(tensor, Tensor) or not finite.has_numbers(tensor):
        return None
    return tensor


def _maker(node: Any, label: str, at: int, raw: Any, tensor: Tensor) -> Port | None:
    if _is_result(label):
        digits = re.search(r"\d+$", label)
        return node, int(digits[0]) if digits else 0
    try:
        found = getattr(node, f"_saved_{label}" if label != "tensors" else "saved_tensors")
    except RuntimeError:  # overwritten: the values are not those of the call
        return None
    own = found[at] if isinstance(found, (list, tuple)) else found
    return (own.grad_fn, own.output_nr) if own is not None and own.grad_fn is not None else None


def _is_result(label: str) -> bool:
    return label.startswith(RESULTS)


# The search.


def _outside(graph: _Graph, judge: Judge, parameters: Mapping[int, str]) -> str:
    """The parameter or the data with bad values before any operator."""
    leaves = [leaf for leaf in graph.leaves if finite.has_numbers(leaf)]
    sizes = finite.numbers(finite.greatest(leaves))
    bad = [leaf for leaf, size in zip(leaves, sizes, strict=True) if not math.isfinite(size)]
    if bad:
        known = [parameters[id(leaf)] for leaf in bad if id(leaf) in parameters]
        name = f" {known[-1]}" if known else ""
        count = f"{len(bad)} of {len(leaves)} are"
        before = "the backward pass or the optimizer of the step before"
        return f"the parameter{name} is bad already ({count}), by {before}"
    worst = [one for one in graph.saved if judge(one.largest) and not _masks(one.node)]
    own = [one for one in worst if one.node is worst[0].node and not _is_result(one.label)]
    if own and all(one.maker is None for one in own):
        # else its buffers are bad because of its own result
        return f"an argument of {_op(own[0].node)} ({_text(own[0])})"
    return ""


def _first_bad(graph: _Graph, judge: Judge) -> Port | None:
    """The earliest bad result, except the values of a mask."""
    bad = [p for p, size in graph.known.items() if judge(size) and not _masks(p[0])]
    return min(bad, key=lambda port: port[0]._sequence_nr(), default=None)


def _masks(node: Any) -> bool:
    return _op(node) in ("masked_fill", "where", "masked_scatter", "fill", "scatter", "index_put")


def _suspects(graph: _Graph, first: Port, judge: Judge) -> list[Any]:
    """The node with the bad result, and the nodes before it if its arguments are unknown."""
    found, waiting, seen = [], deque([first]), {first}
    while waiting:
        node, _ = waiting.popleft()
        if _op(node) not in PASS_ON and not _is_leaf(node):
            found.append(node)
        for port in node.next_functions:
            size = graph.known.get(port)
            good = size is not None and not judge(size)
            if port[0] is None or port in seen or good or _is_leaf(port[0]):
                continue
            seen.add(port)
            waiting.append(port)
    return found or [first[0]]


def _from_inf(graph: _Graph, suspects: Sequence[Any]) -> Port | None:
    """The origin of an Inf among the arguments of the operator that made a NaN; None: no Inf."""
    own = {id(node) for node in suspects}
    took = [o for o in graph.saved if id(o.node) in own and not _is_result(o.label)]
    if not any(math.isinf(one.largest) for one in took):
        return None
    return _first_bad(graph, math.isinf)


# Texts.


@cache
def _word(name: str) -> str:
    plain = _TAIL.sub("", name.rpartition("::")[2])
    return _WORDS.sub("_", plain).lower()


def _op(node: Any) -> str:
    """The operator of a node: gelu of GeluBackward0."""
    return _word(node.name())


def _text(one: _Saved) -> str:
    kind = str(one.tensor.dtype).removeprefix("torch.")
    return f"{one.label} {kind}{list(one.tensor.shape)}, |max| {abs(one.largest):.3g}"


def _parameter(node: Any, known: Mapping[int, str], near: bool = False) -> str:
    """The nearest parameter above; `near`: only with nothing but views in between."""
    waiting: deque[Any] = deque([node])
    seen: set[Any] = set()
    while waiting and len(seen) < MOST:
        here = waiting.popleft()
        for above in reversed(_above(here)):
            if above in seen:
                continue
            seen.add(above)
            variable = getattr(above, "variable", None)
            if variable is not None and id(variable) in known:
                return known[id(variable)]
            if not near or _op(above) in PASS_ON:
                waiting.append(above)
    return ""


def _upstream(node: Any) -> Iterator[str]:
    """The preceding nodes, along the first argument that an operator has computed."""
    for _step in range(SHOWN):
        above = [each for each in _above(node) if not _is_leaf(each)]
        while above and _op(above[0]) in PASS_ON:
            above = [each for each in _above(above[0]) if not _is_leaf(each)]
        if not above:
            return
        node = above[0]
        yield _op(node)
