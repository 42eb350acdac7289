"""Whose memory a call's result lies in, what a kernel wrote where it had nothing to write, and how
much is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from op_tools import kernels, names, reference
from op_tools.call import Call, tensor_list, tensors
from op_tools.gradients import Gradients


def lies_in_arguments(result: Any, call: Call) -> bool:
    """Whether a call computed nothing: what it returned lies in the memory of its arguments."""
    if isinstance(call.func, OpOverload) and call.func._schema.is_mutable:
        return False
    made = [result] if type(result) is Tensor else tensor_list(result)
    helper = kernels.loaded()
    if helper is not None:  # hot path
        return bool(helper.lie_in(made, call.given))
    found = [t.untyped_storage()._cdata for t in made if t.numel()]
    if not found:
        return False
    given = [t.untyped_storage()._cdata for t in call.given]
    return set(found).issubset(given)


@dataclass(frozen=True)
class Overlap:
    """Arguments of one call and one type whose memory overlaps, as views of one piece of memory."""

    places: tuple[int, ...]  # among the tensors of the call
    views: tuple[tuple[torch.Size, tuple[int, ...], int], ...]  # shape, stride, offset of each
    length: int  # elements


def overlaps(given: list[Tensor]) -> list[Overlap]:
    """The arguments that a write to another argument may change."""
    if len(given) < 2:  # hot path
        return []
    storages: dict[tuple[int, torch.dtype], dict[int, int]] = {}
    for place, tensor in enumerate(given):
        key = tensor.untyped_storage()._cdata, tensor.dtype
        storages.setdefault(key, {}).setdefault(id(tensor), place)
    return [
        overlap
        for members in storages.values()
        if len(members) > 1
        for overlap in _overlaps_in_storage(given, list(members.values()))
    ]


def _overlaps_in_storage(given: list[Tensor], places: list[int]) -> list[Overlap]:
    spans = []  # first element, the one behind the last, place
    for place in places:
        tensor = given[place]
        # copy_() does not write an expanded tensor
        if tensor.numel() and torch._debug_has_internal_overlap(tensor) != 1:
            last = sum(int((n - 1) * s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            begin = int(tensor.storage_offset())
            spans.append((begin, begin + last + 1, place))
    spans.sort()
    groups: list[list[tuple[int, int, int]]] = []
    end = -1
    for span in spans:
        if span[0] >= end:
            groups.append([])
        groups[-1].append(span)
        end = max(end, span[1])
    return [_overlap(given, group) for group in groups if len(group) > 1]


def _overlap(given: list[Tensor], group: list[tuple[int, int, int]]) -> Overlap:
    first, end = group[0][0], max(span[1] for span in group)
    places = tuple([span[2] for span in group])
    views = [(given[at].shape, given[at].stride(), begin - first) for begin, _, at in group]
    return Overlap(places, tuple(views), end - first)


# Nodes whose gradient is a view of what comes in, whatever that is.
_MERE = frozenset(f"{name}Backward0" for name in "T Transpose Permute Unsqueeze Alias".split())


def is_mere_view(result: Any, call: Call) -> bool:
    """Whether a call computed nothing, and its backward pass will not either."""
    if not isinstance(result, Tensor) or not lies_in_arguments(result, call):
        return False
    node = result.grad_fn
    if node is None:
        return not result.requires_grad
    return node.name() in _MERE and node._sequence_nr() == call.sequence


def gradients_are_views(found: Gradients) -> bool:
    """Whether a backward pass computed nothing: what it returned lies in what it was given."""
    flown = {t.untyped_storage()._cdata for t in found.outputs if t is not None}
    return all(t.untyped_storage()._cdata in flown for t in found.inputs if t is not None)


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


def guards(call: Call, on_device: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Memory behind arguments that the call may write and that are a part of something larger,
    and a copy of it, on the host or on the device.
    """
    written = _may_write(call)
    if len(written) != 1:  # what lies behind the one may be the other
        return []
    memory = _behind(written[0])
    if memory is None:
        return []
    return [(memory, memory.clone() if on_device else memory.cpu())]


def _may_write(call: Call) -> list[Tensor]:
    if isinstance(call.func, OpOverload):
        return reference.written_by_schema(call)
    written: list[Any] = [call.kwargs.get("out")]
    if names.last(call.name).endswith("_") and call.args:
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
        changed = int((memory.cpu() != before.cpu()).sum())
        if changed:
            return f"{changed} bytes behind the result were written"
    return ""


UNKNOWN = 1 << 30  # bytes that may be held on a device that does not tell how many it has


def free_on(device: torch.device) -> int:
    """Bytes that a device has left, with those that torch keeps for later."""
    module = getattr(torch, device.type, None)
    try:
        free = int(module.mem_get_info(device)[0])  # type: ignore[union-attr]
        kept = module.memory_reserved(device) - module.memory_allocated(device)  # type: ignore[union-attr]
        return free + int(kept)
    except Exception:  # another device's module may lack any of them, or refuse
        return UNKNOWN
