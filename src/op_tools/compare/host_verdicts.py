# SPDX-License-Identifier: Apache-2.0
"""One call held against its reference: what was taken of it, and a verdict on each part of it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from deeplink import settings
from deeplink.i18n import _
from deeplink.judge import Verdict, envelope, judge, same_choice
from deeplink.judge.envelope import FLOAT32, FLOAT64
from deeplink.judge.formats import FORMATS, is_inexact
from deeplink.judge.verdict import name_of
from op_tools.compare import precision
from op_tools.compare.eligibility import COPIES, NOT_UNIQUE, NoReferenceError, declared
from op_tools.compare.rerun import Again, Run
from op_tools.core import op_names
from op_tools.core.call import Call, tensors

VALUES = 1e-6  # absolute and relative tolerance of plain numbers
BITWISE = "bitwise"  # a standard: equal to the CPU's result in the same type
AGAIN = 16  # calls after which an operator that was not the CPU's bit for bit is tried again
SURE = 48  # runs that tell what rounding does, before an accusation that a few might explain


class _DiffersError(Exception):
    """A result is not the CPU's bit for bit."""


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


@dataclass(frozen=True)
class Item:
    """One part of a call that was compared: `input[0]`, `output`, `grad[1]`."""

    label: str
    verdict: Verdict
    reference: torch.dtype | None = None  # type of the reference; None: it has none


@dataclass
class Taken:
    """What was taken of a call: arguments before and after it, and results, all on the host."""

    again: Again
    result: Any
    after: Sequence[Tensor | None]  # the arguments after the call; None: not read again
    wants_gradient: bool
    device: str = ""
    rows: Sequence[tuple[object, ...]] = ()  # the device's side, to be shown
    on_device: dict[int, tuple[object, ...]] = field(default_factory=dict)  # cells of a table: of
    # a gradient as it was on the device, by the id of its copy
    where: str = ""  # the line of the program, of a call without a site
    run: Run | None = field(default=None, repr=False)
    sampled: bool = False  # a slice of a large call: see op_tools.compare.sampling
    label: str = ""  # what the result is, where it is not the call's own result
    key: Hashable = None  # of the large call, among suspects

    @property
    def call(self) -> Call:
        return self.again.call

    @cached_property
    def results(self) -> list[Tensor]:
        return list(tensors(self.result))

    @property
    def computed_in(self) -> torch.dtype | None:
        """A type that autocast rounded to inside of the call, whatever it returned."""
        return self.again.inside

    def reference(self) -> Run:
        """The run in the wider type, made once."""
        if self.run is None:
            self.run = self.again.reference(grad=self.wants_gradient)
        return self.run

    @cached_property
    def plain(self) -> Run | None:
        """The run in the device's own type."""
        return self.again.plain_run(grad=self.wants_gradient)


# Forward.


def forward(taken: Taken, standard: str) -> list[Item]:
    """The arguments and the results of a call, each with its verdict."""
    return _forward(taken, taken.reference(), standard)


def bit_for_bit(taken: Taken) -> list[Item] | None:
    """The same of a call that the CPU does alike in the same type, bit for bit; None: it does not.
    No other judge is needed.
    """
    run, operator = taken.plain, taken.call.operator
    types = {name_of(tensor.dtype) for tensor in taken.results}
    if run is None or any(settings.op_tolerance(operator, t) is not None for t in types):
        return None
    try:
        return _forward(taken, run, BITWISE)
    except _DiffersError:
        return None


def _forward(taken: Taken, run: Run, standard: str) -> list[Item]:
    lazy = _Forward(taken, run)
    found = _inputs(taken, run, lazy, standard)
    read = (now for now in taken.after if now is not None)
    known = {id(now): item.verdict for now, item in zip(read, found, strict=True)}
    return found + _outputs(taken, run, lazy, standard, known if taken.again.writes else {})


