# SPDX-License-Identifier: Apache-2.0
"""A captured call as a script that needs torch alone, and its data file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.capture.encoding import Device, Drawing, Opaque, Recorded, device_type
from op_tools.core import op_names
from op_tools.core.call import tensors
from op_tools.replay.allowed_functions import ReplayError, function_of
from op_tools.tensors.host_transfer import mapped
from op_tools.tensors.snapshot import unrepeated

_HOST = ("cpu", "meta")  # kinds of devices that every machine has

TEMPLATE = '''"""@NAME@, @TITLE@@WHERE@.

    python @SCRIPT@ [device]     exits with 0 if the results are @EXPECTED@, else with 1
"""

import sys

import torch

RANDOM = @RANDOM@  # random numbers or uninitialised memory: values are not compared
DEVICE = sys.argv[1] if len(sys.argv) > 1 else @DEVICE@
try:
    torch.empty(0, device=DEVICE)
except Exception as error:
    print(f"no device {DEVICE!r} here ({type(error).__name__}); on the CPU instead")
    DEVICE = "cpu"
data = torch.load(__file__.removesuffix(".py") + ".pt", weights_only=True)


def argument(dense, shape, stride, on_device, wants_grad):
    """A captured argument, with its strides."""
    made = torch.empty_strided(shape, stride, dtype=dense.dtype)
    made.as_strided(dense.shape, stride).copy_(dense)
    if on_device and DEVICE != "cpu":
        there = torch.empty_strided(shape, stride, dtype=dense.dtype, device=DEVICE)
        there.as_strided(dense.shape, stride).copy_(dense)
        made = there
    return made.requires_grad_() if wants_grad else made


def flat(value):
    """The values of a result, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in flat(item)]
    return [value] if isinstance(value, (torch.Tensor, bool, int, float, complex, str)) else []


def same(label, made, wanted):
    """Whether a value is as expected; prints the difference."""
    if isinstance(wanted, str) or RANDOM:
        def kind(value):
            return (value.dtype, value.shape) if isinstance(value, torch.Tensor) else type(value)
        good = kind(made) == kind(wanted) and (RANDOM or made == wanted)
        if not good:
            print(f"{label}: {made!r:.200}, expected {wanted!r:.200}")
        return good
    try:
        made = made.detach().cpu() if isinstance(made, torch.Tensor) else made
        torch.testing.assert_close(made, wanted, equal_nan=True)
    except AssertionError as error:
        print(f"{label}: {error}")
        return False
    return True


leaves = [argument(*item) for item in data["inputs"]]
inputs = [@GIVEN@ for leaf in leaves]
torch.manual_seed(0)
@MODES@result = @CALL@

good = True
if data["output"] is not None:
    made = flat(result)
    good = len(made) == len(data["output"])
    if not good:
        print(f"{len(made)} values, expected {len(data['output'])}")
    for i, (one, wanted) in enumerate(zip(made, data["output"])):
        good &= same(f"output {i}", one, wanted)
for place, wanted in data["mutated"].items():
    good &= same(f"argument {place} after the call", inputs[place], wanted)
if data["seeds"]:
    results = [one for one in flat(result) if isinstance(one, torch.Tensor)]
    pairs = [(one, seed) for one, seed in zip(results, data["seeds"]) if seed is not None]
    wanted = [(i, grad) for i, grad in enumerate(data["gradients"]) if grad is not None]
    grads = torch.autograd.grad(
        [one for one, _ in pairs],
        [leaves[i] for i, _ in wanted],
        [seed.to(one.device) for one, seed in pairs],
        allow_unused=True,
    )
    for (i, grad), one in zip(wanted, grads):
        good &= same(f"gradient of argument {i}", one, grad)
