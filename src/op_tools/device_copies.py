"""Copies of what a call was given and made, on its device; and from there on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from op_tools import bulk, host, reference
from op_tools.call import tensor_list
from op_tools.comparison import Taken
from op_tools.gradients import Gradients


def copies_of(values: Sequence[Any]) -> host.Copies:
    """Copies of all tensors among the values, on their devices."""
    found = list({id(tensor): tensor for tensor in tensor_list(*values)}.values())
    made = zip(found, bulk.copies(found), strict=True)
    return host.Copies(lambda tensor: tensor.detach().clone(), made)


def copied(found: Gradients) -> Gradients:
    """Copies of gradients, on their devices."""
    copies = copies_of((found.outputs, found.inputs))
    return Gradients(copies.of(found.outputs), copies.of(found.inputs), found.complete)


def hosted(taken: Taken) -> Taken:
    """The same with copies on the host."""
    copies = host.Copies(host.host_copy)
    again = taken.again
    call = replace(again.call, args=copies.of(again.call.args), kwargs=copies.of(again.call.kwargs))
    requires = frozenset(id(copy) for own, copy in copies if id(own) in again.requires)
    again = replace(again, call=call, requires=requires, place=reference.HOST)
    result, after = copies.of(taken.result), [copies.of(t) for t in taken.after]
    return replace(taken, again=again, result=result, after=after, run=None)


def gradients_on_host(found: Gradients | None) -> Gradients | None:
    if found is None:
        return None
    copies = host.Copies(host.host_copy)
    outputs, inputs = copies.of(found.outputs), copies.of(found.inputs)
    return Gradients(outputs, inputs, found.complete)
