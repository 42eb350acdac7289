# SPDX-License-Identifier: Apache-2.0
"""An engine of LMDeploy in a process of its own, as its server has it."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from dlinfer.framework.lmdeploy.sites import CHIPS, DEVICE_TYPE


class Condition:
    """LMDeploy's condition between the processes, which the other side ends as soon as it knows
    what it waits for: on a busy machine before this side has let go.
    """

    def __init__(self, condition: Any) -> None:
        self.condition = condition

    def __enter__(self) -> None:
        self.condition.__enter__()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(EOFError, OSError):
            self.condition.__exit__(None, None, None)

    def notify(self) -> None:
        """Wakes the other side."""
        self.condition.notify()


def engine(shared_dict: Any, condition: Any, **named: Any) -> None:
    """What runs there: a new process does not know the device type yet."""
    home: Any = importlib.import_module("lmdeploy.pytorch.engine.mp_engine.zmq_engine")
    stock = home.ZMQMPEngine._mp_proc
    kind = getattr(named.get("engine_config"), "device_type", "")
    if kind == DEVICE_TYPE:
        importlib.import_module("dlinfer.framework.lmdeploy").register()
    elif kind in CHIPS:
        importlib.import_module("dlinfer.framework.lmdeploy_ext")
    stock(shared_dict, Condition(condition), **named)
