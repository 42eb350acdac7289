# SPDX-License-Identifier: Apache-2.0
"""Whose memory a call's result lies in, and what a kernel wrote where it had nothing to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from op_tools.core import op_names
from op_tools.core.call import Call, tensor_list, tensors
from op_tools.tensors.mutation import written_by_schema


def lies_in_arguments(result: Any, call: Call) -> bool:
    """Whether a call computed nothing: what it returned lies in the memory of its arguments."""
    if isinstance(call.func, OpOverload) and call.func._schema.is_mutable:
        return False
    made = [result] if type(result) is Tensor else tensor_list(result)
    found = [t.untyped_storage()._cdata for t in made if t.numel()]
    if not found:
        return False
    given = [t.untyped_storage()._cdata for t in call.given]
    return set(found).issubset(given)


def wait_for_host(device: torch.device, result: Any) -> None:
    """A copy to the host may still be under way."""
    if type(result) is Tensor and not result.is_cpu:  # hot path
        return
    if device.type == "cpu" or all(t.device.type != "cpu" for t in tensors(result)):
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


GUARD = 256  # bytes behind a result that are looked at


def guards(call: Call) -> list[tuple[Tensor, Tensor]]:
    """Memory behind arguments that the call may write and that are a part of something larger,
    each with a copy of it on the host.
    """
    written = _may_write(call)
    if len(written) != 1:  # what lies behind the one may be the other
        return []
    memory = _behind(written[0])
    if memory is None:
        return []
    return [(memory, memory.cpu())]


def _may_write(call: Call) -> list[Tensor]:
    if isinstance(call.func, OpOverload):
        return written_by_schema(call)
    written: list[Any] = [call.kwargs.get("out")]
    if op_names.last(call.name).endswith("_") and call.args:
        written.append(call.args[0])
    return list(tensors(written))


def _behind(tensor: Tensor) -> Tensor | None:
    """A few bytes of the same allocation behind a dense tensor, as they are on the device."""
    if not tensor.numel() or not tensor.is_contiguous():
        return None
    storage, size = tensor.untyped_storage(), tensor.element_size()
    end = (tensor.storage_offset() + tensor.numel()) * size
    length = min(GUARD, storage.nbytes() - end)
    if length <= 0:
        return None
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(storage, end, (length,), (1,))


def overrun(guards: Sequence[tuple[Tensor, Tensor]]) -> str:
    """What of that memory has changed; "" when nothing has."""
    for memory, before in guards:
        changed = int((memory.cpu() != before).sum())
        if changed:
            return f"{changed} bytes behind the result were written"
    return ""
