# SPDX-License-Identifier: Apache-2.0
"""A recorded call, and the verdict on each part of it by comparison with its reference."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from op_tools.compare.eligibility import (
    COPIES,
    NOT_UNIQUE,
    NoReferenceError,
    argument,
    declared,
)
from op_tools.compare.rerun import Rerun, Run
from op_tools.core import op_names
from op_tools.core.call import Call, tensors
from op_tools.core.gradients import Gradients

VALUES = 1e-6  # absolute and relative tolerance of plain numbers
BITWISE = "bitwise"  # a standard: equal to the CPU's result in the same type
PAUSE = 16  # calls of an operator that was not the CPU's bit for bit, until the next attempt
PRECISE = 48  # perturbed runs, before a report that the noise of a few might explain


class _DiffersError(Exception):
    """A result is not the CPU's bit for bit."""


class Differed:
    """Operators whose results differed from the CPU's in the same type a short while ago."""

    def __init__(self) -> None:
        self._pauses: Counter[str] = Counter()
        self._lock = threading.Lock()

    def unless(self, name: str, check: Callable[[], list[Item] | None]) -> list[Item] | None:
        """The result of `check`, except for an operator that differed in one of its last calls."""
        with self._lock:
            self._pauses[name] -= 1
            if self._pauses[name] > 0:
                return None
        items = check()
        if items is None:
            with self._lock:
                self._pauses[name] = PAUSE
        return items


@dataclass(frozen=True)
class Item:
    """The verdict on one part of a call: `input[0]`, `output`, `grad[1]`."""

    label: str
    verdict: Verdict
    reference: torch.dtype | None = None  # type of the reference; None: it has none


@dataclass
class RecordedCall:
    """Arguments of a call before and after it, and its results, all on the host."""

    rerun: Rerun
    result: Any
    after: Sequence[Tensor | None]  # the arguments after the call; None: not copied
    wants_gradient: bool
    device: str = ""
    rows: Sequence[tuple[object, ...]] = ()  # of a table: the values on the device
    on_device: dict[int, tuple[object, ...]] = field(default_factory=dict)  # cells of a table: of
    # a gradient as it was on the device, by the id of its copy
    where: str = ""  # the line of the program, of a call without a site
    run: Run | None = field(default=None, repr=False)
    sampled: bool = False  # a slice of a large call: a wrong verdict makes a suspect
    label: str = ""  # the label of the result, where it is not the call's own result
    key: Hashable = None  # of the large call, among suspects

    @property
    def call(self) -> Call:
        return self.rerun.call

    @cached_property
    def results(self) -> list[Tensor]:
        return list(tensors(self.result))

    def reference(self) -> Run:
        """The cached run in the wider type."""
        if self.run is None:
            self.run = self.rerun.reference(grad=self.wants_gradient)
        return self.run

    @cached_property
    def plain(self) -> Run | None:
        """The run in the device's own type."""
        return self.rerun.plain_run(grad=self.wants_gradient)


# A call, and its gradients.


def forward(recorded: RecordedCall, standard: str) -> list[Item]:
    """Judge the arguments and the results of a call."""
    return _forward(recorded, recorded.reference(), standard)


def backward(
    recorded: RecordedCall,
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    standard: str,
) -> list[Item]:
    """Judge the gradients of a call's arguments, from those of its results."""
    reference = recorded.reference().gradients(outputs)
    return _backward(recorded, outputs, inputs, reference, standard)


def bit_for_bit(recorded: RecordedCall, gradients: Gradients | None) -> list[Item] | None:
    """The verdicts on a call, or on its gradients, if they are the CPU's in the same type, bit for
    bit; else None. No other judge is needed.
    """
    run, operator = recorded.plain, recorded.call.operator
    types = {name_of(tensor.dtype) for tensor in recorded.results}
    if run is None or any(settings.op_tolerance(operator, t) is not None for t in types):
        return None
    try:
        if gradients is None:
            return _forward(recorded, run, BITWISE)
        reference = _gradients(run, gradients.outputs)
        if reference is None:
            return None
        return _backward(recorded, gradients.outputs, gradients.inputs, reference, BITWISE)
    except _DiffersError:
        return None


