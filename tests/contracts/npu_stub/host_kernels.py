"""Kernels for the stub: torch's CPU kernels, on the memory that the stub of the driver gave out.

Memory, views and plain copies stay torch_npu's own: what is tried is its package, not a chip's
numbers. Random numbers are the CPU's generator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library
from torch.utils._pytree import tree_flatten, tree_map_only

KEY = "PrivateUse1"
# torch_npu's own stay: they allocate memory from the driver, or are views
OWN = """
_copy_from_and_resize _local_scalar_dense _pin_memory _reshape_alias as_strided empty empty_like
empty_strided is_pinned new_empty_strided record_stream resize_ resize_as_ set_ squeeze unfold
unsqueeze view view_as_complex view_as_real
""".split()

Kernel = Callable[..., Any]


def install() -> Library:
    """Registers them; they are there as long as the library that is returned."""
    library = Library("aten", "IMPL")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(KEY):
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if namespace == "aten" and packet is not None and base not in OWN:
            op = getattr(packet, overload or "default")
            make = SPECIAL.get(base, _on_host)
            library.impl(rest, make(op), KEY, with_keyset=base == "copy_", allow_override=True)
    return library


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the same memory; a new one where there is none to share."""
    if tensor.is_cpu:
        return tensor
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    shared = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), torch.device("cpu"), storage.nbytes()
    )
    plain = torch.empty(0, dtype=tensor.dtype)
    plain.set_(shared, tensor.storage_offset(), tensor.size(), tensor.stride())
    return plain.conj() if tensor.is_conj() else plain


def _on_host(op: torch._ops.OpOverload) -> Kernel:
    """The op on the host's view of its tensors; what it writes is theirs, what it makes new."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = tree_flatten((args, kwargs))[0]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        where = kwargs.get("device") or next((t.device for t in tensors if not t.is_cpu), None)
        views = {id(tensor): host(tensor) for tensor in tensors}
        owners = {id(views[id(tensor)]): tensor for tensor in tensors}
        host_args, host_kwargs = tree_map_only(
            torch.Tensor, lambda tensor: views[id(tensor)], (args, kwargs)
        )
        host_kwargs |= {"device": "cpu"} if "device" in kwargs else {}
        result = op(*host_args, **_with_own_generator(host_kwargs))

        def back(made: torch.Tensor) -> torch.Tensor:
            owner = owners.get(id(made))
            return _moved(made, where) if owner is None else _grown(owner, made)

        return tree_map_only(torch.Tensor, back, result)

    return kernel


def _with_own_generator(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The CPU's kernels draw from the CPU's generator."""
    return {k: None if isinstance(v, torch.Generator) else v for k, v in kwargs.items()}


def _moved(made: torch.Tensor, where: Any) -> torch.Tensor:
    moved = torch.empty_strided(made.size(), made.stride(), dtype=made.dtype, device=where)
    if made.numel():
        host(moved).copy_(made)
    return moved


def _grown(owner: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The tensor that was written; an `out` that was too small has another size now."""
    if owner.shape != view.shape:
        owner.resize_(view.shape)
        host(owner).copy_(view)
    return owner


def _copy(op: torch._ops.OpOverload) -> Kernel:
    """torch_npu's own where bytes move as they are; what casts or strides computes."""
    own = torch.library.get_kernel(op, KEY)

    def copy_(keys: Any, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
        same = to.dtype == source.dtype and to.shape == source.shape
        if same and to.is_contiguous() and source.is_contiguous():
            return own.call_boxed(keys, to, source, non_blocking)
        host(to).copy_(host(source))
        return to

    return copy_


def _contiguous(op: torch._ops.OpOverload) -> Kernel:
    def contiguous(
        tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        done = tensor.is_contiguous(memory_format=memory_format)
        return tensor if done else tensor.clone(memory_format=memory_format)

    return contiguous


SPECIAL: dict[str, Callable[[torch._ops.OpOverload], Kernel]] = {
    "copy_": _copy,
    "contiguous": _contiguous,
}
