# SPDX-License-Identifier: Apache-2.0
"""The checks: small functions that return findings, [] for a correct result, or None.

None means that the check does not apply. A check gets a trial: the vendor's run of the call, and
the expected results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.judge.formats import FORMATS
from deeplink.judge.verdict import name_of
from deeplink.testing.samples import UNINITIALISED
from diopi.conformance.cases.case import Finding
from diopi.conformance.checks import distributions, memory, outside, residuals
from diopi.conformance.checks.forms import inplace, with_out
from diopi.conformance.checks.trial import Findings, Trial, finer, kind
from diopi.conformance.execution.running import host, same_bits

LEAK_SIZE = 1 << 12  # elements of all arguments; many calls of a larger one take too long


def structure(trial: Trial) -> Findings:
    """Check the number of results, and their device where the call determines it."""
    mine, wanted = trial.found.tensors, trial.expected.plain.tensors
    if len(mine) != len(wanted):
        return [Finding("structure", f"{len(mine)} results, expected {len(wanted)}")]
    if trial.callee.direct and not trial.sample.tensors:
        return []
    device = torch.device(trial.subject.device).type
    wrong = [t.device for t in mine if t.device.type != device]
    return [Finding("structure", f"a result is on {d}, not on {device}") for d in wrong[:1]]


def dtype(trial: Trial) -> Findings:
    """Check the types; statistics next to the first result may be kept in float32."""
    pairs = zip(trial.found.tensors, trial.expected.plain.tensors, strict=False)
    return [
        Finding(
            "dtype",
            f"{name_of(mine.dtype)}, expected {name_of(wanted.dtype)}",
            "B" if place and finer(mine, wanted) else "F",
        )
        for place, (mine, wanted) in enumerate(pairs)
        if mine.dtype != wanted.dtype
    ]


def shape(trial: Trial) -> Findings:
    """Check the shapes."""
    pairs = zip(trial.found.tensors, trial.expected.plain.tensors, strict=False)
    return [
        Finding("shape", f"{list(mine.shape)}, expected {list(wanted.shape)}")
        for mine, wanted in pairs
        if mine.shape != wanted.shape
    ]


def strides(trial: Trial) -> Findings:
    """Check the strides against the CPU's. Another dense order is no error, overlap is."""
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
    """Return the strides that matter: of dimensions with more than one element."""
    if not tensor.numel():
        return []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def values(trial: Trial) -> Findings:
    """Judge each result; results that are not unique by their residuals."""
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


NUMBERS = 64  # roundings that a plain number may be off by: its summation is unknown


def _close(mine: Any, wanted: Any, slack: float) -> bool:
    """Whether plain values are equal; numbers with a fraction approximately."""
    if type(mine) is not type(wanted) or not isinstance(mine, float):
        return str(mine) == str(wanted)
    return str(mine) == str(wanted) or abs(mine - wanted) <= slack * abs(wanted)


def _numbers(result: Any) -> list[Any]:
    leaves = pytree.tree_leaves(result)
    return [x for x in leaves if isinstance(x, bool | int | float | complex | str)]


def inputs(trial: Trial) -> Findings:
    """Check that arguments are unchanged; those that the op writes must equal the expected ones."""
    found = []
    for place, (was, now) in enumerate(zip(trial.sample.tensors, trial.found.given, strict=False)):
        if was.layout != torch.strided:
            continue
        before, after = host(was), host(now)
        wanted = host(trial.expected.plain.given[place])
        if same_bits(before, wanted):
            if not same_bits(before, after):
                found.append(Finding("inputs", f"argument {place} was changed"))
        elif trial.comparable and not _repeats(was):
            found += trial.grade_written(place, after, wanted)
    return found


