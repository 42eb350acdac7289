"""Every diopi op as a kernel of the reference device: torch's CPU, on the device's own bytes.

Not used by default: without it the device's engine calls the CPU's kernels directly, which is
faster. `DIPU_KERNELS=deeplink_vendors.reference.kernels` runs the device through the interface, as
a chip with a kernel for every op would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diopi import Op, all_ops, signature
from torch_dipu import _C


def _kernel(op: Op) -> Callable[..., Any]:
    meaning, seeded = op.meaning, op.kind == "random"

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _C.call_on_host(meaning, args, kwargs, seeded)

    kernel.__name__ = kernel.__qualname__ = op.name
    kernel.__signature__ = signature(op)  # type: ignore[attr-defined]
    return kernel


globals().update({name: _kernel(op) for name, op in all_ops().items() if op.available})
