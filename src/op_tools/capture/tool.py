# SPDX-License-Identifier: Apache-2.0
"""OpCapture: writes the arguments, results and gradients of each call, or statistics of them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from deeplink import settings
from op_tools.capture import session
from op_tools.capture.console import input_rows, show, show_gradients
from op_tools.capture.encoding import Header, Part
from op_tools.capture.session import Run
from op_tools.capture.statistics_store import header_of
from op_tools.core import collectives, dispatch, gradients, op_names, terminal
from op_tools.core.call import Call, tensor_list
from op_tools.core.dispatch import Plan
from op_tools.core.gradients import Gradients
from op_tools.core.options import Options, own_options
from op_tools.core.tool import Observer, Started
from op_tools.tensors.mutation import Mark, is_counted, marks, written
from op_tools.tensors.snapshot import Unsupported, device_name

OPTIONS = {
    "format": settings.OP_CAPTURE_FORMAT,
    "inputs": settings.OP_CAPTURE_INPUTS,
    "mode": settings.OP_CAPTURE_MODE,
}


@dataclass(slots=True)
class _State:
    """The state of a call, from before it until after it."""

    run: Run
    tensors: list[Tensor]  # the arguments
    marks: list[Mark]
    arguments: Any  # for gradients; None: there are none
    rows: list[tuple[object, ...]]
    header: Header | None  # None: statistics are written
    line: str = ""  # the header in the line of statistics
    inputs: str = ""  # the statistics of the arguments


class OpCapture(Observer):
    """Writes the arguments of each call before it, its results after it, and its gradients.

    `format="packed"` or OP_CAPTURE_FORMAT=packed: one archive instead of a folder for each call.
    `mode="statistics"` or "hash", or OP_CAPTURE_MODE: statistics or hashes instead of values.
    `inputs="all"` or OP_CAPTURE_INPUTS=all: statistics of every input, also of results of recorded
    calls.
    """

    key = "CAPTURE"
    hook = "OpCaptureHook"
    wants_modules = True

    def begin(self, options: Options) -> None:
        chosen = own_options("OpCapture", options.more, OPTIONS)
        self._run = session.begun(
            chosen["format"], chosen["mode"], options.select.first == 0, chosen["inputs"] == "all"
        )
        statistics = self._run.statistics
        self.native = None if statistics is None else statistics.native(self.device_filter())

    # A call.

    def goes_natively(self, plan: Plan) -> bool:
        decides = self._condition is not None or self.started.options.select.first > 0
        needs_record = terminal.verbose() or decides or self._run.limited
        return not needs_record and is_counted(op_names.last(plan.name))

    def counted_natively(self, started: Started, name: str, count: int) -> None:
        super().counted_natively(started, name, count)
        self._run.calls += count
        self._run.operators.add(name)

    def before(self, call: Call) -> _State | None:
        run = self._run
        if run.mode_of(call) == "nothing":
            return None
        tensors = call.given
        before = marks(call, tensors)
        arguments = None
        if call.level != "aten" and any(tensor.requires_grad for tensor in tensors):
            arguments = gradients.arguments(call)
        rows = input_rows(call) if run.verbose else []
        if run.statistics is not None:
            text = ",".join(run.statistics.texts(tensors))
            return _State(run, tensors, before, arguments, rows, None, header_of(call), text)
        header = _header(call, tensors)
        if run.awaited:
            header["awaited"] = run.awaited.read_by(call, tensors)
        state = _State(run, tensors, before, arguments, rows, header)
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
        results = tensor_list(result)
        run.awaited.begin(call, results)
        changed = mutated = written(call, state.tensors, state.marks)
        if changed:
            returned = set(map(id, results))
            mutated = {at: tensor for at, tensor in changed.items() if id(tensor) not in returned}
        if state.header is None:
            assert run.statistics is not None
            run.statistics.call(state.line, state.inputs, results, mutated)
        else:
            try:
                after = {str(at): tensor for at, tensor in mutated.items()}
                more = {"mutated": after, "written": list(changed)}
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
            self._watch(call, state, results)

    def _watch(self, call: Call, state: _State, results: list[Tensor]) -> None:
        guard = dispatch.guard(self, call)
        run, header, line = state.run, state.header, state.line  # and no tensor of the graph

        def take(gradient: Tensor) -> Any:
            with DisableTorchFunction():  # the function mode is on in the backward pass
                if header is None:
                    assert run.statistics is not None
                    return run.statistics.texts([gradient])[0]
                return run.take(gradient)

        def done(found: Gradients) -> None:
            if header is None:
                assert run.statistics is not None
                run.statistics.gradients(line, found.inputs, found.outputs)
            elif not run.quiet:
                _write_gradients(run, header, found)

        gradients.watch(call, state.arguments, results, take, guard(done), guard)

    def finish(self, started: Started) -> None:
        run = self._run
        run.close()
        terminal.summary(self, started, run.summary())


def _header(call: Call, tensors: list[Tensor]) -> Header:
    device = call.device
    devices = [device_name(tensor.device) for tensor in tensors]
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
    """The device type and the data type of autocast; empty: it is off."""
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
