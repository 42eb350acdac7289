# SPDX-License-Identifier: Apache-2.0
"""dlinfer: fused operators for serving large models, one interface for frameworks and chips."""

from dlinfer import fused, ops
from dlinfer.cache import Layout, cache_layout, new_cache
from dlinfer.capture import Captured, capture
from dlinfer.framework import Applied, Checked, Report, apply, check, report
from dlinfer.kernels import Fallback, fallbacks, routes, using
from dlinfer.registry import OPS, FusedOp

__all__ = [
    "OPS",
    "Applied",
    "Captured",
    "Checked",
    "Fallback",
    "FusedOp",
    "Layout",
    "Report",
    "apply",
    "cache_layout",
    "capture",
    "check",
    "fallbacks",
    "fused",
    "new_cache",
    "ops",
    "report",
    "routes",
    "using",
]
