# SPDX-License-Identifier: Apache-2.0
"""Compare the results of a replay: with the capture or the CPU by tolerances, with float64 by the
rules of OpAutoCompare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from deeplink import settings
from deeplink.compare import Difference, compare
from op_tools.capture.encoding import Recorded
from op_tools.compare import console, eligibility, host_verdicts, precision
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.host_verdicts import Item, RecordedCall
from op_tools.compare.rerun import Rerun, make_rerun
from op_tools.core import dispatch, op_names, terminal
from op_tools.core.call import Call, tensor_list, tensors
from op_tools.core.gradients import Gradients
from op_tools.replay.case import Prepared, Replayed
from op_tools.tensors.host_transfer import Copies, host_copy

# By tolerances.


def differences(
    recorded: Recorded, replayed: Replayed, expected: Replayed | None = None
) -> list[Difference]:
    """Compare a replay with the capture, or with another replay of the call."""
    held = partial(_held, op_names.last(recorded.name)) if expected is not None else compare
    rows: list[Difference] = []
    if expected is not None or recorded.has_output:
        wanted = recorded.output if expected is None else expected.result
        rows += _named("output", held(replayed.result, wanted))
    changed = recorded.mutated if expected is None else expected.mutated
    for at, after in changed.items():
        rows += _named(f"argument[{at}]", held(replayed.mutated[at], after))
    if replayed.gradients is not None and (recorded.complete or expected is not None):
        side = recorded.grad_inputs if expected is None else expected.gradients
        for at, (got, want) in enumerate(zip(replayed.gradients, side or [], strict=False)):
            if want is not None or (expected is not None and got is not None):
                rows += _named(f"grad[{at}]", held(got, want))
    return rows


def _held(operator: str, got: Any, want: Any) -> list[Difference]:
    """Compare with another run, by the tolerance of the operator and the type, or of the type."""
    rows = compare(got, want, check_dtype=False)
    results, expected = tensor_list(got), tensor_list(want)
    if not len(rows) == len(results) == len(expected):
        return rows
    for place, (row, one, other) in enumerate(zip(rows, results, expected, strict=True)):
        dtype = str(one.dtype).removeprefix("torch.")
        tolerance = settings.op_tolerance(operator, dtype)
        if tolerance is not None:
            atol, rtol = tolerance
            (checked,) = compare(one, other.to(one.dtype), atol=atol, rtol=rtol, check_dtype=False)
            row = replace(checked, path=row.path)
        rows[place] = replace(row, dtype=dtype)
    return rows


def _named(label: str, rows: list[Difference]) -> list[Difference]:
    return [replace(row, path=label + row.path) for row in rows]


# By the rules of OpAutoCompare.


def rerun_of(recorded: Recorded, host: Prepared, number: int, result: Any) -> Rerun:
    """The call for a run on the host in higher precision; `result` is what the device computed."""
    level, cast = recorded.header.get("level", "api"), recorded.header.get("autocast")
    call = Call(number, recorded.name, host.func, host.args, host.kwargs, level)
    call.device = host.device
    in_place = op_names.sounds_in_place(recorded.name)
    wrote = bool(recorded.written or recorded.mutated or in_place)
    autocast = getattr(torch, cast[1]) if cast else None
    return make_rerun(call, host.wanted, wrote, autocast, [one.dtype for one in tensors(result)])


def record_of(
    prepared: Prepared, replayed: Replayed, number: int, trust: Sequence[str]
) -> RecordedCall:
    """Make the record of OpAutoCompare for a call that was just replayed."""
    recorded = prepared.recorded
    host = Prepared(recorded, eligibility.HOST, trust, prepared.wants_backward)
    rerun = rerun_of(recorded, host, number, replayed.result)
    call = rerun.call
    call.device = prepared.device
    rerun.precision = precision.now(call)
    copies = Copies(host_copy)
    with torch.no_grad(), dispatch.unseen():
        result, after = copies.of(replayed.result), copies.of(prepared.inputs)
        on_device = call.with_arguments(prepared.args, prepared.kwargs)
        rows = console.device_rows(on_device, replayed.result)
    device, where = str(prepared.device), str(recorded.header.get("site") or "")
    return RecordedCall(rerun, result, after, prepared.wants_backward, device, rows, where=where)


def compared(
    record: RecordedCall, replayed: Replayed, recorded: Recorded, shown: bool
) -> list[Item]:
    """Judge a replay by OP_AUTOCOMPARE_STANDARD; NoReferenceError where there is no reference.

    `shown`: print the tables of OpAutoCompare.
    """
    standard = settings.OP_AUTOCOMPARE_STANDARD.get()
    reason = eligibility.unfit(record.call) or eligibility.kind(record.results)
    if reason:
        raise NoReferenceError(reason)
    with torch.no_grad(), dispatch.unseen():
        items = host_verdicts.forward(record, standard)
        if shown:
            console.show(record, None, items)
        if replayed.gradients is None or recorded.grad_outputs is None:
            return items
        copies = Copies(host_copy)
        sides = copies.of(list(recorded.grad_outputs)), copies.of(replayed.gradients)
        gradients = Gradients(*sides, complete=True)
        for gradient, copy in copies:
            record.on_device[id(copy)] = terminal.tensor_rows("", gradient)[0][1:]
        backward = host_verdicts.backward(record, gradients.outputs, gradients.inputs, standard)
        if shown:
            console.show(record, gradients, backward)
    return items + backward


def difference(item: Item) -> Difference:
    """Convert a verdict to a row of `deeplink.compare`."""
    verdict = item.verdict
    return Difference(
        *(item.label, "values", verdict.passed, str(verdict), verdict.dtype, verdict.shape),
        count=verdict.count,
        mismatched=verdict.wrong,
        max_abs=verdict.max_abs,
        max_rel=verdict.max_rel,
        index=verdict.index,
        result=verdict.result,
        expected=verdict.expected,
    )
