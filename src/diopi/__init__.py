# SPDX-License-Identifier: Apache-2.0
"""The standard operator interface: the arguments, meaning and published names of each op."""

from diopi.legacy import call
from diopi.op import MISSING, Argument, Kind, Op, all_ops, by_aten, by_legacy, get, signature

__all__ = [
    "MISSING",
    "Argument",
    "Kind",
    "Op",
    "all_ops",
    "by_aten",
    "by_legacy",
    "call",
    "get",
    "signature",
]
