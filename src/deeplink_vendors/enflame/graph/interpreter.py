# SPDX-License-Identifier: Apache-2.0
"""Execution of a module of topsgraph on the CPU, call by call: a simulation of meanings, not of a
chip.

Every result is compared with the type that the source declares for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink_vendors.enflame.graph.compiler import WEIGHTS
from deeplink_vendors.enflame.graph.kernels import KERNELS
from deeplink_vendors.enflame.graph.source import PRIMITIVES
from dicp.simulation import SimulationError, fresh

DTYPES = {name: dtype for dtype, name in PRIMITIVES.items()}

Declared = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Call:
    """One line of a module; an operand is the id of its source, as `%3`."""

    id: str
    function: str
    parameters: dict[str, Any]
    out: tuple[Declared, ...]


class Simulation:
    """A module ready to run: `simulation(args)`; its weights are set by name, once."""

    def __init__(self, module: bytes, constants: Mapping[str, Tensor]) -> None:
        notes, lines = _parted(module.decode())
        weights = {int(number): name for number, name in notes}
        calls = [_call(json.loads(line)) for line in lines]
        inputs = [call.id for call in calls if call.function == "Input"]
        self._known: dict[str, Any] = {
            id: constants[weights[i]] for i, id in enumerate(inputs) if i in weights
        }
        self._inputs = [id for i, id in enumerate(inputs) if i not in weights]
        self._outputs: list[str] = []
        self.calls: list[Call] = []
        for call in calls:
            self._place(call)

    def __call__(self, args: Sequence[Any]) -> list[Tensor]:
        values = dict(self._known)
        for id, arg in zip(self._inputs, args, strict=True):
            values[id] = arg if isinstance(arg, Tensor) else torch.tensor(arg)
        for call in self.calls:
            values[call.id] = _run(call, values)
        return fresh([values[id] for id in self._outputs], [*self._known.values(), *args])

    def _place(self, call: Call) -> None:
        if call.function == "Output":
            self._outputs = call.parameters["val"]
        elif call.function == "Const":
            self._known[call.id] = _run(call, {})
        elif call.function in KERNELS:
            self.calls.append(call)
        elif call.function != "Input":
            raise SimulationError(f"the simulation has no function {call.function} ({call.id})")


def _parted(module: str) -> tuple[list[list[str]], list[str]]:
    """Split into the notes of weights, as number and name, and the calls."""
    lines = [line for line in module.splitlines() if line]
    notes = [line.removeprefix(WEIGHTS).split(": ") for line in lines if line.startswith(WEIGHTS)]
    return notes, [line for line in lines if not line.startswith(WEIGHTS)]


def _call(fields: dict[str, Any]) -> Call:
    id, function, kind = fields.pop("id"), fields.pop("op"), fields.pop("resultType", None)
    if kind is None:
        return Call(id, function, fields, ())
    parts = kind if isinstance(kind[0], list) else [kind]
    out = tuple((DTYPES[name], tuple(shape)) for name, shape in parts)
    return Call(id, function, fields, out)


def _run(call: Call, values: Mapping[str, Any]) -> Any:
    def given(parameter: Any) -> Any:
        if isinstance(parameter, list):
            return [given(part) for part in parameter]
        is_operand = isinstance(parameter, str) and parameter.startswith("%")
        return values[parameter] if is_operand else parameter

    parameters = {name: given(value) for name, value in call.parameters.items()}
    try:
        found = KERNELS[call.function](call.out[0], **parameters)
    except Exception as error:  # torch's message, with the call that caused it
        raise SimulationError(f"{call.function} ({call.id}): {error}") from error
    for result, (dtype, shape) in zip(
        found if isinstance(found, tuple) else (found,), call.out, strict=True
    ):
        if result.dtype != dtype or tuple(result.shape) != shape:
            raise SimulationError(
                f"{call.function} ({call.id}) declares {dtype}{list(shape)}, and is "
                f"{result.dtype}{list(result.shape)}"
            )
    return found