class Drawn:
    """What rounding may do to results, drawn when a verdict needs it; and again, more surely."""

    @cached_property
    def sigma(self) -> list[Tensor | None] | None:
        return self._drawn(None)

    @cached_property
    def surer(self) -> list[Tensor | None] | None:
        return self._drawn(SURE)

    def _drawn(self, samples: int | None) -> list[Tensor | None] | None:
        raise NotImplementedError


class _Forward(Drawn):
    """The dear runs of a call, made when a verdict needs them."""

    def __init__(self, taken: Taken, run: Run) -> None:
        self._taken, self._run = taken, run

    @cached_property
    def plain(self) -> list[Tensor] | None:
        run = self._taken.plain
        return None if run is None else [*run.results, *run.given]

    def _drawn(self, samples: int | None) -> list[Tensor | None] | None:
        again = self._taken.again

        def once() -> list[Tensor | None]:
            run = again.run(again.types, grad=False)
            return [*run.results, *run.given]

        centre = [t.detach() for t in (*self._run.results, *self._run.given)]
        return noise(again, once, centre, samples)


def noise(
    again: Again,
    once: Callable[[], Sequence[Tensor | None]],
    centre: Sequence[Tensor | None],
    samples: int | None = None,
) -> list[Tensor | None] | None:
    """The envelope of a call's results; None where it cannot be run in float64."""
    stored = again.inside or again.stored
    wide = stored in (torch.float64, torch.complex128)
    if not wide and not again.types:
        return None
    matrices, convolutions = precision.factors(again)
    entering = 0.0 if again.inside is None else FORMATS[again.inside].roundoff
    floats = [t if t is not None and t.dtype in FORMATS else None for t in centre]

    def checked() -> list[Tensor | None]:
        return [None if c is None else t for t, c in zip(once(), floats, strict=True)]

    try:
        return envelope(
            checked,
            floats,
            inside=2 * FLOAT64 if wide else FLOAT32,  # in float64 the reference errs as well
            between=FORMATS[stored].roundoff,
            entering=max(entering, matrices.roundoff if matrices else 0.0),
            convolving=convolutions.roundoff if convolutions else 0.0,
            functions=precision.functions(again),
            partial=FORMATS[stored].roundoff if precision.sums(again) else 0.0,
            smallest=FORMATS[stored].smallest if FORMATS[stored].is_half else 0.0,
            samples=samples,
            seed=samples or 0,
        )
    except (RuntimeError, TypeError, ValueError, NotImplementedError, NoReferenceError):
        return None  # not to be taken apart: the verdict goes by the other evidence


def _inputs(taken: Taken, run: Run, lazy: _Forward, standard: str) -> list[Item]:
    """An argument is as it was, or, when the call writes it, as the reference leaves it."""
    found, labels = [], labels_of("input", taken.call)
    count = len(run.results)
    before = taken.call.given
    named = declared(taken.call)
    rows = zip(labels, before, taken.after, run.given, run.wrote, strict=True)
    for place, (label, was, now, should, wrote) in enumerate(rows):
        if now is None:
            continue
        if not wrote and id(was) not in named and identical(was, now):
            found.append(Item(label, unchanged(now), should.dtype))
            continue
        verdict = verdict_on(taken, now, should, lazy, count + place, standard)
        if not verdict.passed and not taken.again.writes:
            text = _("the argument was changed, which this operator does not do; {message}").format(
                message=verdict.message
            )
            verdict = replace(verdict, rule="input", message=text)
        found.append(Item(label, verdict, should.dtype))
    return found


def identical(was: Tensor, now: Tensor) -> bool:
    """Equal in every element; a nan is like another."""
    if was.shape != now.shape or was.dtype != now.dtype:
        return False
    if was.dtype == torch.complex32:  # torch cannot compare it
        was, now = torch.view_as_real(was), torch.view_as_real(now)
    if torch.equal(was, now):
        return True
    if was.dtype not in FORMATS:
        return False
    return bool(((was == now) | ((was != was) & (now != now))).all())


