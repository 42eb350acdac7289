"""A replayed call compared with float64 on the CPU, by the rules of OpAutoCompare."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deeplink import settings
from deeplink.compare import Difference
from op_tools import interception, report
from op_tools.call import Call, tensors
from op_tools.compare import console, eligibility, host_verdicts, precision
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.host_verdicts import Item, Taken
from op_tools.compare.rerun import again_of
from op_tools.gradients import Gradients
from op_tools.host import Copies, host_copy
from op_tools.replay import Prepared, Replayed
from op_tools.store import Recorded
from op_tools.trusted import writes


def taken(prepared: Prepared, again: Replayed, number: int, trust: Sequence[str]) -> Taken:
    """The record that OpAutoCompare makes of a call, for a replayed call that has just run."""
    recorded = prepared.recorded
    host = Prepared(recorded, eligibility.HOST, None, trust, prepared.wants_backward)
    level, cast = recorded.header.get("level", "api"), recorded.header.get("autocast")
    call = Call(number, recorded.name, host.func, host.args, host.kwargs, level)
    call.device = prepared.device
    wrote = bool(recorded.written or recorded.mutated or writes(recorded.name))
    autocast = getattr(torch, cast[1]) if cast else None
    result_types = [tensor.dtype for tensor in tensors(again.result)]
    made = again_of(call, host.wanted, wrote, autocast, result_types)
    made.precision = precision.now(call)
    copies = Copies(host_copy)
    with torch.no_grad(), interception.unseen():
        result, after = copies.of(again.result), copies.of(prepared.given)
        given = call.given_others(prepared.args, prepared.kwargs)
        rows = console.device_rows(given, again.result)
    device, where = str(prepared.device), str(recorded.header.get("site") or "")
    return Taken(made, result, after, prepared.wants_backward, device, rows, where=where)


def compared(taken: Taken, again: Replayed, recorded: Recorded, shown: bool) -> list[Item]:
    """The verdicts by OP_AUTOCOMPARE_STANDARD; NoReferenceError where there is no reference.

    `shown`: print the tables of OpAutoCompare.
    """
    standard = settings.OP_AUTOCOMPARE_STANDARD.get()
    reason = eligibility.unfit(taken.call) or eligibility.kind(taken.results)
    if reason:
        raise NoReferenceError(reason)
    with torch.no_grad(), interception.unseen():
        items = host_verdicts.forward(taken, standard)
        if shown:
            console.show_forward(taken, items)
        if again.gradients is None or recorded.grad_outputs is None:
            return items
        copies = Copies(host_copy)
        sides = copies.of(list(recorded.grad_outputs)), copies.of(again.gradients)
        found = Gradients(*sides, complete=True)
        for gradient, copy in copies:
            taken.on_device[id(copy)] = report.tensor_rows("", gradient)[0][1:]
        backward = host_verdicts.backward(taken, found.outputs, found.inputs, standard)
        if shown:
            console.show_backward(taken, found, backward)
    return items + backward


def difference(item: Item) -> Difference:
    """A verdict as a row of `deeplink.compare`."""
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
