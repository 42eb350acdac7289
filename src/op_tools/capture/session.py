# SPDX-License-Identifier: Apache-2.0
"""One start of OpCapture: the stores, the limit of bytes, and the counts of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from deeplink import settings
from deeplink.i18n import _, joined
from op_tools.capture.async_collectives import Awaited
from op_tools.capture.encoding import Header, Part, encode
from op_tools.capture.folder_store import FolderStore
from op_tools.capture.packed_store import PackedStore
from op_tools.capture.statistics_store import StatisticsStore
from op_tools.core import collectives, output_paths, terminal, tool_errors
from op_tools.core.call import Call, held_bytes, tensor_list
from op_tools.core.gradients import Gradients
from op_tools.core.terminal import size
from op_tools.tensors.mutation import unreturned
from op_tools.tensors.snapshot import Snapshot, device_name, dtype_name, once

TENSORS_SHARE = 0.9  # of the limit; the rest is for statistics
FREE_SHARE = 0.05  # of the free space: the default limit of all ranks together


class Store(Protocol):
    """Writes the parts of calls."""

    native: bool  # tuples and small types of torch are not encoded
    place: Path

    @property
    def bytes(self) -> int: ...
    @property
    def failed(self) -> str: ...
    def take(self, tensor: Tensor) -> Snapshot: ...
    def write(self, part: Part) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


class Writer(Protocol):
    """Writes calls. `begin` and `end` raise Unsupported for a tensor that cannot be written."""

    def begin(self, call: Call, tensors: list[Tensor]) -> Any:
        """Write the arguments before the call; returns its header."""

    def end(self, call: Call, header: Any, result: Any, changed: dict[int, Tensor]) -> None:
        """Write the results, and the arguments that the call has changed."""

    def gradient(self, gradient: Tensor) -> Any:
        """Read a gradient, for `gradients`."""

    def gradients(self, header: Any, gradients: Gradients) -> None:
        """Write the gradients of a call."""


FORMATS: dict[str, Callable[[], Store]] = {"folders": FolderStore, "packed": PackedStore}


def _limit(mode: str) -> int:
    """Bytes that this process may write; 0: no limit, the default for statistics."""
    if settings.OP_TOOLS_DISK_BUDGET.is_set() or mode != "tensors":
        return settings.OP_TOOLS_DISK_BUDGET.get()
    free = output_paths.free_space() * FREE_SHARE / max(1, settings.world())
    return output_paths.budget.spent + int(free)


class Run:
    """The state of one start. `all_inputs`: statistics of every input, see `StatisticsStore`."""

    def __init__(self, format: str, mode: str, every_call: bool, all_inputs: bool) -> None:
        tensors = mode == "tensors"
        self.mode = mode
        self.limit = _limit(mode)  # bytes that the process may write in all; 0: no limit
        self.store: Store | None = FORMATS[format]() if tensors else None
        self.statistics: StatisticsStore | None = None
        if not tensors:
            self.statistics = StatisticsStore(mode == "hash", all_inputs, not self.limit)
        self._awaited = Awaited()
        self.calls = 0
        self.quiet = ""  # the reason why writing has ended
        self.limits: list[str] = []
        self.operators: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.verbose = terminal.verbose()
        self._every_call = every_call  # not only some calls of each signature
        self._spent = output_paths.budget.spent  # by the process before the start
        self._step: int | None = None  # the first one
        self._forecast_shown = False

    @property
    def limited(self) -> bool:
        """Whether the bytes that may be written are bounded."""
        return self.limit > 0

    def mode_of(self, call: Call) -> str:
        """What is written of a call: "tensors", "statistics", "hash" or "nothing"."""
        if self.store is not None and self.store.failed and not self.quiet:
            self.quiet = self.store.failed
        if self.quiet:
            return "nothing"
        if self.store is not None and not self._forecast_shown:
            self._forecast(call.step)
        if self.limited:
            self._keep_to_limit(call)
        return self.mode

    def _forecast(self, step: int) -> None:
        """Print after the first step how many bytes it wrote, and how many more may be written."""
        if self._step is None:
            self._step = step
        if step == self._step or self.store is None:
            return
        self.store.drain()  # equal contents in the queue are counted twice
        used = output_paths.budget.spent - self._spent
        if not used:
            return
        self._forecast_shown = True
        line = _("OpCapture: {size} in the first step, to {place}; {free} are free there").format(
            size=size(used), place=self.store.place, free=size(output_paths.free_space())
        )
        if self.limited:
            most = int(self.limit * TENSORS_SHARE) - self._spent
            line += _(", of which tensors may take {size} (OP_TOOLS_DISK_BUDGET)").format(
                size=size(most)
            )
            if self._every_call:
                line += _(": about {count} {count:step|steps} more").format(
                    count=max(0, most - used) // used
                )
        terminal.write(f"{line}.")

    def _keep_to_limit(self, call: Call) -> None:
        if self.mode == "tensors":
            need = sum(map(held_bytes, call.inputs))
            if not self._allows(2 * need + 8192, TENSORS_SHARE):
                assert self.store is not None
                self.store.drain()  # equal contents in the queue are counted twice
            if not self._allows(2 * need + 8192, TENSORS_SHARE):
                self.mode, self.statistics = "statistics", StatisticsStore(False, background=False)
                self.limits.append(
                    _("after {calls} {calls:call|calls} only statistics were written").format(
                        calls=self.calls
                    )
                )
                terminal.write(
                    _(
                        "OpCapture: no more tensors after {calls} {calls:call|calls}, "
                        "for they reach the limit "
                        "of {size}. Hint: OP_TOOLS_DISK_BUDGET sets another one."
                    ).format(calls=self.calls, size=size(self.limit))
                )
        elif self.mode != "nothing" and not self._allows(4096):
            self.mode = "nothing"
            self.limits.append(
                _("after {calls} {calls:call|calls} nothing was written").format(calls=self.calls)
            )

    def _allows(self, more: int, share: float = 1.0) -> bool:
        return output_paths.budget.spent + more <= self.limit * share

    @property
    def writer(self) -> Writer:
        """The writer of the next call."""
        return self if self.statistics is None else self.statistics

    # The writer of calls with the values of their tensors.

    def begin(self, call: Call, tensors: list[Tensor]) -> Header:
        header = _header(call, tensors)
        if self._awaited:
            header["awaited"] = self._awaited.read_by(call, tensors)
        self._put("input", header, call.args, call.kwargs, {})
        return header

    def end(self, call: Call, header: Header, result: Any, changed: dict[int, Tensor]) -> None:
        results = tensor_list(result)
        self._awaited.begin(call, results)
        after = {str(at): tensor for at, tensor in unreturned(changed, results).items()}
        self._put("output", header, (result,), {}, {"mutated": after, "written": list(changed)})

    def gradient(self, gradient: Tensor) -> Any:
        assert self.store is not None
        with DisableTorchFunction():  # the function mode is on in the backward pass
            return encode(gradient, self.store.take, self.store.native)

    def gradients(self, header: Header, gradients: Gradients) -> None:
        more = {"complete": gradients.complete}
        for kind, side in (("grad_inputs", gradients.inputs), ("grad_outputs", gradients.outputs)):
            self._write(Part(kind, header, tuple(side), {}, more))

    def _put(self, kind: str, header: Header, args: Any, kwargs: Any, more: Any) -> None:
        """Write a part of a call with the values of its tensors as they are now."""
        if self.quiet:
            return
        assert self.store is not None
        take, native = once(self.store.take), self.store.native
        if more:
            more["mutated"] = {at: take(tensor) for at, tensor in more["mutated"].items()}
        encoded = tuple([encode(item, take, native) for item in args])
        named = {key: encode(item, take, native) for key, item in kwargs.items()}
        self._write(Part(kind, header, encoded, named, more))

    def _write(self, part: Part) -> None:
        """Write a part of a call whose tensors are copied, unless a write has failed before."""
        assert self.store is not None
        if self.quiet:
            return
        try:
            self.store.write(part)
        except OSError as error:  # a full disk, a deleted folder: writing ends
            self.quiet = f"{type(error).__name__}: {error.strerror or error}"
            tool_errors.add("OpCapture", part.header["name"], error)

    def close(self) -> None:
        """Wait until everything is written."""
        for store in (self.store, self.statistics):
            if store is not None:
                store.close()

    def summary(self) -> list[str]:
        """The lines of the summary at the end."""
        lines = []
        if self.calls:
            lines.append(
                _(
                    "OpCapture: {calls} {calls:call|calls} of {count} {count:operator|operators}, "
                ).format(calls=self.calls, count=len(self.operators))
                + " and ".join(
                    _("{size} in {place}").format(size=size(store.bytes), place=store.place)
                    for store in (self.store, self.statistics)
                    if store is not None and store.bytes
                )
            )
        for reason, count in self.skipped.most_common():
            lines.append(
                _("OpCapture: {count} {count:call|calls} not captured: {reason}").format(
                    count=count, reason=reason
                )
            )
        if self.limits:
            limit = _("limit of {size} ({share:.0%} of the free space)").format(
                size=size(self.limit), share=FREE_SHARE
            )
            if settings.OP_TOOLS_DISK_BUDGET.is_set():
                limit = _("OP_TOOLS_DISK_BUDGET of {size}").format(size=size(self.limit))
            lines.append(
                _("OpCapture: {limit}: {names}").format(
                    limit=limit, names=joined(", ", self.limits)
                )
            )
        if self.quiet:
            lines.append(
                _("OpCapture: nothing more was written after: {quiet}").format(quiet=self.quiet)
            )
        return lines


def _header(call: Call, tensors: list[Tensor]) -> Header:
    device = device_name(call.device) if call.device is not None else ""
    header: Header = {
        "id": call.id,
        "name": call.name,
        "time": output_paths.stamp(),
        "level": call.level,
        "direction": call.direction,
        "step": call.step,
        "module": call.module,
        "site": call.site.short if call.site is not None else "",
        "device": device,
    }
    devices = [device_name(tensor.device) for tensor in tensors]
    if set(devices) - {device}:
        header["devices"] = devices
    group = collectives.group_ranks(call)
    if group:
        header["group"] = group
    kind = call.device.type if call.device is not None else "cpu"
    with suppress(RuntimeError):  # a device that has no autocast
        if torch.is_autocast_enabled(kind):
            header["autocast"] = [kind, dtype_name(torch.get_autocast_dtype(kind))]
    return header
