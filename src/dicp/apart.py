# SPDX-License-Identifier: Apache-2.0
"""Decompositions of dlinfer's fused ops to plain torch, for compilers that fuse them themselves.

The other ops of dlinfer (attention over a paged cache, writes to the cache, experts) keep their
kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

COMMON = (
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rotary",
    "linear",
    "dense_attention",
)


def of_dlinfer(*more: str) -> Callable[[], Mapping[Any, Callable[..., Any]]]:
    """Return `Backend.apart` for the common ops of dlinfer and the named ones."""

    def apart() -> Mapping[Any, Callable[..., Any]]:
        # where dlinfer is not imported, no graph has any of its ops
        registry = sys.modules.get("dlinfer.registry")
        ops = registry.OPS if registry else {}
        return {ops[name].overload: ops[name].apart for name in (*COMMON, *more) if name in ops}

    return apart
