"""Copies of what a call was given and made, on its device; and from there on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from op_tools import bulk, device_parts, host, names, reference
from op_tools.call import Call, tensor_list
from op_tools.comparison import Taken
from op_tools.gradients import Gradients


def copies_of(values: Sequence[Any]) -> host.Copies:
    """Copies of all tensors among the values, on their devices."""
    found = list({id(tensor): tensor for tensor in tensor_list(*values)}.values())
    made = zip(found, bulk.copies(found), strict=True)
    return host.Copies(_clone, made)


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def widened(tensor: Tensor) -> Tensor:
    """A copy, in float64 where that changes no value: the reference needs it so."""
    try:
        return bulk.one(tensor, reference.WIDE)
    except RuntimeError:  # a device without float64
        return tensor.clone()


def copied(found: Gradients) -> Gradients:
    """Copies of gradients, on their devices."""
    copies = copies_of((found.outputs, found.inputs))
    return Gradients(copies.of(found.outputs), copies.of(found.inputs), found.complete)


def only_reads(call: Call) -> bool:
    """Whether a call, as far as its name tells, writes no argument: what is needed of those can be
    taken after it, and, where the reference is in float64, in that at once.
    """
    if call.level != "api" or not _sounds_harmless(call.name):
        return False
    if call.kwargs and ("out" in call.kwargs or call.kwargs.get("inplace")):
        return False
    device = call.device  # what is rounded by autocast is not what was given
    return device is not None and reference.autocast_of(device) is None


@cache
def _sounds_harmless(name: str) -> bool:
    return not names.sounds_in_place(name) and "batch_norm" not in name


def taken_now(taken: Taken, reuse: bool) -> None:
    """Copies of the arguments, which a call has not written, in the place of the program's own.

    With `reuse` those in float64 that the reference was computed from, which no other copy is
    needed beside: no value of a narrower type is changed by that.
    """
    again = taken.again
    own, again.copied = again.call, False
    if reuse:
        try:
            run = device_parts.reference_run(taken)
        except Exception:  # no float64, no kernel, no memory: whatever a device may raise
            reuse = False
    if reuse:
        pairs = list(zip(own.given, run.leaves, strict=True))
        again.narrow = {id(leaf): t.dtype for t, leaf in pairs}
        if run.used is not None:  # hot path
            again.call = own.given_others(*run.used, run.leaves)
            if again.requires:
                wanted = [id(leaf) for t, leaf in pairs if id(t) in again.requires]
                again.requires = tuple(wanted)
            run.used = None
            again.copied = True
            return
        copies = host.Copies(_clone, pairs)
    else:
        copies = copies_of((own.args, own.kwargs))
    again.call = own.given_others(copies.of(own.args), copies.of(own.kwargs))
    again.requires = frozenset(id(copy) for t, copy in copies if id(t) in again.requires)
    again.copied = True


def hosted(taken: Taken) -> Taken:
    """The same with copies on the host, in the types of the call."""
    again = taken.again
    copies = host.Copies(lambda tensor: host.host_copy(tensor).to(again.type_of(tensor)))
    call = replace(again.call, args=copies.of(again.call.args), kwargs=copies.of(again.call.kwargs))
    requires = frozenset(id(copy) for own, copy in copies if id(own) in again.requires)
    again = replace(again, call=call, requires=requires, place=reference.HOST, narrow={})
    result, after = copies.of(taken.result), [copies.of(t) for t in taken.after]
    return replace(taken, again=again, result=result, after=after, run=None, held=0)


def gradients_on_host(taken: Taken, found: Gradients | None) -> Gradients | None:
    """The same of gradients."""
    if found is None:
        return None
    copies = host.Copies(host.host_copy)
    outputs, inputs = copies.of(found.outputs), copies.of(found.inputs)
    types = [tensor.dtype for tensor in taken.results]
    if len(types) == len(outputs):  # else it is a view, of which nothing was widened
        pairs = zip(outputs, types, strict=True)
        outputs = [None if grad is None else grad.to(dtype) for grad, dtype in pairs]
    return Gradients(outputs, inputs, found.complete)
