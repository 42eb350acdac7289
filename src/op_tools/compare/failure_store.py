# SPDX-License-Identifier: Apache-2.0
"""Calls that failed a comparison, on disk: what the device had and what the CPU made of it.

op_capture_results/<op>/<pid>/autocompare/<id>/<time>/{device,cpu}/{input,output,…}.pth + .json
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from deeplink.errors import SettingError
from op_tools.capture import encoding, folder_store
from op_tools.capture.encoding import Header, Part
from op_tools.compare.host_verdicts import RecordedCall
from op_tools.core import output_paths, tool_errors
from op_tools.core.call import Call, held_bytes
from op_tools.core.gradients import Gradients
from op_tools.tensors import snapshot
from op_tools.tensors.snapshot import Snapshot

EACH = 3  # calls that are saved of an operator on one line of the program


class Saver:
    """Writes failed calls, a few of each operator and line, as far as the disk budget goes."""

    def __init__(self) -> None:
        self._saved: Counter[tuple[str, str]] = Counter()
        self._folders: dict[int, Path] = {}

    def save(self, recorded: RecordedCall, gradients: Gradients | None) -> str:
        """Write both sides of a call, and return the folder; "" when it is not saved."""
        try:
            return self._save(recorded, gradients)
        except (OSError, SettingError, snapshot.Unsupported) as error:  # a full disk, …
            tool_errors.add("OpAutoCompare", recorded.call.name, error)
            return ""

    def _save(self, recorded: RecordedCall, gradients: Gradients | None) -> str:
        call = recorded.call
        folder = self._folders.get(call.id)
        if folder is None:
            if not self._is_wanted(call):
                return ""
            root = output_paths.folder("op_capture_results")
            folder = root / call.name / output_paths.owner(root) / "autocompare" / str(call.id)
            folder = self._folders[call.id] = folder / time.strftime("%Y-%m-%d-%H-%M-%S")
            device = _Encoder(folder / "device", recorded, recorded.rerun.requires)
            device.write("input", call.args, call.kwargs)
            device.write("output", (recorded.result,))
            cpu = _Encoder(folder / "cpu", recorded)
            cpu.write("input", *recorded.rerun.inputs_of_reference())
            cpu.write("output", (recorded.reference().result,))
        if gradients is not None:
            reference = recorded.reference().gradients(gradients.outputs)
            for side, inputs in (("device", gradients.inputs), ("cpu", reference)):
                encoder = _Encoder(folder / side, recorded)
                encoder.write("grad_inputs", tuple(inputs))
                encoder.write("grad_outputs", tuple(gradients.outputs))
        return str(folder)

    def _is_wanted(self, call: Call) -> bool:
        key = call.name, call.site.short if call.site is not None else ""
        self._saved[key] += 1
        size = sum(map(held_bytes, call.inputs))
        return self._saved[key] <= EACH and output_paths.budget.allows(4 * size)


class _Encoder:
    """Writes tensors of the host as tensors of one side; `requires`: ids of those that require a
    gradient there.
    """

    def __init__(
        self, folder: Path, recorded: RecordedCall, requires: Collection[int] = ()
    ) -> None:
        self._folder, self._header, self._requires = folder, _header(recorded), requires
        self._device = recorded.device if folder.name == "device" else "cpu"
        self._snapshots: dict[int, Snapshot] = {}

    def write(self, kind: str, args: Any, kwargs: Any = None) -> None:
        encoded = encoding.encode((args, kwargs or {}), self._snapshot, native=True)
        folder_store.write(self._folder, Part(kind, self._header, *encoded))

    def _snapshot(self, tensor: Tensor) -> Snapshot:
        if id(tensor) not in self._snapshots:
            found = snapshot.describe(tensor.detach(), snapshot.values(tensor))
            requires = id(tensor) in self._requires
            self._snapshots[id(tensor)] = replace(
                found, device=self._device, requires_grad=requires
            )
        return self._snapshots[id(tensor)]


def _header(recorded: RecordedCall) -> Header:
    call = recorded.call
    return {
        "id": call.id,
        "name": call.name,
        "time": time.strftime("%Y-%m-%d-%H-%M-%S"),
        "level": call.level,
        "direction": call.direction,
        "step": call.step,
        "module": call.module,
        "site": call.site.short if call.site is not None else "",
        "device": recorded.device,
    }
