# SPDX-License-Identifier: Apache-2.0
"""Conformance of fused ops on a device: hard cases of every op, judged by its meaning in float64.

A vendor's own test file has two lines:

from dlinfer.conformance import conformance
test_fused_ops = conformance("acme")
"""

from dlinfer.conformance import guest
from dlinfer.conformance.case import CASES, Case, cases
from dlinfer.conformance.check import conformance, wrong

__all__ = ["CASES", "Case", "cases", "conformance", "guest", "wrong"]
