# SPDX-License-Identifier: Apache-2.0
"""The primitives of nn.DataParallel, which torch has for CUDA alone, as copies between devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import comm

from ditorch.patches import Patches
from ditorch.target import Target

Tensor = torch.Tensor


def apply(patches: Patches, target: Target) -> None:
    """Replace the functions of torch.nn.parallel.comm."""

    def device(index: Any) -> torch.device:
        if isinstance(index, int):
            return torch.device("cpu") if index < 0 else target.at(index)
        found = target.name(index)
        return found if isinstance(found, torch.device) else torch.device(str(found))

    def broadcast(
        tensor: Tensor, devices: Sequence[Any] | None = None, *, out: Sequence[Tensor] | None = None
    ) -> Any:
        if (devices is None) == (out is None):
            raise RuntimeError(
                f"Exactly one of 'devices' and 'out' must be specified, found {devices}, {out}"
            )
        if out is not None:
            return tuple(copy.copy_(tensor) for copy in out)
        return tuple(tensor.to(device(index)) for index in devices or ())

    def broadcast_coalesced(
        tensors: Sequence[Tensor], devices: Sequence[Any], buffer_size: int = 10485760
    ) -> Any:
        return [[tensor.to(device(index)) for tensor in tensors] for index in devices]

    def reduce_add(inputs: Sequence[Tensor], destination: Any = None) -> Tensor:
        where = device(
            torch.accelerator.current_device_index() if destination is None else destination
        )
        total = inputs[0].to(where, copy=True)
        for other in inputs[1:]:
            if other.shape != total.shape:
                raise ValueError(
                    f"expected inputs of shape {tuple(total.shape)}, found {tuple(other.shape)}"
                )
            total += other.to(where)
        return total

    def reduce_add_coalesced(
        inputs: Sequence[Sequence[Tensor]], destination: Any = None, buffer_size: int = 10485760
    ) -> Any:
        return tuple(reduce_add(list(group), destination) for group in zip(*inputs, strict=True))

    def scatter(
        tensor: Tensor,
        devices: Sequence[Any] | None = None,
        chunk_sizes: Sequence[int] | None = None,
        dim: int = 0,
        streams: Any = None,
        *,
        out: Sequence[Tensor] | None = None,
    ) -> Any:
        if out is not None:
            sizes = [piece.size(dim) for piece in out]
            pieces = zip(out, tensor.split(sizes, dim), strict=True)
            return tuple(to.copy_(piece) for to, piece in pieces)
        wanted = [device(index) for index in devices or ()]
        sizes_or_count = list(chunk_sizes) if chunk_sizes is not None else None
        chunks = (
            tensor.split(sizes_or_count, dim) if sizes_or_count else tensor.chunk(len(wanted), dim)
        )
        return tuple(chunk.to(where) for chunk, where in zip(chunks, wanted, strict=False))

    def gather(
        tensors: Sequence[Tensor], dim: int = 0, destination: Any = None, *, out: Any = None
    ) -> Tensor:
        if out is not None:
            where = out.device
        else:
            where = device(
                torch.accelerator.current_device_index() if destination is None else destination
            )
        result = torch.cat([tensor.to(where) for tensor in tensors], dim)
        return result if out is None else out.copy_(result)

    for function in (
        broadcast,
        broadcast_coalesced,
        reduce_add,
        reduce_add_coalesced,
        scatter,
        gather,
    ):
        patches.replace(comm, function.__name__, function)
    if not target.has_index:
        _on_the_host_alone(patches)


def _on_the_host_alone(patches: Patches) -> None:
    """Run the module itself on a single host device, as torch does when it finds no device."""

    def forward(self: torch.nn.DataParallel[Any], *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def data_parallel(
        module: torch.nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        return module(*arguments, **(module_kwargs or {}))

    patches.replace(torch.nn.DataParallel, "forward", forward)
    patches.replace(torch.nn.parallel, "data_parallel", data_parallel)
