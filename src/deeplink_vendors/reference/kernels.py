# SPDX-License-Identifier: Apache-2.0
"""Every diopi op as a kernel of the reference device: torch's CPU, on the device's own bytes.

Not used by default: the device's engine calls the CPU's kernels directly, which is faster.
`DIPU_KERNELS=deeplink_vendors.reference.kernels` runs the device through the interface, like a chip
with a kernel for every op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diopi import Op, all_ops, signature
from torch_dipu import _C


def _kernel(op: Op) -> Callable[..., Any]:
    meaning, seeded = op.meaning, op.kind == "random"
    overload, named = _overload(op)
    tensors = [at for at, argument in enumerate(op.arguments) if argument.type == "Tensor"]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        fits = kwargs.keys() <= named and not _has_number(args, tensors)
        function = overload if fits else meaning
        return _C.call_on_host(function, args, kwargs, seeded)

    kernel.__name__ = kernel.__qualname__ = op.name
    kernel.__signature__ = signature(op)  # type: ignore[attr-defined]
    return kernel


_NUMBERS = (int, float, complex)


def _has_number(args: tuple[Any, ...], tensors: list[int]) -> bool:
    for at in tensors:  # noqa: SIM110  # `any` is an op: here it is a kernel
        if at < len(args) and isinstance(args[at], _NUMBERS):
            return True
    return False


def _overload(op: Op) -> tuple[Callable[..., Any], frozenset[str]]:
    """Return the ATen overload of the meaning, which is faster by itself, and its names for the
    op's
    arguments; the meaning where it differs.
    """
    found = getattr(op.meaning, "overload", "")
    if not found:
        return op.meaning, frozenset()
    base, _, name = found.partition(".")
    overload = getattr(getattr(torch.ops.aten, base), name or "default")
    theirs = {a.name: a.has_default_value() for a in overload._schema.arguments}
    by_name = [a for a in op.arguments if a.kwarg_only or not a.required]
    same = all(a.name in theirs and theirs[a.name] is not a.required for a in by_name)
    return (overload, frozenset(theirs)) if same else (op.meaning, frozenset())


globals().update({name: _kernel(op) for name, op in all_ops().items() if op.available})
