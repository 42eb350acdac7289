# SPDX-License-Identifier: Apache-2.0
"""The published records of the distribution of experts, which frameworks create and pass on.

dlinfer's ops run on one device: `dlinfer.ops` accepts and ignores these records.
"""

from __future__ import annotations

import enum
from typing import Any


class MoECommType(enum.Enum):
    """The communication by which tokens reach the devices of their experts."""

    MC2 = enum.auto()
    ALLTOALL = enum.auto()
    ALLGATHER = enum.auto()


class MoeMetadata:
    """Arbitrary attributes that a framework sets."""

    def __init__(self, **noted: Any) -> None:
        vars(self).update(noted)
