# SPDX-License-Identifier: Apache-2.0
"""The implementation and the number of calls of each operator of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from torch_dipu import _C

__all__ = ["operator_calls", "operator_table"]

By = Literal[
    "kernel",  # the vendor's
    "decomposition",  # others of the vendor's kernels, by torch's decomposition
    "composite",  # torch's own: a sequence of other operators, each of which has its line
    "device",  # the device itself: memory, views, copies
    "host",  # the CPU's kernel, on the device's own bytes
    "cpu",  # the CPU's kernel, on copies: the memory is not reachable, or it is forced
    "nothing",
]
FORCED = 4  # as in csrc/engine/engine.h
COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


@dataclass(frozen=True)
class OperatorRow:
    """One ATen overload: its implementation, the kernel's name, and the counted calls.

    Calls are counted where a vendor's kernels are tried first, and where the CPU is forced.
    """

    overload: str
    by: By
    who: str = ""
    forced: bool = False
    calls: int = 0  # by the named implementation
    host_calls: int = 0  # calls that it refused, or that were forced


def operator_table() -> list[OperatorRow]:
    """Return every ATen overload, by name."""
    known = {row.overload: row for row in map(_engine_row, _C.operator_records())}
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return [known.get(name) or _other(name) for name in sorted(names)]


def operator_calls() -> dict[str, dict[str, int]]:
    """Return the counted calls: overload -> {"kernel": 3, "cpu": 1}."""
    found: dict[str, dict[str, int]] = {}
    for name, _, routes, forced, host, _ in _C.operator_records():
        counts = {kind: 0 for kind, _, _ in routes}
        for kind, _, calls in routes:
            counts[kind] += calls
        counts["cpu"] = forced + (0 if _reachable() else host)
        counts["host"] = host if _reachable() else 0
        counts = {kind: calls for kind, calls in counts.items() if calls}
        if counts:
            found[name] = counts
    return found


def _engine_row(record: tuple[str, int, list[tuple[str, str, int]], int, int, bool]) -> OperatorRow:
    name, special, routes, forced, host, has_host_kernel = record
    if special & FORCED:
        return OperatorRow(name, "cpu", "forced", True, forced, 0)
    for kind, who, calls in routes[:1]:
        return OperatorRow(name, kind, who, False, calls, host)  # type: ignore[arg-type]
    by: By = "host" if _reachable() else "cpu"
    return OperatorRow(name, by if has_host_kernel else "nothing", "", False, host, host)


def _reachable() -> bool:
    return _C.host_reachable(0)


def _other(name: str) -> OperatorRow:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "PrivateUse1"):
        return OperatorRow(name, "device")
    if any(has(name, key) for key in COMPOSITES):
        return OperatorRow(name, "composite", "torch")
    return OperatorRow(name, "nothing")