def unchanged(tensor: Tensor) -> Verdict:
    """The verdict on what is as it should be, without a doubt."""
    return Verdict(True, "equal", "", name_of(tensor.dtype), tuple(tensor.shape))


def _outputs(
    taken: Taken, run: Run, lazy: _Forward, standard: str, known: dict[int, Verdict]
) -> list[Item]:
    """`known`: the verdicts on arguments that were written; they may be results, too."""
    mine, theirs = list(leaves_of(taken.result)), list(leaves_of(run.result))
    if standard == BITWISE and not _have_equal_values(mine, theirs):
        raise _DiffersError
    if len(mine) != len(theirs):
        text = _("{count} results, expected {expected}").format(
            count=len(mine), expected=len(theirs)
        )
        return [Item("output", Verdict(False, "structure", text, ratio=math.inf))]
    found, place = [], 0
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        label = taken.label or ("output" if len(mine) == 1 else f"output[{number}]")
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            verdict = known.get(id(a)) or verdict_on(taken, a, b, lazy, place, standard)
            found.append(Item(label, verdict, b.dtype))
            place += 1
        elif isinstance(a, Tensor) or isinstance(b, Tensor):
            text = _("{kind}, expected {expected}").format(
                kind=type(a).__name__, expected=type(b).__name__
            )
            found.append(Item(label, Verdict(False, "structure", text, ratio=math.inf)))
        elif isinstance(a, (bool, int, float, complex)) and standard != BITWISE:
            found.append(Item(label, _value(a, b)))
    return found


def _have_equal_values(mine: list[Any], theirs: list[Any]) -> bool:
    """Whether what is no tensor is equal."""
    if [type(a) for a in mine] != [type(b) for b in theirs]:
        return False
    pairs = zip(mine, theirs, strict=True)
    return all(isinstance(a, Tensor) or bool(a == b) for a, b in pairs)


def leaves_of(value: Any) -> Iterator[Any]:
    """What is inside of containers, in order, whatever it is."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves_of(item)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    else:
        yield value


def _value(mine: Any, theirs: Any) -> Verdict:
    """A plain number: equal, or within the tolerance of the classic tools."""
    same = mine == theirs or (mine != mine and theirs != theirs)
    if not same and isinstance(mine, float) and isinstance(theirs, (int, float)):
        same = math.isclose(mine, theirs, rel_tol=VALUES, abs_tol=VALUES)
    text = "" if same else _("got {mine!r}, expected {theirs!r}").format(mine=mine, theirs=theirs)
    ratio = 0.0 if same else math.inf
    return Verdict(bool(same), "value", text, ratio=ratio, atol=VALUES, rtol=VALUES)


def labels_of(word: str, call: Call) -> list[str]:
    """A label for each tensor among the arguments: `input[0]`, … or `input` of a single argument.

    The number counts all positional arguments, then the tensors among the named ones.
    """
    leaves = _leaves(call)
    if len(leaves) == 1:
        return [word] if isinstance(leaves[0], Tensor) else []
    return [_label(word, place) for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]


def _leaves(call: Call) -> list[Any]:
    if not call.kwargs and not any(isinstance(v, (tuple, list, dict)) for v in call.args):
        return list(call.args)  # hot path
    return [*leaves_of(call.args), *tensors(call.kwargs)]


def with_values(call: Call, items: Sequence[Item]) -> list[Item]:
    """The items of a call, and one for each argument that is no tensor: the classic tables have
    them.
    """
    known, leaves = {item.label: item for item in items}, _leaves(call)
    found = []
    for place, leaf in enumerate(leaves):
        label = "input" if len(leaves) == 1 else _label("input", place)
        if label in known:
            found.append(known.pop(label))
        elif not isinstance(leaf, Tensor):
            found.append(Item(label, _argument(leaf)))
    return found + list(known.values())


def with_missing(
    call: Call, gradients: Sequence[Tensor | None], items: Sequence[Item]
) -> list[Item]:
    """The items of a backward pass, and one for each argument without a gradient, as above."""
    known = {item.label: item for item in items}
    labels = zip(labels_of("grad", call), gradients, strict=True)
    return [
        known[label] if grad is not None else Item(label, _argument(None)) for label, grad in labels
    ]


def _argument(value: Any) -> Verdict:
    """The verdict on an argument that is no tensor: the reference gets the same object."""
    tolerance = VALUES if isinstance(value, (bool, int, float, complex)) else 0.0
    return Verdict(True, "value", atol=tolerance, rtol=tolerance)


@cache
def _label(word: str, place: int) -> str:
    return f"{word}[{place}]"


# Backward.


def backward(
    taken: Taken, outputs: Sequence[Tensor | None], inputs: Sequence[Tensor | None], standard: str
) -> list[Item]:
    """The gradients of a call's arguments, from those of its results."""
    return _backward(taken, outputs, inputs, taken.reference().gradients(outputs), standard)


