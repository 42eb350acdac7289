# SPDX-License-Identifier: Apache-2.0
"""One training iteration, recorded on one device and compared layer by layer on another."""

from op_tools.one_iter.result import Finding
from op_tools.one_iter.tool import OneIteration

__all__ = ["Finding", "OneIteration"]
