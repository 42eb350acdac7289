# SPDX-License-Identifier: Apache-2.0
"""The checks of an op's other forms: `out=` and in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deeplink.errors import NoKernelError
from diopi import resolve
from diopi.conformance.cases.case import Finding
from diopi.conformance.checks import residuals
from diopi.conformance.checks.trial import Findings, Trial, line
from diopi.conformance.execution.guarded import Guarded, guarded
from diopi.conformance.execution.running import host, run, same_bits


def with_out(kind: str, trial: Trial) -> Findings:
    """Check that `out=` is written completely, and nothing outside of it."""
    if kind == "out_transposed" and not any(_turns(t) for t in trial.expected.plain.tensors):
        return None
    form = _form(trial)
    if form is None or not trial.comparable or not trial.found.tensors:
        return None
    rooms = [guarded(t, kind, trial.subject.device) for t in trial.expected.plain.tensors]
    try:
        with trial.subject.calls.guarding(rooms):
            trial.again(extra=form.named(rooms), function=form.vendors, grad=False)
    except NoKernelError:
        raise  # a form that the vendor does not have
    except Exception as error:  # whatever it raises: compared with the CPU
        if _cpu_refuses(trial, kind):
            return None
        return [Finding(kind, f"raised {type(error).__name__}: {line(error)}")]
    found: list[Finding] = []
    for place, room in enumerate(rooms):
        if where := room.outside():
            if _cpu_refuses(trial, kind):  # torch itself changes some layouts
                return None
            if not trial.subject.calls.overruns:  # overruns name the function
                found.append(Finding("guard", f"{kind}: result {place}: the call wrote {where}"))
        mine = host(room.tensor)
        unique = trial.callee.name not in residuals.RESIDUALS
        if unique and not same_bits(mine, host(trial.found.tensors[place])):
            found += trial.grade(kind, mine, place, lambda: _cpu_outs(trial, kind))
    return found


@dataclass(frozen=True)
class _Form:
    """The keywords of `out=`: torch's, or the names of an op's results."""

    names: tuple[str, ...] = ()
    vendors: Callable[..., Any] | None = None  # replaces the callee's function
    cpus: Callable[..., Any] | None = None
    single: bool = False

    def named(self, rooms: Sequence[Guarded]) -> dict[str, Any]:
        tensors = tuple(room.tensor for room in rooms)
        if self.names:
            return dict(zip(self.names, tensors, strict=True))
        return {"out": tensors[0] if self.single else tensors}


def _form(trial: Trial) -> _Form | None:
    """Return the `out=` form of a call,
    or of an op called by its own name if a C function has it.
    """
    callee, subject = trial.callee, trial.subject
    if callee.has_out:
        return _Form(single=isinstance(trial.expected.plain.result, Tensor))
    found = subject.kernels.get(callee.name)
    if not callee.direct or found is None or not subject.calls.functions:
        return None
    if len(trial.expected.plain.tensors) != len(found.op.result_names) or found.op.written:
        return None
    return _Form(found.op.result_names, found.out, resolve.out_form(found.op, found.op.meaning))


def _turns(tensor: Tensor) -> bool:
    """Whether the layout changes when the first dimension is contiguous."""
    return sum(size > 1 for size in tensor.shape) > 1 and bool(tensor.numel())


def _cpu_refuses(trial: Trial, kind: str) -> bool:
    try:
        return not _cpu_outs(trial, kind)
    except Exception:  # any error counts: limits of the CPU
        return True


def _cpu_outs(trial: Trial, kind: str) -> list[Tensor]:
    """Return what the CPU writes into `out=`; empty when it writes outside as well."""
    form = _form(trial)
    assert form is not None
    rooms = [guarded(t, kind, "cpu") for t in trial.expected.plain.tensors]
    run(trial.callee, trial.sample, extra=form.named(rooms), function=form.cpus, grad=False)
    return [] if any(room.outside() for room in rooms) else [room.tensor for room in rooms]


def inplace(trial: Trial) -> Findings:
    """Check that the in-place form gives the expected result in its argument's memory."""
    first = trial.sample.args[0] if trial.sample.args else None
    wanted = trial.expected.plain.tensors
    function = trial.callee.inplace
    if function is None or not isinstance(first, Tensor) or not trial.comparable:
        return None
    if 0 in first.stride():  # elements share memory: writing has no defined result
        return None
    if len(wanted) != 1 or wanted[0].dtype != first.dtype or wanted[0].shape != first.shape:
        return None
    try:
        mine = trial.again(function=function, grad=False)
    except NoKernelError:
        raise  # a form that the vendor does not have
    except Exception as error:  # whatever it raises: compared with the CPU
        try:
            run(trial.callee, trial.sample, function=function, grad=False)
        except Exception:  # limits of the CPU
            return None
        return [Finding("inplace", f"raised {type(error).__name__}: {line(error)}")]
    written = host(mine.given[0])
    found: list[Finding] = []
    if not mine.tensors or mine.tensors[0].data_ptr() != mine.given[0].data_ptr():
        found.append(Finding("inplace", "it does not return its argument"))
    if not same_bits(written, host(trial.found.tensors[0])):
        found += trial.grade("inplace", written, 0, lambda: _cpu_inplace(trial))
    return found


def _cpu_inplace(trial: Trial) -> list[Tensor]:
    return run(trial.callee, trial.sample, function=trial.callee.inplace, grad=False).given[:1]
