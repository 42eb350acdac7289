"""The checks: each is one small function; it says what is wrong, or that it says nothing (None).

A check gets a trial: the call as the vendor did it, and what it should have been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.judge.formats import FORMATS
from deeplink.judge.verdict import name_of
from deeplink.samples import UNINITIALISED
from diopi.conformance import memory, residuals, statistics
from diopi.conformance.case import Case, Finding
from diopi.conformance.expected import Expected
from diopi.conformance.grading import SPECIAL, Judged, chose_equal, grade
from diopi.conformance.guarded import guarded
from diopi.conformance.running import Run, host, run, same_bits
from diopi.conformance.sample import Callee, Sample
from diopi.conformance.subject import Subject

Findings = list[Finding] | None
ROUGH = 64.0  # times the bound: a form of the CPU's that is rounded more often, and no worse
LEAK_SIZE = 1 << 12  # elements of all arguments; many calls of a larger one take their time


@dataclass
class Trial:
    """One case on one vendor, and what has been judged of it so far."""

    case: Case
    callee: Callee
    sample: Sample
    subject: Subject
    expected: Expected
    found: Run
    judged: list[Judged] = field(default_factory=list)

    def again(self, **changes: Any) -> Run:
        """The call once more on the vendor."""
        with self.subject.active():
            return run(self.subject.takes(self.callee), self.sample, self.subject.device, **changes)

    @property
    def comparable(self) -> bool:
        """Whether values can be held side by side at all."""
        plain = self.expected.plain
        drops = self.sample.kwargs.get("dropout_p", 0.0) or 0.0
        draws = plain.drew or self.callee.draws or drops > 0
        return not (draws or self.callee.name in UNINITIALISED)

    def grade(
        self,
        what: str,
        result: Tensor,
        place: int,
        cpu: Callable[[], list[Tensor]] | None = None,  # as the CPU does it in this form
    ) -> list[Finding]:
        """The finding on one result, none for grade A."""
        wanted = self.expected
        plain = wanted.plain_results[place]
        finer = place > 0 and _finer(result, plain)
        if (result.dtype != plain.dtype and not finer) or result.shape != plain.shape:
            text = f"{_kind(result)}, expected {_kind(plain)}"
            return [Finding(what, text)]
        judged = self._graded(result, place, lambda: self._cpus(place, cpu))
        return self.note(what, judged, result, wanted.results[place])

    def _graded(self, result: Tensor, place: int, plain: Callable[[], Tensor]) -> Judged:
        wanted = self.expected
        return grade(
            wanted.picked(result),
            wanted.results[place],
            lambda: wanted.picked(plain()),
            lambda: _at(wanted.sigma, place),
        )

    def _cpus(self, place: int, cpu: Callable[[], list[Tensor]] | None) -> Tensor:
        """The CPU's own result: in the form that is asked for, unless it is far off in that one."""
        plain = self.expected.plain_results[place]
        if cpu is None:
            return plain
        result = cpu()[place]
        judged = self._graded(result, place, lambda: plain)
        return result if judged.grade != "F" or judged.verdict.ratio <= ROUGH else plain

    def grade_written(self, place: int, result: Tensor, plain: Tensor) -> list[Finding]:
        """The finding on an argument that the op writes."""
        reference = self.expected.given[place]
        judged = grade(
            result, reference, lambda: plain, lambda: _at(self.expected.given_sigma, place)
        )
        return self.note("inputs", judged, result, reference)

    def note(self, what: str, judged: Judged, result: Tensor, reference: Tensor) -> list[Finding]:
        """The finding of a grade, which is kept."""
        if judged.grade == "F" and chose_equal(self.callee.name, self.sample, result, reference):
            judged = Judged("A", judged.verdict, "equal values")
        self.judged.append(judged)
        if judged.grade == "A":
            return []
        name = "specials" if judged.verdict.rule in SPECIAL and what == "values" else what
        return [Finding(name, judged.message, judged.grade)]


def _at(values: Sequence[Tensor | None] | None, place: int) -> Tensor | None:
    return values[place] if values is not None and place < len(values) else None


def _kind(tensor: Tensor) -> str:
    return f"{name_of(tensor.dtype)} {list(tensor.shape)}"


