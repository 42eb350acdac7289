# SPDX-License-Identifier: Apache-2.0
"""dlinfer: fused operators for serving large models, one interface for frameworks and chips."""

from dlinfer import fused, ops
from dlinfer.cache import Layout, cache_layout, new_cache
from dlinfer.capture import Captured, capture
from dlinfer.framework import Applied, apply
from dlinfer.kernels import Fallback, fallbacks, routes, using
from dlinfer.registry import OPS, FusedOp

__all__ = [
    "OPS",
    "Applied",
    "Captured",
    "Fallback",
    "FusedOp",
    "Layout",
    "apply",
    "cache_layout",
    "capture",
    "fallbacks",
    "fused",
    "new_cache",
    "ops",
    "routes",
    "using",
]
