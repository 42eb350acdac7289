"""The ops, as torch ops: `ops.rms_norm(x, weight, eps)` in eager code and under torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# each declares its ops
from dlinfer.op import OPS
from dlinfer.ops import activation, attention, cache, moe, norm, products, rotation  # noqa: F401

globals().update({name: op.overload for name, op in OPS.items()})
__all__ = list(OPS)  # noqa: PLE0605

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
