# SPDX-License-Identifier: Apache-2.0
"""The place where a program raised or hung; its own lines are always included."""

from __future__ import annotations

import faulthandler
import re
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from types import TracebackType

from op_tools.core.call import is_programs

INNERMOST = 4  # innermost frames of an error
OWN = 8  # frames of the program
LINES = 200
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
FRAME = re.compile(r'File "(.+?)", line (\d+)')


def of_error(trace: TracebackType | None) -> list[str]:
    """The frames of the program and the innermost frames of an error, the last one innermost."""
    frames = traceback.extract_tb(trace)
    last = max(0, len(frames) - INNERMOST)
    own = [at for at in range(last) if is_programs(frames[at].filename)][-OWN:]
    return traceback.format_list([frames[at] for at in own] + frames[last:])


def of_threads() -> list[str]:
    """The stacks of all other threads, the main thread first, innermost frames first."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        parts = [part.splitlines() for part in file.read().strip().split("\n\n")]
    parts = [part for part in parts if not part[0].startswith("Current thread")]
    return [line for part in reversed(parts) for line in part][:LINES]


def site(stack: Sequence[str], innermost_first: bool) -> str:
    """The innermost line of the program, as file:line."""
    found = [FRAME.search(each) for each in stack]
    sites = [(each[1], each[2]) for each in found if each is not None]
    own = [
        f"{file}:{line}"
        for file, line in sites
        if is_programs(file) and not file.startswith(LIBRARIES)
    ]
    return own[0 if innermost_first else -1] if own else ""