print("@NAME@:", "@GOOD@" if good else "@BAD@")
sys.exit(0 if good else 1)
'''

# Texts of a script that compares with the captured results, or with correct ones.
CAPTURED = {
    "TITLE": "as it was captured",
    "EXPECTED": "those that were captured",
    "GOOD": "as it was captured",
    "BAD": "NOT as it was captured",
}
CORRECT = {
    "TITLE": "on captured arguments",
    "EXPECTED": "those of the CPU",
    "GOOD": "right",
    "BAD": "WRONG",
}


def export(recorded: Recorded, path: str | Path, right: bool = False) -> Path:
    """Write the script and its data, and return the path of the data; ReplayError if it cannot be.

    `right`: the results in the record are the correct ones, not those of the device.
    """
    script = Path(path).with_suffix(".py")
    function_of(recorded, torch.device("cpu"))  # ReplayError unless it is an operator
    inputs: list[Tensor] = []
    name = recorded.name
    to_device = op_names.last(name) in op_names.UPLOADS
    values = (recorded.args[0], Device("cuda")) if to_device else recorded.args
    args = [_code(value, inputs) for value in values]
    if op_names.last(name) == "to" and isinstance((*values, None)[1], (str, int)):
        args[1] = _keyword("device", values[1], inputs)
    if not to_device:
        args += [f"{key}={_keyword(key, value, inputs)}" for key, value in recorded.kwargs.items()]
    header = recorded.header
    function = f"torch.ops.{name}" if name.startswith("aten.") else name
    function = "torch.Tensor.to" if to_device else function
    where = f": call {header.get('id', '')}" + (f", {header['site']}" if header.get("site") else "")
    # autograd refuses a write to a leaf
    through = "leaf.clone() if leaf.requires_grad else leaf"
    in_place = bool(recorded.written) or op_names.sounds_in_place(name)
    fields = {
        **(CORRECT if right else CAPTURED),
        "NAME": name,
        "WHERE": where,
        "SCRIPT": script.name,
        "RANDOM": str(op_names.is_random(name)),
        "DEVICE": repr(str(header.get("device") or "cpu")),
        "GIVEN": through if in_place else "leaf",
        "MODES": _modes(recorded),
        "CALL": f"{function}({', '.join(args)})",
    }
    text = re.sub("@([A-Z]+)@", lambda word: fields[word[1]], TEMPLATE)
    script.write_text(text, encoding="utf-8")
    data = script.with_suffix(".pt")
    torch.save(_data(recorded, inputs), data)
    return data


def _data(recorded: Recorded, inputs: list[Tensor]) -> dict[str, Any]:
    order = [_place(tensor, inputs) for tensor in tensors(recorded.args, recorded.kwargs)]
    gradients: list[Tensor | None] = [None] * len(inputs)
    if recorded.complete:
        for place, gradient in reversed(list(zip(order, recorded.grad_inputs or [], strict=False))):
            gradients[place] = gradient  # a tensor that occurs twice: of its first place
    devices = [""] * len(inputs)
    for place, device in zip(order, recorded.devices, strict=False):
        devices[place] = device
    places = (str(recorded.header.get("device") or ""), *devices)
    accelerated = any(place and not place.startswith("cpu") for place in places)
    items = [
        [
            unrepeated(tensor.detach())[0].clone(memory_format=torch.contiguous_format),
            list(tensor.shape),
            list(tensor.stride()),
            not (accelerated and device.startswith("cpu")),
            gradient is not None,
        ]
        for tensor, device, gradient in zip(inputs, devices, gradients, strict=True)
    ]
    wanted = any(gradient is not None for gradient in gradients)
    return {
        "inputs": items,
        "output": _flat(recorded.output) if recorded.has_output else None,
        "mutated": {order[at]: value.detach() for at, value in recorded.mutated.items()},
        "seeds": recorded.grad_outputs if wanted else None,
        "gradients": gradients,
    }


def _place(tensor: Tensor, inputs: list[Tensor]) -> int:
    return next(at for at, each in enumerate(inputs) if each is tensor)


def _flat(value: Any) -> list[Any]:
    """Flatten a result as the script's `flat` does."""
    leaves: list[Any] = []

    def add(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            leaves.append(leaf.detach())
        elif isinstance(leaf, (bool, int, float, complex, str)):
            leaves.append(leaf)
        return leaf

    mapped(value, add)
    return leaves


def _modes(recorded: Recorded) -> str:
    cast = recorded.header.get("autocast")
    lines = []
    if cast:
        lines.append(f'torch.autocast(DEVICE.partition(":")[0], torch.{cast[1]}).__enter__()\n')
    if not recorded.grad_outputs:
        lines.append("torch.set_grad_enabled(False)\n")
    return "".join(lines)


def _keyword(key: str, value: Any, inputs: list[Tensor]) -> str:
    if key == "device" and isinstance(value, (str, int)) and device_type(value) not in _HOST:
        return "DEVICE"
    return _code(value, inputs)


def _code(value: Any, inputs: list[Tensor]) -> str:
    """The Python expression of a value; a tensor is an element of `inputs`."""

    def walk(item: Any) -> str:
        return _code(item, inputs)

    if isinstance(value, Tensor):
        return _tensor(value, inputs)
    if isinstance(value, (torch.device, Device)):
        kind = device_type(value)
        return f"torch.device({kind!r})" if kind in _HOST else "torch.device(DEVICE)"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, slice):
        return f"slice({walk(value.start)}, {walk(value.stop)}, {walk(value.step)})"
    if isinstance(value, (Opaque, Drawing)):
        raise ReplayError(_("an argument is not exported: {value!r:.80}").format(value=value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{walk(k)}: {walk(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(walk, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{walk(item)}, " for item in value) + ")"
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return f"float('{value}')"
    if callable(value):
        return op_names.name_of(value)
    return "..." if value is ... else repr(value)


def _tensor(value: Tensor, inputs: list[Tensor]) -> str:
    if value.layout != torch.strided or value.is_nested:
        raise ReplayError(
            _("a tensor of layout {layout} is not exported.").format(layout=value.layout)
        )
    if not any(each is value for each in inputs):
        inputs.append(value)
    return f"inputs[{_place(value, inputs)}]"
