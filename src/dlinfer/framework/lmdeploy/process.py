# SPDX-License-Identifier: Apache-2.0
"""An engine of LMDeploy in a separate process, for its server."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from dlinfer.framework.lmdeploy.sites import CHIPS, DEVICE_TYPE


class Condition:
    """LMDeploy's condition between the processes. The other side destroys it as soon as it receives
    the result, on a busy machine before this side has released it.
    """

    def __init__(self, condition: Any) -> None:
        self.condition = condition

    def __enter__(self) -> None:
        self.condition.__enter__()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(EOFError, OSError):
            self.condition.__exit__(None, None, None)

    def notify(self) -> None:
        """Wake the other side."""
        self.condition.notify()


def engine(shared_dict: Any, condition: Any, **named: Any) -> None:
    """Run the engine: a new process must register the device type first."""
    home: Any = importlib.import_module("lmdeploy.pytorch.engine.mp_engine.zmq_engine")
    stock = home.ZMQMPEngine._mp_proc
    kind = getattr(named.get("engine_config"), "device_type", "")
    if kind == DEVICE_TYPE:
        importlib.import_module("dlinfer.framework.lmdeploy").register()
    elif kind in CHIPS:
        importlib.import_module("dlinfer.framework.lmdeploy_ext")
    stock(shared_dict, Condition(condition), **named)
