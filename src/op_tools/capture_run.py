"""One start of OpCapture: where it writes, how much of that is left, what became of the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from deeplink import settings
from op_tools import diagnostics, gradients, report, results
from op_tools.awaited import Awaited
from op_tools.call import Call, tensors
from op_tools.capture_report import size
from op_tools.folders import FolderStore
from op_tools.interception import Plan
from op_tools.packed import PackedStore
from op_tools.snapshot import Unsupported
from op_tools.statistics_store import StatisticsStore
from op_tools.store import Header, Part, encode
from op_tools.taking import Taker

TENSORS_SHARE = 0.9  # of the budget; the rest is for statistics


class Store(Protocol):
    """What holds the parts of calls."""

    native: bool
    place: Any
    files: int

    @property
    def bytes(self) -> int: ...
    @property
    def failed(self) -> str: ...
    def write(self, part: Part) -> None: ...
    def close(self) -> None: ...


FORMATS: dict[str, Callable[[bool, bool], Store]] = {
    "folders": lambda sampled, everything: FolderStore(),
    "packed": lambda sampled, everything: PackedStore(None, sampled, everything),
}


def begun(format: str, mode: str, sampled: bool, everything: bool) -> Run:
    """A start. Unless `sampled`, every kernel is seen, and no write to a tensor escapes; with
    `everything`, every call of a step is seen, if one is.
    """
    tensors = mode == "tensors"
    return Run(
        mode,
        FORMATS[format](sampled, everything) if tensors else None,
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
        self._packed = self.store if isinstance(self.store, PackedStore) else None
        packed = self._packed  # takes values as they are; what is shown needs snapshots of them
        self._whole = None if packed is None or not packed.whole or self.verbose else packed

    def taker(self) -> Taker:
        return Taker(self._packed)

    def forget(self, *tensors: Tensor) -> None:
        """Tensors were written."""
        if self._packed is not None:
            self._packed.forget(tensors)
        if self.statistics is not None:
            for tensor in tensors:
                self.statistics.forget(tensor)

    def forget_all(self) -> None:
        """Any tensor may be written unseen."""
        if self._packed is not None:
            self._packed.forget_all()

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

    def put(self, kind: str, header: Header, args: tuple[Any, ...], kwargs: Any, more: Any) -> None:
        """A part of a call with its values as they are now, unless that has failed before."""
        assert self.store is not None
        whole = self._whole
        if whole is not None:
            self._guarded(header, whole.put, kind, header, args, kwargs, more)
            return
        taken, native = self.taker(), self.store.native
        changed = more.get("mutated")
        if changed:
            more = {**more, "mutated": {at: taken(tensor) for at, tensor in changed.items()}}
        encoded = tuple([encode(item, taken, native) for item in args])
        named = {key: encode(item, taken, native) for key, item in kwargs.items()}
        self.write(Part(kind, header, encoded, named, more))

    def direct(self, plan: Plan, heads: Callable[[], Any]) -> Any:
        """What takes calls of a plan natively, as their start is told by `heads`; None: nothing."""
        whole = self._whole
        if whole is None or plan.level != "api" or plan.name.startswith("torch.distributed."):
            return None
        return whole.taking(plan, heads(), self._missed)

    def _missed(self, name: str, error: Exception | str, results: bool) -> None:
        """Natively something of a call, or of its results, was not taken."""
        if isinstance(error, Unsupported):
            self.skipped[f"the result is {error}" if results else str(error)] += 1
            self.calls -= not results  # it was counted
            return
        if isinstance(error, OSError):
            self.quiet = f"{type(error).__name__}: {error.strerror or error}"
        problem = error if isinstance(error, Exception) else RuntimeError(error)
        diagnostics.add("OpCapture", name, problem)

    def arguments(self, call: Call) -> Any:
        """Where its arguments hang in the graph: a native watch, or `gradients.Arguments`."""
        return gradients.arguments(call) if self._whole is None else self._whole.watch(call.given)

    def taken(self, gradient: Tensor) -> Any:
        """A gradient as it is now, to be written later."""
        assert self.store is not None
        whole = self._whole
        if whole is not None:
            return whole.piece(gradient)
        return encode(gradient, self.taker(), self.store.native)

    def write(self, part: Part) -> None:
        """A part whose values were taken, unless that has failed before."""
        assert self.store is not None
        whole = self._whole
        if whole is None:
            self._guarded(part.header, self.store.write, part)
        else:
            given = part.args, part.kwargs, part.more
            self._guarded(part.header, whole.put, part.kind, part.header, *given)

    def _guarded(self, header: Header, write: Callable[..., None], *given: Any) -> None:
        if self.quiet:
            return
        try:
            write(*given)
        except OSError as error:  # a full disk, a folder that is gone: nothing more is tried
            self.quiet = f"{type(error).__name__}: {error.strerror or error}"
            diagnostics.add("OpCapture", header["name"], error)

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
