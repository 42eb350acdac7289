# SPDX-License-Identifier: Apache-2.0
"""Checks of someone else's kernels: the result depends on the arguments' values alone.

They do not apply to the kernels of a vendor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from diopi.conformance.cases.case import Finding
from diopi.conformance.cases.sample import Sample
from diopi.conformance.checks.trial import Findings, Trial, line
from diopi.conformance.execution.running import Run, host, run, same_bits
from diopi.conformance.outside import watching
from diopi.conformance.outside.watching import OTHER, Watch
from diopi.op import all_ops

SHARE = 0.5  # of the elements of the arguments; a smaller call of torch is a part of the work


def by_torch(trial: Trial) -> Findings:
    """Check that the kernel does not leave the work to torch's own operator."""
    watch = _watch(trial)
    if watch is None or trial.subject.allow_torch or trial.case.op in watch.opaque:
        return None
    if trial.callee.name in trial.subject.problems:
        return _all_by_torch(trial, watch)
    op = all_ops()[trial.case.op]
    own = set(op.aten)
    sizes = {name: count for name, count in watch.called.items() if name in own}
    if watch.called and not sizes:  # torch splits the op: into one other operator?
        parts = _leaves(trial)
        if len(parts) == 1:
            sizes = {name: count for name, count in watch.called.items() if name in parts}
    if not sizes or sum(sizes.values()) < SHARE * watch.elements:
        return []
    return [Finding("torch", f"computed by torch's own operator: {', '.join(sorted(sizes))}")]


def _all_by_torch(trial: Trial, watch: Watch) -> list[Finding]:
    """Return a finding when the candidate of a problem calls all that the reference calls."""
    wanted = _leaves(trial)
    if wanted and wanted <= set(watch.called):
        text = f"computed by torch's own operators: {', '.join(sorted(wanted))}"
        return [Finding("torch", text)]
    return []


def _leaves(trial: Trial) -> set[str]:
    try:
        args, kwargs = trial.sample.args, trial.sample.kwargs
        detached = pytree.tree_map_only(Tensor, lambda t: t.detach(), (args, kwargs))
        return watching.leaves(trial.callee.function, *detached)
    except Exception:  # limits of the CPU
        return set()


def uninitialised(trial: Trial) -> Findings:
    """Check that the result does not depend on what fresh memory holds."""
    if (watch := _watch(trial)) is None or trial.case.op in watch.opaque:
        return None
    text = "the result depends on uninitialised memory"
    return _independent(trial, "uninitialised", text, {"fresh": OTHER})


def around(trial: Trial) -> Findings:
    """Check that the result does not depend on memory around the arguments."""
    text = "the result depends on memory outside of its arguments"
    return _independent(trial, "outside", text, {"margin": OTHER})


def _independent(trial: Trial, check: str, text: str, changed: dict[str, Any]) -> Findings:
    watch = _watch(trial)
    if watch is None or not trial.comparable:
        return None
    with watch.surrounded(**changed):
        second = trial.again(grad=False)
    if _same(second, trial.found):
        return []
    if not _same(trial.again(grad=False), trial.found):
        return None  # two runs differ anyway, which `determinism` reports
    return [Finding(check, text)]


def cached(trial: Trial) -> Findings:
    """Check that a call with the same tensors and other values computes its result anew."""
    watch = _watch(trial)
    if watch is None or not trial.comparable or not trial.sample.tensors:
        return None
    other = _other_values(trial.sample)
    if other is None:
        return None
    function = trial.subject.takes(trial.callee).function
    results: list[Any] = []

    def twice(*args: Any, **kwargs: Any) -> Any:
        given = _tensors(args, kwargs)
        with watch.direct():
            first = function(*args, **kwargs)
            results.append(_copied(first))
            with torch.no_grad(), _disable_current_modes():
                for tensor, values in zip(given, other, strict=True):
                    if values is not None:
                        tensor.detach().copy_(values)
            second = function(*args, **kwargs)
        memory = {tensor.untyped_storage().data_ptr() for tensor in given}
        views = any(t.untyped_storage().data_ptr() in memory for t in _tensors(first))
        results.append(results[0] if views else _copied(first))
        return second

    try:
        second = trial.again(function=twice, grad=False)
        changed = iter(other)
        values = pytree.tree_map_only(
            Tensor, lambda t: _with(t, next(changed)), (trial.sample.args, trial.sample.kwargs)
        )
        fresh = replace(trial, sample=replace(trial.sample, args=values[0], kwargs=values[1]))
        wanted = fresh.again(grad=False)
    except Exception:  # the call is invalid for these values
        return None
    before, after = results
    found = []
    if not all(map(same_bits, before, after)):
        found.append(Finding("cache", "a second call overwrites the result of the first"))
    stale = all(same_bits(host(a), b) for a, b in zip(second.tensors, before, strict=True))
    if stale and not _same(second, wanted):
        found.append(
            Finding("cache", "a call with the same tensors and other values gives the old result")
        )
    return found


