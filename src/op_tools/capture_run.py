"""One start of OpCapture: where it writes, how much of that is left, what became of the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from deeplink import settings
from op_tools import diagnostics, report, results
from op_tools.awaited import Awaited
from op_tools.call import Call, tensors
from op_tools.capture_report import size
from op_tools.folders import FolderStore
from op_tools.packed import PackedStore
from op_tools.snapshot import Blob, snapshots
from op_tools.statistics_store import StatisticsStore
from op_tools.store import Header, Part, encode

TENSORS_SHARE = 0.9  # of the budget; the rest is for statistics


class Store(Protocol):
    """What holds the parts of calls."""

    native: bool  # whether tuples and torch's own small types stay as they are
    place: Any
    files: int

    @property
    def bytes(self) -> int: ...
    @property
    def failed(self) -> str: ...
    def take(self, tensor: Tensor) -> Blob: ...
    def write(self, part: Part) -> None: ...
    def close(self) -> None: ...


FORMATS: dict[str, Callable[[], Store]] = {"folders": FolderStore, "packed": PackedStore}


def begun(format: str, mode: str, sampled: bool, everything: bool) -> Run:
    """A start. Unless `sampled`, every kernel is seen, and no write to a tensor escapes; with
    `everything`, every call of a step is seen, if one is. Both concern statistics alone.
    """
    tensors = mode == "tensors"
    return Run(
        mode,
        FORMATS[format]() if tensors else None,
        None if tensors else StatisticsStore(mode == "hash", sampled, everything),
        settings.OP_TOOLS_DISK_BUDGET.get() > 0,
    )


@dataclass
class Run:
    """What one start has, and what it has seen."""

    mode: str
    store: Store | None
    statistics: StatisticsStore | None
    limited: bool
    awaited: Awaited = field(default_factory=Awaited)
    heads: Any = None  # of lines that are written natively
    calls: int = 0
    quiet: str = ""  # why nothing more is written
    limits: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.verbose = report.verbose()

    def forget(self, *tensors: Tensor) -> None:
        """Tensors were written."""
        if self.statistics is not None:
            for tensor in tensors:
                self.statistics.forget(tensor)

    def mode_of(self, call: Call) -> str:
        """What is still written: tensors, statistics of them, or nothing."""
        if self.store is not None and self.store.failed and not self.quiet:
            self.quiet = self.store.failed
        if self.quiet:
            return "nothing"
        if self.limited:
            self._keep_to_budget(call)
        return self.mode

    def _keep_to_budget(self, call: Call) -> None:
        if self.mode == "tensors":
            need = sum(t.numel() * t.element_size() for t in tensors(call.args, call.kwargs))
            if not results.budget.allows(2 * need + 8192, TENSORS_SHARE):
                self.mode, self.statistics = "statistics", StatisticsStore(False)
                self.limits.append(f"after {self.calls} calls only statistics were written")
        elif self.mode != "nothing" and not results.budget.allows(4096):
            self.mode = "nothing"
            self.limits.append(f"after {self.calls} calls nothing was written")

    def put(self, kind: str, header: Header, args: Any, kwargs: Any, more: Any) -> None:
        """Write a part of a call with the values of its tensors as they are now."""
        if self.quiet:
            return
        assert self.store is not None
        taken, native = snapshots(self.store.take), self.store.native
        if more.get("mutated"):
            after = {at: taken(tensor) for at, tensor in more["mutated"].items()}
            more = {**more, "mutated": after}
        encoded = tuple([encode(item, taken, native) for item in args])
        named = {key: encode(item, taken, native) for key, item in kwargs.items()}
        self.write(Part(kind, header, encoded, named, more))

    def taken(self, gradient: Tensor) -> Any:
        """A gradient as it is now, to be written later."""
        assert self.store is not None
        return encode(gradient, snapshots(self.store.take), self.store.native)

    def write(self, part: Part) -> None:
        """Write a part of a call whose tensors were taken, unless a write has failed before."""
        assert self.store is not None
        if self.quiet:
            return
        try:
            self.store.write(part)
        except OSError as error:  # a full disk, a folder that is gone: nothing more is tried
            self.quiet = f"{type(error).__name__}: {error.strerror or error}"
            diagnostics.add("OpCapture", part.header["name"], error)

    def close(self) -> None:
        """Waits until everything is written."""
        for kept in (self.store, self.statistics):
            if kept is not None:
                kept.close()

    def summary(self) -> list[str]:
        """What is said at the end."""
        lines = []
        if self.calls:
            lines.append(
                f"OpCapture: {self.calls} calls of {len(self.operators)} operators, "
                + " and ".join(
                    f"{size(kept.bytes)} in {kept.place}"
                    for kept in (self.store, self.statistics)
                    if kept is not None and kept.bytes
                )
            )
        for reason, count in self.skipped.most_common():
            lines.append(f"OpCapture: {count} calls not captured: {reason}")
        if self.limits:
            limit = size(settings.OP_TOOLS_DISK_BUDGET.get())
            lines.append(f"OpCapture: OP_TOOLS_DISK_BUDGET of {limit}: {', '.join(self.limits)}")
        if self.quiet:
            lines.append(f"OpCapture: nothing more was written after: {self.quiet}")
        return lines
