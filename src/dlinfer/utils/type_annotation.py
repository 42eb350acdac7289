# SPDX-License-Identifier: Apache-2.0
"""The published records of how experts are spread: what frameworks make and hand on.

dlinfer's ops run on one device: `dlinfer.ops` takes them and leaves them alone.
"""

from __future__ import annotations

import enum
from typing import Any


class MoECommType(enum.Enum):
    """How tokens reach the devices of their experts."""

    MC2 = enum.auto()
    ALLTOALL = enum.auto()
    ALLGATHER = enum.auto()


class MoeMetadata:
    """Whatever a framework notes down."""

    def __init__(self, **noted: Any) -> None:
        vars(self).update(noted)