def _copied(result: Any) -> list[Tensor]:
    return [host(leaf).clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _tensors(*values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _other_values(sample: Sample) -> list[Tensor | None] | None:
    """Return the floating tensors with their elements in another order; None if nothing changes."""
    found: list[Tensor | None] = []
    for tensor in sample.tensors:
        plain = tensor.is_floating_point() and 0 not in tensor.stride() and tensor.numel() > 1
        if not plain or tensor.layout != torch.strided:
            found.append(None)
            continue
        flat = tensor.detach().reshape(-1)
        found.append((flat.roll(1) * 0.75).reshape(tensor.shape))
    return found if any(one is not None for one in found) else None


def _with(tensor: Tensor, values: Tensor | None) -> Tensor:
    if values is None:
        return tensor
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.copy_(values)


def batch(trial: Trial) -> Findings:
    """Check that a row gives equal bits alone and within every batch."""
    if _watch(trial) is None or not trial.comparable or not trial.found.tensors:
        return None
    whole = [host(t) for t in trial.found.tensors]
    wanted = trial.expected.plain_results
    size = whole[0].shape[0] if whole[0].dim() else 0
    if size < 2 or any(not t.dim() or t.shape[0] != size for t in whole):
        return None
    if any(not judged.grade or judged.grade == "F" for judged in trial.judged):
        return None  # a wrong result is reported already
    made = 0
    for first, last in _parts(size):
        sample = next(_sliced(trial, wanted, first, last, size), None)
        if sample is None:
            return None
        alone = replace(trial, sample=sample).again(grad=False)
        made += 1
        pairs = zip(alone.tensors, whole, strict=True)
        if not all(same_bits(host(a), b[first:last]) for a, b in pairs):
            rows = f"row {first}" if last - first == 1 else f"rows {first} to {last - 1}"
            text = f"{rows} of {size} alone differ from the same rows of the batch, by rounding"
            return [Finding("batch", text, "B")]
    return [] if made else None


def _parts(size: int) -> list[tuple[int, int]]:
    found = [(0, 1), (size - 1, size)]
    if size > 3:
        found += [(size // 2, size // 2 + 1), (1, 3)]
    return found


def _sliced(
    trial: Trial, wanted: list[Tensor], first: int, last: int, size: int
) -> Iterator[Sample]:
    """Yield the arguments of some rows alone, if the rows are independent by the op's meaning."""
    tensors = [t for t in trial.sample.tensors if t.dim() and t.shape[0] == size]
    for chosen in ([*tensors[:1]], tensors):
        keys = {id(t) for t in chosen}
        values = pytree.tree_map_only(
            Tensor,
            lambda t, keys=keys: t.detach()[first:last] if id(t) in keys else t,  # type: ignore[misc]
            (trial.sample.args, trial.sample.kwargs),
        )
        sample = replace(trial.sample, args=values[0], kwargs=values[1])
        try:
            mine = [host(t) for t in run(trial.callee, sample, grad=False).tensors]
        except Exception:  # limits of the CPU
            continue
        parts = [t[first:last] for t in wanted]
        if chosen and len(mine) == len(parts) and all(map(_close, mine, parts)):
            yield sample


def _close(mine: Tensor, wanted: Tensor) -> bool:
    """Whether two results of torch are equal but for rounding."""
    if mine.shape != wanted.shape:
        return False
    if not mine.is_floating_point():
        return same_bits(mine, wanted)
    return torch.allclose(mine.double(), wanted.double(), rtol=1e-2, atol=1e-2, equal_nan=True)


def layout(trial: Trial) -> Findings:
    """Check that equal values in another layout give equal bits."""
    if _watch(trial) is None or not trial.comparable or not trial.sample.laid:
        return None
    if any(judged.grade == "F" for judged in trial.judged):
        return None
    try:
        dense = trial.again(grad=False, dense=True)
    except Exception as error:  # contiguous arguments are another case, which reports it
        return [Finding("layout", f"contiguous arguments: {line(error)}", "B")]
    if _same(dense, trial.found):
        return []
    text = f"the layout {trial.case.layout} and contiguous arguments differ by rounding"
    return [Finding("layout", text, "B")]


def alias(trial: Trial) -> Findings:
    """Check that a result is no view of an argument, unless torch's is one."""
    if _watch(trial) is None or not trial.sample.tensors:
        return None
    if not _shares(trial.found) or _shares(trial.expected.plain):
        return []
    return [Finding("alias", "a result is in the memory of an argument")]


def _shares(found: Run) -> bool:
    given = {_memory(tensor) for tensor in found.given} - {0}
    return any(_memory(tensor) in given for tensor in found.tensors)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def signed_zero(trial: Trial) -> Findings:
    """Check the sign of zeros, where it is part of an operator's result."""
    op = all_ops().get(trial.case.op)
    if _watch(trial) is None or op is None or not op.signed_zero or not trial.comparable:
        return None
    found = []
    pairs = zip(trial.found.tensors, trial.expected.plain_results, strict=False)
    for mine, wanted in pairs:
        result = host(mine)
        if not result.is_floating_point() or result.shape != wanted.shape:
            continue
        zeros = (result == 0) & (wanted == 0)
        wrong = int((zeros & (result.signbit() != wanted.signbit())).sum())
        if wrong:
            found.append(Finding("signed_zero", f"{wrong} zeros have the wrong sign"))
    return found


def _same(a: Run, b: Run) -> bool:
    mine, theirs = a.tensors, b.tensors
    if len(mine) != len(theirs):
        return False
    return all(same_bits(host(x), host(y)) for x, y in zip(mine, theirs, strict=True))


def _watch(trial: Trial) -> Watch | None:
    return trial.subject.watch