def gradients_bit_for_bit(
    taken: Taken, outputs: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> list[Item] | None:
    """The same of gradients that the CPU has alike, as in `bit_for_bit`."""
    run = taken.plain
    if run is None:
        return None
    try:
        theirs = run.gradients(outputs)
    except RuntimeError:  # no such kernel in this type
        return None
    try:
        return _backward(taken, outputs, inputs, theirs, BITWISE)
    except _DiffersError:
        return None


def _backward(
    taken: Taken,
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    reference: Sequence[Tensor | None],
    standard: str,
) -> list[Item]:
    lazy = _Backward(taken, outputs, reference)
    found = []
    for place, (label, mine, theirs) in enumerate(
        zip(labels_of("grad", taken.call), inputs, reference, strict=True)
    ):
        if mine is None:
            continue
        if theirs is None:
            theirs = torch.zeros(mine.shape, dtype=torch.float64)
        elif standard == BITWISE:
            theirs = theirs.to(mine.dtype)
        verdict = verdict_on(taken, mine, theirs, lazy, place, standard)
        found.append(Item(label, verdict, theirs.dtype))
    return found


class _Backward(Drawn):
    def __init__(
        self, taken: Taken, outputs: Sequence[Tensor | None], reference: Sequence[Tensor | None]
    ) -> None:
        self._taken, self._outputs, self._reference = taken, outputs, reference

    @cached_property
    def plain(self) -> list[Tensor | None] | None:
        run = self._taken.plain
        if run is None:
            return None
        try:
            return run.gradients(self._outputs)
        except RuntimeError:  # no such kernel in this type
            return None

    def _drawn(self, samples: int | None) -> list[Tensor | None] | None:
        again = self._taken.again

        def once() -> Sequence[Tensor | None]:
            return again.run(again.types, grad=True).gradients(self._outputs)

        return noise(again, once, self._reference, samples)


# One pair of tensors.

_ROUNDED = ("envelope", "bound", "rms", "bias")  # verdicts on how large an error is


def verdict_on(
    taken: Taken,
    mine: Tensor,
    theirs: Tensor,
    lazy: _Forward | _Backward,
    place: int,
    standard: str,
) -> Verdict:
    """The verdict by the tolerance that is set for the operator and the type, else the standard."""
    call = taken.call
    if standard == BITWISE:
        if not identical(mine, theirs):
            raise _DiffersError
        text = _("equal to the CPU's {dtype} result").format(dtype=name_of(mine.dtype))
        return replace(unchanged(mine), message=text if is_inexact(mine.dtype) else "")
    tolerance = settings.op_tolerance(call.operator, name_of(mine.dtype))
    verdict = judge(
        mine,
        theirs,
        standard=standard,
        tolerance=tolerance,
        run_plain=lambda: _at(lazy.plain, place),
        run_envelope=lambda: _at(lazy.sigma, place),
        run_surer=lambda: _at(lazy.surer, place),
        computed_in=computed_in(taken, mine),
    )
    calibrated = standard == "calibrated" and verdict.atol is None
    allowance = precision.allowance(taken.again) if calibrated and verdict.rule in _ROUNDED else ""
    if verdict.passed and calibrated and call.operator in COPIES and isinstance(lazy, _Forward):
        plain = None if verdict.rule == "equal" else _at(lazy.plain, place)
        if plain is not None and plain.dtype is mine.dtype and not identical(mine, plain):
            text = _("a copy differs from what was copied")
            return replace(verdict, passed=False, rule="copy", message=text, ratio=math.inf)
    if verdict.passed:
        return (
            replace(verdict, message=_("within {allowance}").format(allowance=allowance))
            if allowance
            else verdict
        )
    if allowance:
        verdict = replace(
            verdict,
            message=_("{message}; not even {allowance}, explains it").format(
                message=verdict.message, allowance=allowance
            ),
        )
    if verdict.rule == "exact" and _are_equal_choices(call, mine, theirs):
        return replace(unchanged(mine), rule="equal values")
    if op_names.last(call.name) in NOT_UNIQUE and verdict.rule not in ("shape", "dtype"):
        return replace(
            verdict, passed=True, rule="not unique", message=_("not unique: not compared")
        )
    return verdict


def _at(found: Sequence[Tensor | None] | None, place: int) -> Tensor | None:
    return found[place] if found is not None and place < len(found) else None


def computed_in(taken: Taken, mine: Tensor) -> torch.dtype | None:
    """The type that values of a result were rounded to on the way, when it is a narrower one."""
    rounded = taken.again.rounded or taken.computed_in
    if rounded is None or mine.dtype not in FORMATS:
        return None
    return rounded if FORMATS[rounded].digits < FORMATS[mine.dtype].digits else None


def beyond_memory(text: str) -> Verdict:
    """A kernel that wrote where it had nothing to write."""
    return Verdict(False, "memory", text, wrong=1, ratio=math.inf, max_abs=math.inf)


# Indices that an operator returns: where values are equal, any choice among them is right.

# Of operators that give indices: where the dimension is among the arguments, its default, and
# whether an element may be chosen once only.
_INDICES: dict[str, tuple[int, int | None, bool]] = {
    "argmax": (1, None, False),
    "argmin": (1, None, False),
    "max": (1, None, False),
    "min": (1, None, False),
    "median": (1, None, False),
    "nanmedian": (1, None, False),
    "mode": (1, -1, False),
    "kthvalue": (2, -1, False),
    "topk": (2, -1, True),
    "sort": (1, -1, True),
    "argsort": (1, -1, True),
    "cummax": (1, None, False),
    "cummin": (1, None, False),
}
_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool")


def _are_equal_choices(call: Call, mine: Tensor, theirs: Tensor) -> bool:
    """Whether indices differ only among equal values, where any of them is right."""
    word = op_names.last(call.name)
    values = next(tensors(call.args, call.kwargs), None)
    if values is None or mine.dtype != torch.int64:
        return False
    if word.startswith(_POOLS):
        spatial = next(d for d in (1, 2, 3) if f"{d}d" in word)
        flat = values.flatten(-spatial)
        return same_choice(flat, mine.flatten(-spatial), theirs.flatten(-spatial), -1)
    if word not in _INDICES:
        return False
    place, default, distinct = _INDICES[word]
    dim = call.kwargs.get("dim", _positional(call, place, default))
    if dim is not None and not isinstance(dim, int):
        return False
    return same_choice(values, mine, theirs, dim, distinct)


def _positional(call: Call, place: int, default: int | None) -> Any:
    if isinstance(call.func, OpOverload):
        named = [a.name for a in call.func._schema.arguments]
        place = named.index("dim") if "dim" in named else place
    return call.args[place] if len(call.args) > place else default