def structure(trial: Trial) -> Findings:
    """As many results as there should be, on the vendor's device."""
    mine, wanted = trial.found.tensors, trial.expected.plain.tensors
    if len(mine) != len(wanted):
        return [Finding("structure", f"{len(mine)} results, expected {len(wanted)}")]
    device = torch.device(trial.subject.device).type
    wrong = [t.device for t in mine if t.device.type != device]
    return [Finding("structure", f"a result is on {d}, not on {device}") for d in wrong[:1]]


def dtype(trial: Trial) -> Findings:
    """As it should be; statistics beside the first result may be kept in float32."""
    pairs = zip(trial.found.tensors, trial.expected.plain.tensors, strict=False)
    return [
        Finding(
            "dtype",
            f"{name_of(mine.dtype)}, expected {name_of(wanted.dtype)}",
            "B" if place and _finer(mine, wanted) else "F",
        )
        for place, (mine, wanted) in enumerate(pairs)
        if mine.dtype != wanted.dtype
    ]


def _finer(mine: Tensor, wanted: Tensor) -> bool:
    return mine.dtype == torch.float32 and wanted.dtype in (torch.float16, torch.bfloat16)


def shape(trial: Trial) -> Findings:
    """As it should be."""
    pairs = zip(trial.found.tensors, trial.expected.plain.tensors, strict=False)
    return [
        Finding("shape", f"{list(mine.shape)}, expected {list(wanted.shape)}")
        for mine, wanted in pairs
        if mine.shape != wanted.shape
    ]


def strides(trial: Trial) -> Findings:
    """As the CPU lays it out. Another dense order is no error, one that overlaps is."""
    found = []
    for mine, wanted in zip(trial.found.tensors, trial.expected.plain.tensors, strict=False):
        if mine.layout != torch.strided or wanted.layout != torch.strided:
            continue
        if mine.shape == wanted.shape and _steps(mine) != _steps(wanted):
            dense = torch.ops.aten.is_non_overlapping_and_dense.default(mine)
            text = f"{mine.stride()}, expected {wanted.stride()} for {list(mine.shape)}"
            found.append(Finding("strides", text, "B" if dense else "F"))
    return found


def _steps(tensor: Tensor) -> list[int]:
    """The strides that matter: of dimensions with more than one element."""
    if not tensor.numel():
        return []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def values(trial: Trial) -> Findings:
    """Each result by the judge; what has no one right value by its residuals."""
    if not trial.comparable:
        return None
    if trial.callee.name in residuals.RESIDUALS:
        return residuals.check(trial.callee.name, trial.sample, trial.found.result)
    found: list[Finding] = []
    for place, mine in enumerate(trial.found.tensors):
        found += trial.grade("values", host(mine), place)
    numbers = _numbers(trial.found.result), _numbers(trial.expected.plain.result)
    slack = NUMBERS * FORMATS[trial.expected.stored].roundoff
    if len(numbers[0]) != len(numbers[1]) or not all(
        _close(mine, wanted, slack) for mine, wanted in zip(*numbers, strict=True)
    ):
        found.append(Finding("values", f"{numbers[0]}, expected {numbers[1]}"))
    return found


NUMBERS = 64  # roundings that a number may be off by: nothing tells how it was summed


def _close(mine: Any, wanted: Any, slack: float) -> bool:
    """Alike; numbers with a fraction nearly so."""
    if type(mine) is not type(wanted) or not isinstance(mine, float):
        return str(mine) == str(wanted)
    return str(mine) == str(wanted) or abs(mine - wanted) <= slack * abs(wanted)


def _numbers(result: Any) -> list[Any]:
    leaves = pytree.tree_leaves(result)
    return [x for x in leaves if isinstance(x, bool | int | float | complex | str)]


def inputs(trial: Trial) -> Findings:
    """Arguments stay as they were, unless the op is there to write them: then as it should."""
    found = []
    for place, (was, now) in enumerate(zip(trial.sample.tensors, trial.found.given, strict=False)):
        if was.layout != torch.strided:
            continue
        before, after = host(was), host(now)
        wanted = host(trial.expected.plain.given[place])
        if same_bits(before, wanted):
            if not same_bits(before, after):
                found.append(Finding("inputs", f"argument {place} was changed"))
        elif trial.comparable:
            found += trial.grade_written(place, after, wanted)
    return found