def _gradients(run: Run, outputs: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    try:
        return run.gradients(outputs)
    except RuntimeError:  # no such kernel in this type
        return None


class Evidence:
    """Values of other reruns than the reference, computed when a verdict needs them."""

    of_gradients = True

    @property
    def plain(self) -> Sequence[Tensor | None] | None:
        """The values of a run in the device's own type."""
        raise NotImplementedError

    @cached_property
    def sigma(self) -> list[Tensor | None] | None:
        """The effect of rounding on each value, from a few perturbed runs."""
        return self.noise(None)

    @cached_property
    def precise_sigma(self) -> list[Tensor | None] | None:
        """The effect of rounding on each value, from many perturbed runs."""
        return self.noise(PRECISE)

    def noise(self, samples: int | None) -> list[Tensor | None] | None:
        raise NotImplementedError


class _Reruns(Evidence):
    """Reruns of a recorded call, of which `values` are judged."""

    def __init__(
        self,
        recorded: RecordedCall,
        reference: Sequence[Tensor | None],
        values: Callable[[Run], Sequence[Tensor | None] | None],
        of_gradients: bool,
    ) -> None:
        self._recorded, self._reference, self._values = recorded, reference, values
        self.of_gradients = of_gradients

    @cached_property
    def plain(self) -> Sequence[Tensor | None] | None:
        run = self._recorded.plain
        return None if run is None else self._values(run)

    def noise(self, samples: int | None) -> list[Tensor | None] | None:
        rerun = self._recorded.rerun

        def once() -> Sequence[Tensor | None] | None:
            return self._values(rerun.run(rerun.types, grad=self.of_gradients))

        return rounding_noise(rerun, once, self._reference, samples)


def rounding_noise(
    rerun: Rerun,
    once: Callable[[], Sequence[Tensor | None] | None],
    centre: Sequence[Tensor | None],
    samples: int | None = None,
) -> list[Tensor | None] | None:
    """The envelope of a call's results; None where it cannot be run in float64."""
    stored = rerun.autocast or rerun.stored
    wide = stored in (torch.float64, torch.complex128)
    if not wide and not rerun.types:
        return None
    matrices, convolutions = precision.factors(rerun)
    entering = 0.0 if rerun.autocast is None else FORMATS[rerun.autocast].roundoff
    floats = [t if t is not None and t.dtype in FORMATS else None for t in centre]

    def checked() -> list[Tensor | None]:
        values = once()
        if values is None:
            raise NoReferenceError("no gradients")
        return [None if c is None else t for t, c in zip(values, floats, strict=True)]

    try:
        return envelope(
            checked,
            floats,
            inside=2 * FLOAT64 if wide else FLOAT32,  # in float64 the reference errs as well
            between=FORMATS[stored].roundoff,
            entering=max(entering, matrices.roundoff if matrices else 0.0),
            convolving=convolutions.roundoff if convolutions else 0.0,
            functions=precision.functions(rerun),
            partial=FORMATS[stored].roundoff if precision.sums(rerun) else 0.0,
            smallest=FORMATS[stored].smallest if FORMATS[stored].is_half else 0.0,
            samples=samples,
            seed=samples or 0,
        )
    except (RuntimeError, TypeError, ValueError, NotImplementedError, NoReferenceError):
        return None  # the call cannot be perturbed: the verdict goes by the other evidence


def _forward(recorded: RecordedCall, run: Run, standard: str) -> list[Item]:
    reference = [t.detach() for t in (*run.results, *run.arguments)]
    reruns = _Reruns(recorded, reference, lambda run: [*run.results, *run.arguments], False)
    items = _inputs(recorded, run, reruns, standard)
    copied = (after for after in recorded.after if after is not None)
    known = {id(after): item.verdict for after, item in zip(copied, items, strict=True)}
    known = known if recorded.rerun.writes else {}
    return items + _outputs(recorded, run, reruns, standard, known)


def _backward(
    recorded: RecordedCall,
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    reference: Sequence[Tensor | None],
    standard: str,
) -> list[Item]:
    reruns = _Reruns(recorded, reference, lambda run: _gradients(run, outputs), True)
    items = []
    triples = zip(labels_of("grad", recorded.call), inputs, reference, strict=True)
    for place, (label, gradient, expected) in enumerate(triples):
        if gradient is None:
            continue
        if expected is None:
            expected = torch.zeros(gradient.shape, dtype=torch.float64)
        elif standard == BITWISE:
            expected = expected.to(gradient.dtype)
        verdict = verdict_on(recorded, gradient, expected, reruns, place, standard)
        items.append(Item(label, verdict, expected.dtype))
    return items


def _inputs(recorded: RecordedCall, run: Run, reruns: _Reruns, standard: str) -> list[Item]:
    """Judge the arguments after a call: unchanged, or as the reference writes them."""
    call, items = recorded.call, []
    count, named = len(run.results), declared(recorded.call)
    columns = labels_of("input", call), call.inputs, recorded.after, run.arguments, run.written
    for place, (label, before, after, expected, written) in enumerate(zip(*columns, strict=True)):
        if after is None:
            continue
        if not written and id(before) not in named and identical(before, after):
            items.append(Item(label, unchanged(after), expected.dtype))
            continue
        verdict = verdict_on(recorded, after, expected, reruns, count + place, standard)
        if not verdict.passed and not recorded.rerun.writes:
            text = _("the argument was changed, which this operator does not do; {message}")
            text = text.format(message=verdict.message)
            verdict = replace(verdict, rule="input", message=text)
        items.append(Item(label, verdict, expected.dtype))
    return items


def identical(first: Tensor, second: Tensor) -> bool:
    """Equal in every element; NaN equals NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype == torch.complex32:  # torch cannot compare it
        first, second = torch.view_as_real(first), torch.view_as_real(second)
    if torch.equal(first, second):
        return True
    if first.dtype not in FORMATS:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def unchanged(tensor: Tensor) -> Verdict:
    """The verdict on a tensor that is equal to the expected one."""
    return Verdict(True, "equal", "", name_of(tensor.dtype), tuple(tensor.shape))


def _outputs(
    recorded: RecordedCall, run: Run, reruns: _Reruns, standard: str, known: dict[int, Verdict]
) -> list[Item]:
    """Judge the results. `known`: the verdicts on written arguments, which may be results, too."""
    results, expected = list(leaves_of(recorded.result)), list(leaves_of(run.result))
    if standard == BITWISE and not _have_equal_values(results, expected):
        raise _DiffersError
    if len(results) != len(expected):
        text = _("{count} {count:result|results}, expected {expected}")
        text = text.format(count=len(results), expected=len(expected))
        return [Item("output", Verdict(False, "structure", text, ratio=math.inf))]
    items, place = [], 0
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        label = recorded.label or ("output" if len(results) == 1 else f"output[{number}]")
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            verdict = known.get(id(a)) or verdict_on(recorded, a, b, reruns, place, standard)
            items.append(Item(label, verdict, b.dtype))
            place += 1
        elif isinstance(a, Tensor) or isinstance(b, Tensor):
            text = _("{kind}, expected {expected}")
            text = text.format(kind=type(a).__name__, expected=type(b).__name__)
            items.append(Item(label, Verdict(False, "structure", text, ratio=math.inf)))
        elif isinstance(a, (bool, int, float, complex)) and standard != BITWISE:
            items.append(Item(label, _value(a, b)))
    return items


def _have_equal_values(results: list[Any], expected: list[Any]) -> bool:
    """Whether the results that are no tensors are equal."""
    if [type(a) for a in results] != [type(b) for b in expected]:
        return False
    pairs = zip(results, expected, strict=True)
    return all(isinstance(a, Tensor) or bool(a == b) for a, b in pairs)


def leaves_of(value: Any) -> Iterator[Any]:
    """The values inside of containers, in order, of any type."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves_of(item)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    else:
        yield value


def _value(result: Any, expected: Any) -> Verdict:
    """The verdict on a plain number: equal, or within the tolerance of the classic tools."""
    same = result == expected or (result != result and expected != expected)
    if not same and isinstance(result, float) and isinstance(expected, (int, float)):
        same = math.isclose(result, expected, rel_tol=VALUES, abs_tol=VALUES)
    if same:
        return Verdict(True, "value", atol=VALUES, rtol=VALUES)
    text = _("got {mine!r}, expected {theirs!r}").format(mine=result, theirs=expected)
    return Verdict(False, "value", text, ratio=math.inf, atol=VALUES, rtol=VALUES)


def labels_of(word: str, call: Call) -> list[str]:
    """A label for each tensor among the arguments: `input[0]`, … or `input` of a single argument.

    The number counts all positional arguments, then the tensors among the named ones.
    """
    return [label for label, leaf in _labelled(word, call) if isinstance(leaf, Tensor)]


def _labelled(word: str, call: Call) -> list[tuple[str, Any]]:
    leaves = [*leaves_of(call.args), *tensors(call.kwargs)]
    if len(leaves) == 1:
        return [(word, leaves[0])]
    return [(f"{word}[{place}]", leaf) for place, leaf in enumerate(leaves)]


def with_values(call: Call, items: Sequence[Item]) -> list[Item]:
    """The items of a call, and one for each argument that is no tensor: the classic tables have
    them.
    """
    known, complete = {item.label: item for item in items}, []
    for label, leaf in _labelled("input", call):
        if label in known:
            complete.append(known.pop(label))
        elif not isinstance(leaf, Tensor):
            complete.append(Item(label, _argument(leaf)))
    return complete + list(known.values())


def with_missing(
    call: Call, gradients: Sequence[Tensor | None], items: Sequence[Item]
) -> list[Item]:
    """The items of a backward pass, and one for each argument without a gradient, as in
    `with_values`.
    """
    known = {item.label: item for item in items}
    labels = zip(labels_of("grad", call), gradients, strict=True)
    return [
        known[label] if grad is not None else Item(label, _argument(None)) for label, grad in labels
    ]


def _argument(value: Any) -> Verdict:
    """The verdict on an argument that is no tensor: the reference gets the same object."""
    tolerance = VALUES if isinstance(value, (bool, int, float, complex)) else 0.0
    return Verdict(True, "value", atol=tolerance, rtol=tolerance)


# One pair of tensors.

_ROUNDED = ("envelope", "bound", "rms", "bias")  # verdicts on how large an error is


def verdict_on(
    recorded: RecordedCall,
    result: Tensor,
    expected: Tensor,
    evidence: Evidence,
    place: int,
    standard: str,
) -> Verdict:
    """The verdict by the tolerance that is set for the operator and the type, else the standard.

    `place`: of the tensor among the values of `evidence`.
    """
    call = recorded.call
    if standard == BITWISE:
        if not identical(result, expected):
            raise _DiffersError
        text = _("equal to the CPU's {dtype} result").format(dtype=name_of(result.dtype))
        return replace(unchanged(result), message=text if is_inexact(result.dtype) else "")
    verdict = judge(
        result,
        expected,
        standard=standard,
        tolerance=settings.op_tolerance(call.operator, name_of(result.dtype)),
        run_plain=lambda: _at(evidence.plain, place),
        run_envelope=lambda: _at(evidence.sigma, place),
        run_surer=lambda: _at(evidence.precise_sigma, place),
        computed_in=computed_in(recorded, result),
    )
    calibrated = standard == "calibrated" and verdict.atol is None
    rounded = calibrated and verdict.rule in _ROUNDED
    allowance = precision.allowance(recorded.rerun) if rounded else ""
    if verdict.passed and calibrated and call.operator in COPIES and not evidence.of_gradients:
        plain = None if verdict.rule == "equal" else _at(evidence.plain, place)
        if plain is not None and plain.dtype is result.dtype and not identical(result, plain):
            text = _("a copy differs from what was copied")
            return replace(verdict, passed=False, rule="copy", message=text, ratio=math.inf)
    if verdict.passed:
        text = _("within {allowance}").format(allowance=allowance) if allowance else ""
        return replace(verdict, message=text or verdict.message)
    if allowance:
        text = _("{message}; not even {allowance}, explains it")
        text = text.format(message=verdict.message, allowance=allowance)
        verdict = replace(verdict, message=text)
    if verdict.rule == "exact" and _are_equal_choices(call, result, expected):
        return replace(unchanged(result), rule="equal values")
    if op_names.last(call.name) in NOT_UNIQUE and verdict.rule not in ("shape", "dtype"):
        text = _("not unique: not compared")
        return replace(verdict, passed=True, rule="not unique", message=text)
    return verdict


def _at(values: Sequence[Tensor | None] | None, place: int) -> Tensor | None:
    return values[place] if values is not None and place < len(values) else None


def computed_in(recorded: RecordedCall, result: Tensor) -> torch.dtype | None:
    """The type that values of a result were rounded to inside of the call, by autocast, when it is
    a narrower one than the result's.
    """
    rounded = recorded.rerun.rounded or recorded.rerun.autocast
    if rounded is None or result.dtype not in FORMATS:
        return None
    return rounded if FORMATS[rounded].digits < FORMATS[result.dtype].digits else None


def beyond_memory(text: str) -> Verdict:
    """The verdict on a kernel that wrote outside of its arguments."""
    return Verdict(False, "memory", text, wrong=1, ratio=math.inf, max_abs=math.inf)


# Indices that an operator returns: where values are equal, any choice among them is right.

# Of operators that give indices: where the dimension is among the arguments, its default, and
# whether an element may be chosen once only.
_INDICES: dict[str, tuple[int, int | None, bool]] = {
    **dict.fromkeys(
        "argmax argmin max min median nanmedian cummax cummin".split(), (1, None, False)
    ),
    "mode": (1, -1, False),
    "kthvalue": (2, -1, False),
    **dict.fromkeys(("sort", "argsort"), (1, -1, True)),
    "topk": (2, -1, True),
}
_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool")


def _are_equal_choices(call: Call, result: Tensor, expected: Tensor) -> bool:
    """Whether indices differ only among equal values, where any of them is right."""
    word = op_names.last(call.name)
    values = next(tensors(call.args, call.kwargs), None)
    if values is None or result.dtype != torch.int64:
        return False
    if word.startswith(_POOLS):
        spatial = next(d for d in (1, 2, 3) if f"{d}d" in word)
        flat = values.flatten(-spatial)
        return same_choice(flat, result.flatten(-spatial), expected.flatten(-spatial), -1)
    if word not in _INDICES:
        return False
    place, default, distinct = _INDICES[word]
    if isinstance(call.func, OpOverload):
        names = [one.name for one in call.func._schema.arguments]
        place = names.index("dim") if "dim" in names else place
    dim = argument(call, place, "dim", default=default)
    if dim is not None and not isinstance(dim, int):
        return False
    return same_choice(values, result, expected, dim, distinct)
