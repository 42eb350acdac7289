# SPDX-License-Identifier: Apache-2.0
"""Device tensors between processes: the consumer maps the producer's memory, as CUDA IPC does."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from types import ModuleType
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_dipu import _C

# Sent memory that may still be in use: read end of a pipe -> the memory. The consumer holds the
# write end, which is closed with the consumer's tensor or process.
_sent: dict[int, torch.UntypedStorage] = {}


def collect() -> None:
    """Release memory whose consumers have closed their end."""
    for token in _readable(list(_sent)):
        os.close(token)
        del _sent[token]


def register(chip: ModuleType) -> None:
    """Register this device's tensors with torch.multiprocessing."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce_tensor)


def _readable(tokens: list[int]) -> list[int]:
    poller = select.poll()
    for token in tokens:
        poller.register(token, select.POLLIN | select.POLLHUP)
    return [token for token, _ in poller.poll(0)]


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "dipu":
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd "
            "does not support crossing process boundaries. Hint: call detach() first."
        )
    collect()
    arguments = (type(tensor), tensor.device.index, tensor.dtype, tuple(tensor.shape))
    layout = (tensor.stride(), tensor.storage_offset(), tensor.requires_grad)
    if tensor.untyped_storage().nbytes() == 0:
        return _rebuild, (*arguments, *layout, None)
    torch.get_device_module("dipu").synchronize(tensor.device)
    fd, offset, nbytes = _C.export_memory(tensor)
    reader, writer = os.pipe()
    _sent[reader] = tensor.untyped_storage()
    memory = (DupFd(fd), DupFd(writer), offset, nbytes)
    os.close(writer)  # DupFd has its own copy
    return _rebuild, (*arguments, *layout, memory)


def _rebuild(
    kind: type[torch.Tensor],
    index: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    memory: tuple[Any, Any, int, int] | None,
) -> torch.Tensor:
    device = torch.device("dipu", index)
    if memory is None:
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    else:
        shared, token, start, nbytes = memory
        fd = shared.detach()
        try:
            raw = _C.import_bytes(index, fd, start, nbytes, token.detach())
        finally:
            os.close(fd)
        tensor = torch.empty(0, dtype=dtype, device=device)
        tensor.set_(raw.untyped_storage(), offset, shape, stride)
    make: Callable[..., torch.Tensor] = kind if kind is torch.nn.Parameter else _plain
    return make(tensor, requires_grad=requires_grad)


def _plain(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return tensor.requires_grad_(requires_grad)