def determinism(trial: Trial) -> Findings:
    """The same call gives the same bits, and the same random numbers from the same seed."""
    if trial.callee.name in UNINITIALISED:
        return None
    second = trial.again(grad=False)
    pairs = zip(trial.found.tensors, second.tensors, strict=False)
    if all(same_bits(host(a), host(b)) for a, b in pairs):
        return []
    right = trial.comparable and all(judged.grade != "F" for judged in trial.judged)
    text = "two runs of the same call differ" + (", by rounding" if right else "")
    return [Finding("determinism", text, "B" if right else "F")]


def backward(trial: Trial) -> Findings:
    """The gradients of the arguments, from random ones of the results."""
    wanted = trial.expected
    if not trial.comparable or not trial.found.roots:
        return None
    try:
        reference = wanted.gradients
    except Exception:  # the CPU's own limits, whatever it says
        return None
    if not any(g is not None for g in reference) or trial.callee.name in residuals.RESIDUALS:
        return None
    if len(trial.found.roots) != len(wanted.seeds):
        return [Finding("backward", f"{len(trial.found.roots)} results have a gradient, not "
                        f"{len(wanted.seeds)}")]  # fmt: skip
    if not _chose_alike(trial):
        return None
    with trial.subject.active():
        mine = trial.found.gradients(wanted.seeds)
    found: list[Finding] = []
    for place, (a, b) in enumerate(zip(mine, reference, strict=True)):
        found += _gradient(trial, place, a, b)
    return found


def _chose_alike(trial: Trial) -> bool:
    """Whether indices among the results are the CPU's: among ties another choice is as good, and
    the gradients go elsewhere."""
    pairs = zip(trial.found.tensors, trial.expected.plain_results, strict=False)
    chosen = [(a, b) for a, b in pairs if b.dtype == torch.int64]
    return all(torch.equal(host(a), b) for a, b in chosen)


def _gradient(
    trial: Trial, place: int, mine: Tensor | None, wanted: Tensor | None
) -> list[Finding]:
    leaf = trial.found.leaves[place]
    if mine is None or wanted is None:
        if mine is None and (wanted is None or not wanted.any()):
            return []
        if wanted is None and mine is not None:
            nothing = trial.expected.picked(torch.zeros_like(host(mine)))
            wanted = nothing.to(torch.complex128 if mine.is_complex() else torch.float64)
        if mine is None:
            return [Finding("backward", f"no gradient for argument {place}")]
    assert mine is not None and wanted is not None
    if mine.dtype != leaf.dtype or mine.shape != leaf.shape:
        return [Finding("backward", f"gradient {place}: {_kind(mine)}, expected {_kind(leaf)}")]
    expected = trial.expected
    judged = grade(
        expected.picked(host(mine)),
        wanted.to(torch.complex128) if mine.is_complex() else wanted,
        lambda: _picked(expected, expected.plain_gradients[place]),
        lambda: _at(expected.gradient_sigma, place),
    )
    found = trial.note("backward", judged, host(mine), wanted)
    return [Finding(f.check, f"gradient {place}: {f.message}", f.grade) for f in found]


