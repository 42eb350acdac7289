# SPDX-License-Identifier: Apache-2.0
"""Calls that failed a comparison, on disk: what the device had and what the CPU made of it.

op_capture_results/<op>/<pid>/autocompare/<id>/<time>/{device,cpu}/{input,output,…}.pth + .json
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from deeplink.errors import SettingError
from op_tools.capture import encoding, folder_store
from op_tools.capture.encoding import Header, Part
from op_tools.compare.host_verdicts import Taken
from op_tools.core import output_paths, tool_errors
from op_tools.core.call import Call, held_bytes, tensors
from op_tools.core.gradients import Gradients
from op_tools.tensors import snapshot
from op_tools.tensors.snapshot import Snapshot

EACH = 3  # calls that are saved of an operator on one line of the program


class Saver:
    """Writes failed calls, a few of each operator and line, as far as the disk budget goes."""

    def __init__(self) -> None:
        self.left_out = 0
        self._saved: Counter[tuple[str, str]] = Counter()
        self._folders: dict[int, Path] = {}

    def save(self, taken: Taken, found: Gradients | None) -> str:
        """The folder with both sides of the call; "" when it is not saved."""
        try:
            return self._save(taken, found)
        except (OSError, SettingError, snapshot.Unsupported) as error:  # a full disk, …
            tool_errors.add("OpAutoCompare", taken.call.name, error)
            return ""

    def _save(self, taken: Taken, found: Gradients | None) -> str:
        call = taken.call
        where = self._folders.get(call.id)
        if where is None:
            if not self._wanted(call, taken):
                self.left_out += 1
                return ""
            root = output_paths.folder("op_capture_results")
            stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
            where = (
                root / call.name / output_paths.owner(root) / "autocompare" / str(call.id) / stamp
            )
            self._folders[call.id] = where
            _write_call(where, taken)
        if found is not None:
            _write_gradients(where, taken, found)
        return str(where)

    def _wanted(self, call: Call, taken: Taken) -> bool:
        key = call.name, call.site.short if call.site is not None else ""
        self._saved[key] += 1
        size = sum(held_bytes(tensor) for tensor in _given(call))
        return self._saved[key] <= EACH and output_paths.budget.allows(4 * size)


def _write_call(where: Path, taken: Taken) -> None:
    call, run, header = taken.call, taken.reference(), _header(taken)
    device = _leaf(taken.device, taken.again.requires)
    cpu = _leaf("cpu", frozenset())
    theirs = taken.again.inputs_of_reference()
    _write(where / "device", "input", header, call.args, call.kwargs, device)
    _write(where / "device", "output", header, (taken.result,), {}, device)
    _write(where / "cpu", "input", header, theirs[0], theirs[1], cpu)
    _write(where / "cpu", "output", header, (run.result,), {}, cpu)


def _write_gradients(where: Path, taken: Taken, found: Gradients) -> None:
    header, run = _header(taken), taken.reference()
    device, cpu = _leaf(taken.device, frozenset()), _leaf("cpu", frozenset())
    reference = tuple(run.gradients(found.outputs))
    _write(where / "device", "grad_inputs", header, tuple(found.inputs), {}, device)
    _write(where / "device", "grad_outputs", header, tuple(found.outputs), {}, device)
    _write(where / "cpu", "grad_inputs", header, reference, {}, cpu)
    _write(where / "cpu", "grad_outputs", header, tuple(found.outputs), {}, cpu)


def _write(
    where: Path,
    kind: str,
    header: Header,
    args: Any,
    kwargs: Any,
    leaf: Callable[[Tensor], Snapshot],
) -> None:
    encoded = encoding.encode((args, kwargs), leaf, native=True)
    folder_store.write(where, Part(kind, header, *encoded))


def _leaf(device: str, requires: Collection[int]) -> Callable[[Tensor], Snapshot]:
    """Takes a tensor of the host as what it stands for."""
    known: dict[int, Snapshot] = {}

    def take(tensor: Tensor) -> Snapshot:
        if id(tensor) not in known:
            made = snapshot.describe(tensor.detach(), snapshot.values(tensor))
            wanted = id(tensor) in requires
            known[id(tensor)] = replace(made, device=device, requires_grad=wanted)
        return known[id(tensor)]

    return take


def _given(call: Call) -> list[Tensor]:
    return list(tensors(call.args, call.kwargs))


def _header(taken: Taken) -> Header:
    call = taken.call
    return {
        "id": call.id,
        "name": call.name,
        "time": time.strftime("%Y-%m-%d-%H-%M-%S"),
        "level": call.level,
        "direction": call.direction,
        "step": call.step,
        "module": call.module,
        "site": call.site.short if call.site is not None else "",
        "device": taken.device,
    }
