# SPDX-License-Identifier: Apache-2.0
"""Results in the memory of arguments, and writes behind the end of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from op_tools.core.call import Call, tensor_list
from op_tools.tensors import mutation


def lies_in_arguments(result: Any, call: Call) -> bool:
    """Whether a call computed nothing: its results lie in the memory of its arguments."""
    if isinstance(call.func, OpOverload) and call.func._schema.is_mutable:
        return False
    memory = {t.untyped_storage()._cdata for t in tensor_list(result) if t.numel()}
    return bool(memory) and memory <= {t.untyped_storage()._cdata for t in call.inputs}


def wait_for_host(device: torch.device, result: Any) -> None:
    """Synchronize with the device if results are on the host: their copy may not be finished."""
    if type(result) is Tensor and not result.is_cpu:  # hot path
        return
    if device.type == "cpu" or all(t.device.type != "cpu" for t in tensor_list(result)):
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


GUARD = 256  # bytes behind a result that are checked


def guards(call: Call) -> list[tuple[Tensor, Tensor]]:
    """The memory behind the argument that the call declares as written, if it is a part of a larger
    allocation, with a copy on the host.
    """
    written = mutation.declared(call)
    if len(written) != 1:  # the memory behind one of them may be another one
        return []
    memory = _behind(next(tensor for tensor in call.inputs if id(tensor) in written))
    return [] if memory is None else [(memory, memory.cpu())]


def _behind(tensor: Tensor) -> Tensor | None:
    """The bytes behind a dense tensor in its allocation, on the device; None: there are none."""
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
    """A description of the writes to the memory of `guards`; "" when there are none."""
    for memory, before in guards:
        changed = int((memory.cpu() != before).sum())
        if changed:
            return f"{changed} bytes behind the result were written"
    return ""
