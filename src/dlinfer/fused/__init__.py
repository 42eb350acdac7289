# SPDX-License-Identifier: Apache-2.0
"""The ops as functions: `fused.rms_norm(x, weight, eps)` calls `torch.ops.dlinfer.rms_norm`.

They behave equally in eager code and under torch.compile. `dlinfer.ops` has the published names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlinfer import fast_call

# each module declares its ops
from dlinfer.fused import (  # noqa: F401
    activation,
    attention,
    cache,
    delta,
    moe,
    norm,
    products,
    rotation,
    sparse,
)

globals().update(fast_call.callables())

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
