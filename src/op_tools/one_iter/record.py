# SPDX-License-Identifier: Apache-2.0
"""Recording of an iteration on the trusted device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deeplink import identity
from deeplink.identity import Identity
from op_tools.core import gradients
from op_tools.core.call import Call
from op_tools.core.gradients import Gradients
from op_tools.one_iter.call_tree import Seen
from op_tools.one_iter.optimizer_step import Update
from op_tools.one_iter.record_store import Entry, Writer
from op_tools.one_iter.rng import HostRandom
from op_tools.one_iter.tree_template import flat

Guard = Callable[[Call], Callable[..., Callable[..., None]]]


class Recording:
    """Writes each call when it is over, and its gradients after its backward pass."""

    def __init__(self, writer: Writer, random: HostRandom, guard: Guard) -> None:
        self._writer, self._random, self._guard = writer, random, guard
        self._ids = itertools.count(1)
        self._begun = False
        self.identity: Identity | None = None  # of the device, from the first call on

    def begin(self, seen: Seen, call: Call) -> None:
        if not self._begun:
            self._begun = True
            device = call.device.type if call.device is not None else "cpu"
            self.identity = identity.current(device)
            self._writer.about({"random": torch.get_rng_state(), **self.identity.as_dict()})
        if seen.kind == "module":
            self._random.restart(seen.path)
        model = seen.kind == "module" and seen.parent is None
        take = self._writer.take
        seen.state = (
            next(self._ids),
            {
                "inputs": take(seen.inputs),
                "parameters": take(call.args[0] if model else {}),
                "buffers": take(call.args[1] if seen.kind == "module" else {}),
            },
        )

    def end(self, seen: Seen, call: Call, result: Any) -> None:
        number, given = seen.state
        buffers, parameters = seen.buffers, seen.parameters
        if seen.parent is not None:
            given["buffers"] = {name: given["buffers"][name] for name in buffers}
        entry = Entry(
            number,
            seen.kind,
            seen.path,
            seen.number,
            seen.name,
            seen.parent.state[0] if seen.parent is not None else 0,
            tuple(child.state[0] for child in seen.children),
            tuple(parameters),
            seen.site,
        )
        take, writer = self._writer.take, self._writer
        writer.call(entry, given, {"outputs": take(flat(result)), "buffers": take(buffers)})

        def take_gradient(gradient: Tensor) -> Any:
            with torch._C.DisableTorchFunction():
                return take(gradient)

        def done(found: Gradients) -> None:
            writer.gradients(entry, found)

        guard = self._guard(call)
        where = seen.arguments(parameters)
        gradients.watch(call, where, flat(result), take_gradient, guard(done), guard)
        seen.inputs, seen.args = [], None

    def before_step(self, update: Update) -> None:
        update.state = self._writer.take(update.given())

    def after_step(self, update: Update) -> None:
        entry = Entry(next(self._ids), "optimizer", update.path, update.number, update.path)
        made = {"outputs": self._writer.take(update.parameters), "buffers": {}}
        self._writer.call(entry, update.state, made)
