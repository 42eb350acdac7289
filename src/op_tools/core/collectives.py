# SPDX-License-Identifier: Apache-2.0
"""Calls of torch.distributed: how many bytes, in how large a group, at what bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from op_tools.core import op_names
from op_tools.core.call import Call, held_bytes, tensors

# The kind of a collective by its name in torch.distributed, c10d and the functional collectives.
_KINDS: dict[str, str] = {
    **dict.fromkeys("all_reduce allreduce_ allreduce_coalesced_ all_reduce_".split(), "all_reduce"),
    **dict.fromkeys(
        "all_gather all_gather_into_tensor all_gather_single _all_gather_base allgather_ "
        "_allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_".split(),
        "all_gather",
    ),
    **dict.fromkeys(
        "reduce_scatter reduce_scatter_tensor reduce_scatter_single _reduce_scatter_base "
        "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_".split(),
        "reduce_scatter",
    ),
    **dict.fromkeys("all_to_all all_to_all_single alltoall_ alltoall_base_".split(), "all_to_all"),
    **dict.fromkeys("broadcast broadcast_".split(), "broadcast"),
    **dict.fromkeys("reduce reduce_".split(), "reduce"),
    **dict.fromkeys("gather gather_ scatter scatter_".split(), "gather"),
    **dict.fromkeys("send isend recv irecv recv_ recv_any_source_".split(), "send"),
    **dict.fromkeys("barrier monitored_barrier".split(), "barrier"),
}


@dataclass(frozen=True)
class Collective:
    """One call of torch.distributed."""

    kind: str
    bytes: int
    size: int  # of the group
    asynchronous: bool

    @property
    def bus_factor(self) -> float:
        """Bytes on the bus for each byte of the algorithm, as nccl-tests count them."""
        others = (self.size - 1) / self.size if self.size else 0.0
        if self.kind == "all_reduce":
            return 2 * others
        return others if self.kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def collective(call: Call, result: Any) -> Collective | None:
    """The collective of a call; None when the call is no collective."""
    kind = kind_of(call.name)
    if not kind:
        return None
    # the largest argument holds the parts of all ranks
    sizes = [sum(map(held_bytes, tensors(value))) for value in _arguments(call)]
    results = result if isinstance(result, (tuple, list)) else (result,)
    group = _process_group(call)
    ranks = int(group.size()) if group is not None else 1
    if group is None and dist.is_initialized():
        ranks = dist.get_world_size()
    asynchronous = any(isinstance(each, dist.Work) for each in results)
    return Collective(kind, 0 if kind == "barrier" else max(sizes, default=0), ranks, asynchronous)


def kind_of(name: str) -> str:
    """The kind of the collective of this name; "" for another operator."""
    if not is_collective(name):
        return ""
    word = op_names.last(name) if name.startswith("torch.") else name.split(".")[1]
    return _KINDS.get(word, "")


def is_collective(name: str) -> bool:
    """Whether a name is one of torch.distributed's."""
    return name.startswith(("torch.distributed.", "c10d.", "_c10d_functional."))


def _arguments(call: Call) -> list[Any]:
    return [*call.args, *call.kwargs.values()]


def group_ranks(call: Call) -> list[int]:
    """The ranks of a collective's group; empty: another operator, or an unknown group."""
    if not is_collective(call.name) or not dist.is_initialized():
        return []
    try:
        return list(dist.get_process_group_ranks(_process_group(call) or dist.group.WORLD))
    except (RuntimeError, KeyError, ValueError):  # a group that torch has not registered
        return []


def _process_group(call: Call) -> dist.ProcessGroup | None:
    functional = call.name.startswith("_c10d_functional.")
    for value in _arguments(call):
        if isinstance(value, dist.ProcessGroup):
            return value
        if isinstance(value, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(value)
            except (RuntimeError, TypeError):  # another kind of object: a reduction
                continue
        if functional and isinstance(value, str):
            try:
                return dist.distributed_c10d._resolve_process_group(value)  # type: ignore[attr-defined, arg-type]
            except (RuntimeError, ValueError):  # the name of a reduction
                continue
    return None