def _repeats(tensor: Tensor) -> bool:
    """Whether elements share memory, so that writing them has no defined result."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and not stride for size, stride in pairs)


def determinism(trial: Trial) -> Findings:
    """Check that a rerun gives equal bits, and equal random numbers from the same seed."""
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
    """Check the gradients of the arguments, for random gradients of the results."""
    wanted = trial.expected
    if not trial.comparable or not trial.found.roots:
        return None
    try:
        reference = wanted.gradients
    except Exception:  # limits of the CPU, whatever it raises
        return None
    if not any(g is not None for g in reference) or trial.callee.name in residuals.RESIDUALS:
        return None
    if len(trial.found.roots) != len(wanted.seeds):
        return [Finding("backward", f"{len(trial.found.roots)} results have a gradient, not "
                        f"{len(wanted.seeds)}")]  # fmt: skip
    if not _same_choices(trial):
        return None
    try:
        with trial.subject.active():
            mine = trial.found.gradients(wanted.seeds)
    except Exception:  # whatever it raises: compared with the CPU in this layout
        if _cpu_refuses(trial):
            return None
        raise
    found: list[Finding] = []
    for place, (a, b) in enumerate(zip(mine, reference, strict=True)):
        found += _gradient(trial, place, a, b)
    return found


def _cpu_refuses(trial: Trial) -> bool:
    try:
        trial.expected.plain.gradients(trial.expected.seeds)
    except Exception:  # any error counts: limits of the CPU
        return True
    return False


def _same_choices(trial: Trial) -> bool:
    """Whether indices among the results equal the CPU's.

    Among ties another choice is as good, and the gradients go to other elements.
    """
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
        return [Finding("backward", f"gradient {place}: {kind(mine)}, expected {kind(leaf)}")]
    wanted = wanted.to(torch.complex128) if mine.is_complex() else wanted
    judged = trial.grade_gradient(host(mine), wanted, place)
    found = trial.note("backward", judged, host(mine), wanted)
    return [Finding(f.check, f"gradient {place}: {f.message}", f.grade) for f in found]


def distribution(trial: Trial) -> Findings:
    """Check the distribution of a random op's numbers."""
    if trial.callee.name != distributions.SOURCE:
        return None

    def again(seed: int) -> Tensor:
        return trial.again(seed=seed, grad=False).tensors[0]

    return distributions.check(trial.case.op, trial.found.tensors[0], again)


def leak(trial: Trial) -> Findings:
    """Check that calls keep no memory: memory in use does not grow with them."""
    if sum(tensor.numel() for tensor in trial.sample.tensors) > LEAK_SIZE:
        return None

    # torch's gradients of pools write at the given indices, invalid ones outside of their memory
    graded = not _cpu_refuses(trial) and _same_choices(trial)

    def once() -> None:
        found = trial.again()
        if graded and len(found.roots) == len(trial.expected.seeds):
            with trial.subject.active():
                found.gradients(trial.expected.seeds)

    grown = memory.kept(once, trial.subject.device)
    return [
        Finding("leak", f"each call keeps about {size} bytes of the {name}'s memory")
        for name, size in grown.items()
    ]


# In this order. `always`: in every case; the others in a share of the cases in the quick tier.
Check = Callable[[Trial], Findings]
CHECKS: dict[str, Check] = {
    "structure": structure,
    "torch": outside.by_torch,  # before other checks call the kernel
    "dtype": dtype,
    "shape": shape,
    "strides": strides,
    "values": values,
    "statistics": distribution,
    "inputs": inputs,
    "backward": backward,
    "out": partial(with_out, "out"),
    "out_strided": partial(with_out, "out_strided"),
    "out_transposed": partial(with_out, "out_transposed"),
    "out_resized": partial(with_out, "out_resized"),
    "inplace": inplace,
    "determinism": determinism,
    "signed_zero": outside.signed_zero,
    "alias": outside.alias,
    "uninitialised": outside.uninitialised,
    "outside": outside.around,
    "cache": outside.cached,
    "batch": outside.batch,
    "layout": outside.layout,
    "leak": leak,
}
# after a failure of these the other checks do not apply
FATAL = frozenset({"structure", "dtype", "shape"})
