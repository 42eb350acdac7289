# SPDX-License-Identifier: Apache-2.0
"""The history of memory, and snapshots that include it, in torch.cuda.memory's form.

torch's viewer reads them: `python -m torch.cuda._memory_viz`, pytorch.org/memory_viz.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_dipu import _C
from torch_dipu.dipu.device import Device, index_of

STACKS = (None, "state", "alloc", "all")  # in the order of the core's numbers


def _record_memory_history(
    enabled: bool | str | None = "all",
    context: bool | str | None = "all",
    stacks: str | int = "all",
    max_entries: int | bool = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
    **legacy: Any,
) -> None:
    """Record the stack of each allocation ("state"), and each event too ("all"); None switches off.

    `context` selects whose stacks: None, "state" (live blocks), "alloc" (events of allocation),
    "all". `stacks` is "python" or "all" (C++ too). `record_pinned_host_memory` adds events of
    pinned host memory, and `record_cuda=False` leaves out the device's. A bool for `enabled` is the
    older form of the call.
    """
    if isinstance(enabled, bool):
        older = _older(enabled, context, stacks, max_entries, legacy)
        enabled, context, stacks, max_entries = older
        legacy = {}
    if enabled not in (None, "state", "all") or context not in STACKS or legacy:
        raise ValueError(
            f"expected enabled=None, 'state' or 'all' and context=None, 'state', 'alloc' or 'all', "
            f"found enabled={enabled!r}, context={context!r}{', ' if legacy else ''}"
            + ", ".join(f"{key}={value!r}" for key, value in legacy.items())
        )
    if stacks not in ("python", "all"):
        raise ValueError(f"expected stacks='python' or 'all', found {stacks!r}")
    events = enabled == "all"
    kept = 0 if enabled is None else STACKS.index(context)
    _C.record_memory_history(
        enabled is not None,
        events,
        kept,
        stacks == "all",
        max_entries,
        clear_history,
        list(skip_actions or ()),
        record_cuda,
        record_pinned_host_memory,
    )


def _older(
    enabled: bool, context: Any, entries: Any, with_context: Any, named: dict[str, Any]
) -> tuple[str | None, str | None, str, int]:
    """Convert the older form: (enabled, record_context, trace_alloc_max_entries,
    trace_alloc_record_context).
    """
    keep = named.get("record_context", context is not False and context is not None)
    most = named.get("trace_alloc_max_entries", 1 if isinstance(entries, str) else entries)
    of_events = named.get("trace_alloc_record_context", with_context is True)
    stacks = "all" if named.get("record_context_cpp") else "python"
    return (
        "all" if enabled else None,
        "alloc" if keep and of_events else "state" if keep else None,
        stacks,
        int(most),
    )


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return every segment with its blocks and every event, with stacks; of one device, or of all.

    `host_segments` and `host_traces` are those of pinned host memory.
    """
    found: dict[str, Any] = _C.snapshot_with_history()
    if device is not None:
        index = index_of(device)
        found["segments"] = [s for s in found["segments"] if s["device"] == index]
        traces = found["device_traces"]
        found["device_traces"] = [t if i == index else [] for i, t in enumerate(traces)]
    found["allocator_settings"] = {}
    found["external_annotations"] = []
    return found


def _dump_snapshot(
    filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write _snapshot() to a file that torch's viewer opens."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)
