"""The ops, as torch ops: `fused.rms_norm(x, weight, eps)` is `torch.ops.dlinfer.rms_norm`.

They are the same in eager code and under torch.compile. `dlinfer.ops` has the published names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# each declares its ops
from dlinfer.fused import activation, attention, cache, moe, norm, products, rotation  # noqa: F401
from dlinfer.op import OPS

globals().update({name: op.overload for name, op in OPS.items()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