def _picked(expected: Expected, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else expected.picked(tensor)


def _with_out(kind: str, trial: Trial) -> Findings:
    """`out=` is written, all of it and nothing beside it."""
    results = trial.expected.plain.result
    single = isinstance(results, Tensor)
    if not trial.callee.has_out or not trial.comparable or not trial.found.tensors:
        return None
    rooms = [guarded(t, kind, trial.subject.device) for t in trial.expected.plain.tensors]
    outs = [room.tensor for room in rooms]
    extra = {"out": outs[0] if single else tuple(outs)}
    try:
        trial.again(extra=extra, grad=False)
    except Exception as error:  # whatever it raises: does the CPU as well?
        if _cpu_refuses(trial, kind):
            return None
        return [Finding(kind, f"raised {type(error).__name__}: {_line(error)}")]
    found: list[Finding] = []
    for place, room in enumerate(rooms):
        if room.broken():
            if _cpu_refuses(trial, kind):  # torch itself lays some of them out anew
                return None
            found.append(Finding("guard", f"{kind}: wrote outside of its result {place}"))
        mine = host(room.tensor)
        unique = trial.callee.name not in residuals.RESIDUALS
        if unique and not same_bits(mine, host(trial.found.tensors[place])):
            found += trial.grade(kind, mine, place, lambda: _cpu_outs(trial, kind))
    return found


def _cpu_refuses(trial: Trial, kind: str) -> bool:
    try:
        return not _cpu_outs(trial, kind)
    except Exception:  # any error counts: the CPU's own limits
        return True


def _cpu_outs(trial: Trial, kind: str) -> list[Tensor]:
    """What the CPU writes into `out=`; nothing when it writes beside it as well."""
    rooms = [guarded(t, kind, "cpu") for t in trial.expected.plain.tensors]
    outs: Any = tuple(room.tensor for room in rooms)
    single = isinstance(trial.expected.plain.result, Tensor)
    extra = {"out": outs[0] if single else outs}
    run(trial.callee, trial.sample, extra=extra, grad=False)
    return [] if any(room.broken() for room in rooms) else [room.tensor for room in rooms]


def inplace(trial: Trial) -> Findings:
    """The in-place form gives the same, in its argument's memory."""
    first = trial.sample.args[0] if trial.sample.args else None
    wanted = trial.expected.plain.tensors
    function = trial.callee.inplace
    if function is None or not isinstance(first, Tensor) or not trial.comparable:
        return None
    if 0 in first.stride():  # elements share memory: what should be written there?
        return None
    if len(wanted) != 1 or wanted[0].dtype != first.dtype or wanted[0].shape != first.shape:
        return None
    try:
        mine = trial.again(function=function, grad=False)
    except Exception as error:  # whatever it raises: does the CPU as well?
        try:
            run(trial.callee, trial.sample, function=function, grad=False)
        except Exception:  # the CPU's own limits
            return None
        return [Finding("inplace", f"raised {type(error).__name__}: {_line(error)}")]
    written = host(mine.given[0])
    found: list[Finding] = []
    if not mine.tensors or mine.tensors[0].data_ptr() != mine.given[0].data_ptr():
        found.append(Finding("inplace", "it returns another tensor than its argument"))
    if not same_bits(written, host(trial.found.tensors[0])):
        found += trial.grade("inplace", written, 0, lambda: _cpu_inplace(trial))
    return found


def _cpu_inplace(trial: Trial) -> list[Tensor]:
    return run(trial.callee, trial.sample, function=trial.callee.inplace, grad=False).given[:1]


def distribution(trial: Trial) -> Findings:
    """What a random op draws is spread as it should be."""
    if trial.callee.name != statistics.SOURCE:
        return None

    def again(seed: int) -> Tensor:
        return trial.again(seed=seed, grad=False).tensors[0]

    return statistics.check(trial.case.op, trial.found.tensors[0], again)


def leak(trial: Trial) -> Findings:
    """Calls keep no memory: what is in use does not grow with them."""
    if sum(tensor.numel() for tensor in trial.sample.tensors) > LEAK_SIZE:
        return None

    def once() -> None:
        found = trial.again()
        if len(found.roots) == len(trial.expected.seeds):
            with trial.subject.active():
                found.gradients(trial.expected.seeds)

    grown = memory.kept(once, trial.subject.device)
    return [
        Finding("leak", f"each call keeps about {size} bytes of the {name}'s memory")
        for name, size in grown.items()
    ]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


# In this order. `always`: in every case; the others in a share of them in the quick tier.
Check = Callable[[Trial], Findings]
CHECKS: dict[str, Check] = {
    "structure": structure,
    "dtype": dtype,
    "shape": shape,
    "strides": strides,
    "values": values,
    "statistics": distribution,
    "inputs": inputs,
    "backward": backward,
    "out": partial(_with_out, "out"),
    "out_strided": partial(_with_out, "out_strided"),
    "out_resized": partial(_with_out, "out_resized"),
    "inplace": inplace,
    "determinism": determinism,
    "leak": leak,
}
FATAL = frozenset({"structure", "dtype", "shape"})  # after these nothing else can be said
