"""Many tensors of a device copied or cast by a few kernels, where a kernel more is what costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from op_tools import kernels

MANY = 8  # tensors from which on they are worth to be put together
_AS_THEY_ARE: dict[torch.dtype, torch.dtype] = {}


def alike_of(tensors: Sequence[Tensor]) -> Hashable:
    """What lists of tensors of the same shapes and types have in common."""
    helper = kernels.loaded()
    if helper is not None:
        found: bytes = helper.shapes_of(list(tensors))
        return found
    return tuple([(tensor.shape, tensor.dtype) for tensor in tensors])


def copies(
    tensors: Sequence[Tensor], types: Mapping[torch.dtype, torch.dtype] = _AS_THEY_ARE
) -> list[Tensor]:
    """Copies on the device of each, cast by `types`, in memory and with counts of their own."""
    made: list[Tensor] = list(tensors)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, tensor in enumerate(tensors):
        if len(tensors) < MANY or not tensor.is_contiguous():
            made[at] = one(tensor, types)
        else:
            groups.setdefault((tensor.device, tensor.dtype), []).append(at)
    for (_, dtype), places in groups.items():
        flat = flattened([tensors[at] for at in places])
        flat = flat.to(types.get(dtype, dtype))
        # not split(): its pieces share a count of writes
        pieces = flat.unsafe_split_with_sizes([tensors[at].numel() for at in places])
        for at, piece in zip(places, pieces, strict=True):
            made[at] = piece if tensors[at].dim() == 1 else piece.view(tensors[at].shape)
    return made


def flattened(tensors: list[Tensor]) -> Tensor:
    """All elements of tensors of one type, in one new tensor."""
    if len(tensors) == 1:
        return tensors[0].detach().flatten().clone()
    return torch._C._nn.flatten_dense_tensors(tensors).detach()  # the loop is torch's


def one(tensor: Tensor, types: Mapping[torch.dtype, torch.dtype]) -> Tensor:
    """A copy of one."""
    if tensor.requires_grad and torch.is_grad_enabled():
        tensor = tensor.detach()
    wanted = types.get(tensor.dtype, tensor.dtype)
    return tensor.clone() if wanted == tensor.dtype else tensor.to(wanted)
