# SPDX-License-Identifier: Apache-2.0
"""Random numbers of an iteration: generated on the host from seeds, equal on every device."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from op_tools.compare.eligibility import unfit
from op_tools.core import op_names
from op_tools.core.call import Call, device_of
from op_tools.core.options import Options
from op_tools.core.tool import Started
from op_tools.tensors.host_transfer import random_state_kept
from op_tools.tools.fallback import OpFallback, give_back


class HostRandom(OpFallback):
    """Runs calls with random numbers on the host, from a seed for each layer."""

    hook = "OneIterationHook"

    def __init__(self, on: Callable[[], bool]) -> None:
        super().__init__()
        self._options = lambda: Options()  # type: ignore[assignment]
        self._on = on
        self._drawn: Counter[str] = Counter()

    def restart(self, path: str) -> None:
        """Begin a call of a layer; a repeated call gets equal numbers."""
        self._drawn[path] = 0

    def wants(self, name: str) -> bool:
        return op_names.last(name) in op_names.RANDOM

    def works_on(self, device: torch.device | None) -> bool:
        return True

    def selects(self, call: Call) -> bool:
        return self._on() and bool(unfit(call)) and call.kwargs.get("generator") is None

    def substitute(self, call: Call) -> Any:
        device = device_of(call.args, call.kwargs) or torch.device("cpu")
        seed = zlib.crc32(f"{call.module}#{self._drawn[call.module]}".encode())
        self._drawn[call.module] += 1
        with random_state_kept():
            torch.default_generator.manual_seed(seed)
            if device.type == "cpu":
                return call.run()
            done = self._on_host(call, device)
        return give_back(call, done, device)

    def finish(self, started: Started) -> None:
        """Print nothing."""
