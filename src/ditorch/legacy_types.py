# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.FloatTensor and similar types: classes of one dtype on the target's device."""

from __future__ import annotations

from typing import Any

import torch

from ditorch.target import Target

DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}


class _TensorType(type):
    """Metaclass: calls create tensors;
    any tensor of its dtype and layout on the device is an instance.
    """

    dtype: torch.dtype
    layout: torch.layout
    target: Target

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
            and instance.device.type in ("cuda", cls.target.device)
        )

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        """Create a tensor as torch's legacy constructors do: from sizes, a sequence,
        a tensor or a storage.
        """
        where: Any = cls.target.name("cuda" if device is None else device)
        if cls.layout is torch.strided:
            empty = torch.empty(0, dtype=cls.dtype, device=where)
            return empty.new(*args, **kwargs)
        return _sparse(args, cls.dtype, where)


def _sparse(args: tuple[Any, ...], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Create a sparse tensor from indices and values, optionally a size; or from a size alone."""
    if args and isinstance(args[0], torch.Tensor):
        indices, values, *size = args
        return torch.sparse_coo_tensor(indices, values, *size, dtype=dtype, device=device)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
    return torch.empty(sizes or (0,), dtype=dtype, device=device, layout=torch.sparse_coo)


class _StorageType(type):
    """Metaclass: calls create storages; typed storages of its dtype on the device are instances."""

    dtype: torch.dtype
    target: Target

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.TypedStorage)
            and instance._dtype == cls.dtype
            and instance._untyped_storage.device.type in ("cuda", cls.target.device)
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.TypedStorage:
        where: Any = cls.target.name(kwargs.pop("device", None) or "cuda")
        return torch.TypedStorage(*args, dtype=cls.dtype, device=where, **kwargs)


def make(name: str, target: Target, before: type) -> type:
    """Create the class for a name such as "FloatTensor", "sparse.FloatTensor" or "FloatStorage"."""
    last = name.rpartition(".")[2]
    body: dict[str, Any] = {
        "__module__": before.__module__,
        "__qualname__": last,
        "__doc__": before.__doc__,
        "is_cuda": True,
        "is_sparse": name.startswith("sparse."),
        "target": target,
    }
    if last.endswith("Storage"):
        body["dtype"] = body["_dtype"] = DTYPES[last.removesuffix("Storage")]
        return _StorageType(last, (), body)
    body["dtype"] = DTYPES[last.removesuffix("Tensor")]
    body["layout"] = torch.sparse_coo if body["is_sparse"] else torch.strided
    return _TensorType(last, (), body)
