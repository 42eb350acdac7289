# SPDX-License-Identifier: Apache-2.0
"""Captured calls, replayed on any device and compared with their captured results.

`load_cases(path)` finds captures, `replay(case, device)` replays one, `differences` compares.
"""

from op_tools.replay.allowed_functions import ReplayError
from op_tools.replay.case import (
    Case,
    Prepared,
    Replayed,
    copy_to,
    default_device,
    home,
    load_cases,
    replay,
    target_device,
)
from op_tools.replay.verdicts import differences

__all__ = [
    "Case", "Prepared", "ReplayError", "Replayed", "copy_to", "default_device", "differences",
    "home", "load_cases", "replay", "target_device",
]  # fmt: skip
