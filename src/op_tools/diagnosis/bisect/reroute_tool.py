# SPDX-License-Identifier: Apache-2.0
"""OpReroute: runs the calls of a plan on the CPU or in higher precision, and counts all calls.

`deeplink bisect` writes the plan of each run of the program, and reads the counts after it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.errors import SettingError
from op_tools.core.call import Call
from op_tools.core.filters import Selection, signature
from op_tools.core.op_names import is_random, last
from op_tools.core.options import Options
from op_tools.core.tool import Started
from op_tools.tensors import host_transfer
from op_tools.tensors.host_transfer import converted, random_numbers_of
from op_tools.tools.dtype_cast import CONVERSIONS, OpDtypeCast
from op_tools.tools.fallback import (
    OpFallback,
    computing_device,
    dtypes_on_device,
    give_back,
    run_on_copies,
)

Where = tuple[str, str, str, str]  # operator, module, site, direction
WIDE_ON_CPU = "cpu-float64"


@dataclass(frozen=True)
class Plan:
    """Which calls are rerouted: to the CPU, or to a wider type on the device."""

    instead: str = "cpu"
    level: str = "aten"
    everything: bool = False
    ops: tuple[str, ...] = ()
    places: tuple[Where, ...] | None = None  # of the operators; None: everywhere
    counts: str = ""  # the folder for the counts

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Plan:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingError(f"OP_BISECT_PLAN: {path} cannot be read: {error}.") from None
        places = found.pop("places")
        ops = tuple(found.pop("ops"))
        return Plan(**found, ops=ops, places=None if places is None else tuple(map(tuple, places)))


@dataclass
class Counts:
    """Calls that can be rerouted, by place, and those that were."""

    could: Counter[Where] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)


class OpReroute(OpFallback):
    """OpFallback for the calls of a plan: `plan`, or the file of OP_BISECT_PLAN."""

    hook = "OpRerouteHook"
    wants_modules = True

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan if plan is not None else Plan.read(settings.OP_BISECT_PLAN.get())
        level: Any = self.plan.level
        super().__init__(ops=".*", disable=(), level=level, select=Selection(), devices=())

    def begin(self, options: Options) -> None:
        super().begin(options)
        self.counts = Counts()
        self._ops, self._places = frozenset(self.plan.ops), self.plan.places
        self._chosen = frozenset(self._places or ())
        self._same_numbers: bool | None = None  # of the device and the CPU; None: not determined
        self._drawn: set[str] = set()
        self._types: dict[Hashable, list[torch.dtype]] = {}
        self._cast: OpDtypeCast | None = None
        if self.plan.instead in ("float64", "float32"):
            narrow = ("float16", "bfloat16", "float32")[
                : 3 if self.plan.instead[-2:] == "64" else 2
            ]
            casts = dict.fromkeys(narrow, self.plan.instead)
            self._cast = OpDtypeCast(casts=casts)
            self._cast.begin(Options(more={"casts": casts}))

    def substitute(self, call: Call) -> Any:
        device = computing_device(call)
        if device is None:
            return NotImplemented
        if self._is_drawn(call.name, device):
            return NotImplemented
        site = call.site.short if call.site is not None else ""
        where = (call.name, call.module, site, call.direction)
        self.counts.could[where] += 1
        if not (self.plan.everything or call.name in self._ops):
            return NotImplemented
        if self._places is not None and where not in self._chosen:
            return NotImplemented
        before = None if self._same_numbers else host_transfer.stream_of(device)
        result = self._instead(call, device)
        if not self._same_numbers and _moved(before, host_transfer.stream_of(device)):
            self._drawn.add(call.name)  # the CPU generates other random numbers than the device
            del self.counts.could[where]
            return NotImplemented
        if result is not NotImplemented:
            self.counts.did[call.name] += 1
        return result

    def _is_drawn(self, name: str, device: torch.device) -> bool:
        """Whether a call uses random numbers that the CPU cannot generate. Such a call is not
        rerouted: runs would differ.
        """
        if self._same_numbers is None:
            self._same_numbers = host_transfer.draws_as_cpu(device)
        return not self._same_numbers and (is_random(name) or name in self._drawn)

    def _instead(self, call: Call, device: torch.device) -> Any:
        if self._cast is not None:
            return self._cast.substitute(call)
        if self.plan.instead == WIDE_ON_CPU and last(call.name) not in CONVERSIONS:
            return self._wide(call, device)
        return super().substitute(call)

    def _wide(self, call: Call, device: torch.device) -> Any:
        """Run on the CPU in float64, and round: a correct result with other rounding."""
        if any(isinstance(v, torch.dtype) for v in (*call.args, *call.kwargs.values())):
            return super().substitute(call)
        key = signature(call)
        if key not in self._types:
            self._types[key] = dtypes_on_device(call, device)
        wanted = iter(self._types[key])
        try:
            with random_numbers_of(device) as draws:
                done = run_on_copies(call, _widened, draws)
        except (RuntimeError, NotImplementedError):  # mixed types, or a missing kernel
            return super().substitute(call)
        if done.has_view:
            return NotImplemented
        done.cast(lambda _: next(wanted))
        return give_back(call, done, device)

    def finish(self, started: Started) -> None:
        if not self.plan.counts:
            return
        path = Path(self.plan.counts) / f"counts-{settings.rank()}-{os.getpid()}.json"
        could = [[*where, count] for where, count in self.counts.could.items()]
        path.write_text(
            json.dumps({"could": could, "did": dict(self.counts.did)}), encoding="utf-8"
        )


def _moved(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether random numbers were generated between two states."""
    if before is None or after is None:
        return False  # the generator is new; names of operators cover most cases
    return not torch.equal(before, after)


def _widened(tensor: Tensor) -> Tensor:
    return converted(tensor, _CPU, torch.float64 if tensor.is_floating_point() else None)


_CPU = torch.device("cpu")


def counted(folder: Path) -> Counts:
    """The counts of all processes of a run; incomplete files are left out."""
    found = Counts()
    for file in sorted(folder.glob("counts-*.json")):
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            continue
        for name, module, site, direction, count in read["could"]:
            found.could[name, module, site, direction] += count
        found.did.update(read["did"])
    return found
