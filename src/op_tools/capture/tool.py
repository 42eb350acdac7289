# SPDX-License-Identifier: Apache-2.0
"""OpCapture: what goes into each call and what comes out, written down for later."""

from __future__ import annotations

import difflib
import os
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from deeplink import settings
from deeplink.errors import SettingError
from op_tools.capture import session
from op_tools.capture.console import input_rows, show, show_gradients
from op_tools.capture.encoding import Header, Part
from op_tools.capture.session import Run
from op_tools.capture.statistics_store import head
from op_tools.core import collectives, dispatch, gradients, op_names, terminal
from op_tools.core.call import Call, tensor_list
from op_tools.core.dispatch import Plan
from op_tools.core.gradients import Gradients
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.tensors.mutation import Mark, is_counted, marks, written
from op_tools.tensors.snapshot import Unsupported, device_name

CHOICES = {
    "format": settings.OP_CAPTURE_FORMAT,
    "inputs": settings.OP_CAPTURE_INPUTS,
    "mode": settings.OP_CAPTURE_MODE,
}


@dataclass(slots=True)
class _State:
    """What is kept from before a call until after it."""

    run: Run
    given: list[Tensor]
    marks: list[Mark]
    arguments: Any  # None: no gradients are wanted
    rows: list[tuple[object, ...]]
    header: Header | None  # of tensors
    head: str = ""  # of statistics
    text: str = ""


class OpCapture(Observer):
    """Writes the arguments of each call before it, its results after it, and its gradients.

    `format="packed"` or OP_CAPTURE_FORMAT=packed: one archive instead of a folder for each call.
    `mode="statistics"` or "hash", or OP_CAPTURE_MODE: what the values amount to, not the values.
    `inputs="all"` or OP_CAPTURE_INPUTS=all: statistics of every input, also of one that a recorded
    call has produced.
    """

    key = "CAPTURE"
    hook = "OpCaptureHook"
    wants_modules = True

    def begin(self, options: Options) -> None:
        chosen = {name: _choice(name, options.more.get(name)) for name in CHOICES}
        for name in options.more:
            if name not in CHOICES:
                near = difflib.get_close_matches(name, CHOICES, n=1)
                raise SettingError(
                    f"OpCapture has no option {name!r}.",
                    f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(CHOICES)}.",
                )
        self._run = session.begun(
            chosen["format"], chosen["mode"], options.select.first == 0, chosen["inputs"] == "all"
        )
        statistics = self._run.statistics
        self.native = None if statistics is None else statistics.native(self.device_filter())

    # A call.

    def _looks(self, plan: Plan | None = None) -> bool:
        """Whether each call is to be looked at as a record of its own."""
        select = self.started.options.select
        asked = terminal.verbose() or self._condition is not None or select.first > 0
        counted = plan is None or is_counted(op_names.last(plan.name))
        return asked or self._run.limited or not counted

    def goes_natively(self, plan: Plan) -> bool:
        return not self._looks(plan)

    def counted_natively(self, started: Started, name: str, count: int) -> None:
        super().counted_natively(started, name, count)
        self._run.calls += count
        self._run.operators.add(name)

    def before(self, call: Call) -> _State | None:
        run = self._run
        if run.mode_of(call) == "nothing":
            return None
        given = call.given
        marked = marks(call, given)
        arguments = None
        if call.level != "aten" and any(tensor.requires_grad for tensor in given):
            arguments = gradients.arguments(call)
        rows = input_rows(call) if run.verbose else []
        if run.statistics is not None:
            text = ",".join(run.statistics.texts(given))
            return _State(run, given, marked, arguments, rows, None, head(call), text)
        header = _header(call, given)
        if run.awaited:
            header["awaited"] = run.awaited.read_by(call, given)
        state = _State(run, given, marked, arguments, rows, header)
        try:
            run.put("input", header, call.args, call.kwargs, {})
        except Unsupported as reason:
            run.skipped[str(reason)] += 1
            return None
        return state

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        if state is None:
            return
        run = state.run
        made = tensor_list(result)
        run.awaited.begin(call, made)
        changed = own = written(call, state.given, state.marks)
        if own:
            returned = {id(tensor) for tensor in made}
            changed = {at: tensor for at, tensor in own.items() if id(tensor) not in returned}
        if state.header is None:
            assert run.statistics is not None
            run.statistics.call(state.head, state.text, made, changed)
        else:
            try:
                after = {str(at): tensor for at, tensor in changed.items()}
                more = {"mutated": after, "written": list(own)}
                run.put("output", state.header, (result,), {}, more)
            except Unsupported as reason:
                run.skipped[f"the result is {reason}"] += 1
        if run.quiet:
            return
        run.calls += 1
        run.operators.add(call.name)
        if state.rows:
            stamp = state.header["time"] if state.header else _stamp(int(time.time()))
            show(call, stamp, state.rows, result)
        if state.arguments is not None:
            self._watch(call, state, made)

    def _watch(self, call: Call, state: _State, made: list[Tensor]) -> None:
        guard = dispatch.guard(self, call)
        run, header, head = state.run, state.header, state.head  # and no tensor of the graph

        def take(gradient: Tensor) -> Any:
            with DisableTorchFunction():  # the mode is on in here, and is busy
                if header is None:
                    assert run.statistics is not None
                    (text,) = run.statistics.texts([gradient])
                    return text
                return run.taken(gradient)

        def done(found: Gradients) -> None:
            if header is None:
                assert run.statistics is not None
                run.statistics.gradients(head, found.inputs, found.outputs)
            elif not run.quiet:
                _write_gradients(run, header, found)

        gradients.watch(call, state.arguments, made, take, guard(done), guard)

    def finish(self, started: Started) -> None:
        run = self._run
        run.close()
        terminal.summary(self, started, run.summary())


def _choice(name: str, given: Any) -> str:
    setting = CHOICES[name]
    if given is None:
        return setting.get()
    try:
        return setting.parse(str(given))
    except ValueError as error:
        raise SettingError(
            f"OpCapture({name}={given!r}): {error}.", f"allowed: {setting.allowed}."
        ) from None


def _header(call: Call, given: list[Tensor]) -> Header:
    device = call.device
    devices = [device_name(tensor.device) for tensor in given]
    header: Header = {
        "id": call.id,
        "name": call.name,
        "time": _stamp(int(time.time())),
        "level": call.level,
        "direction": call.direction,
        "step": call.step,
        "module": call.module,
        "site": _short(call.site.file, call.site.line) if call.site is not None else "",
        "device": device_name(device) if device is not None else "",
    }
    if set(devices) - {header["device"]}:
        header["devices"] = devices
    group = collectives.group_ranks(call)
    if group:
        header["group"] = group
    cast = _autocast(device)
    if cast:
        header["autocast"] = cast
    return header


@lru_cache(4)
def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(second))


@cache  # by line of the program
def _short(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"


def _autocast(device: torch.device | None) -> list[str]:
    """Device type and type of the autocast that is on; empty: none."""
    kind = device.type if device is not None else "cpu"
    try:
        if torch.is_autocast_enabled(kind):
            return [kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch.")]
    except RuntimeError:  # a device that has no autocast
        pass
    return []


def _write_gradients(run: Run, header: Header, found: Gradients) -> None:
    more = {"complete": found.complete}
    for kind, side in (("grad_inputs", found.inputs), ("grad_outputs", found.outputs)):
        run.write(Part(kind, header, tuple(side), {}, more))
    if run.verbose:
        show_gradients(header, found)


__all__ = ["OpCapture"]
