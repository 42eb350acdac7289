"""A call of every published function: its parameters, from the sample of its op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import diopi
from diopi import legacy
from diopi.catalogue import Function, Parameter
from tests.diopi import op_samples

f = op_samples.f

# Where the sample of the op is not one of this function.
CONV: dict[str, Any] = {
    "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "bias": f(4),
    "output_padding": [0, 0], "input": f(2, 3, 6, 6),
}  # fmt: skip
CONV3 = {k: v * 3 if v in ([2, 2], [1, 1], [0, 0]) else v for k, v in CONV.items() if k != "input"}
CONV3 = {k: v[:3] if isinstance(v, list) else v for k, v in CONV3.items()}
CONV3["input"] = f(2, 3, 4, 4, 4)
BACK = {"output_mask": [True] * 3, "bias_sizes": [4]}
SAMPLES: dict[str, dict[str, Any]] = {
    "diopiConvolution2d": {**CONV, "weight": f(4, 3, 3, 3), "transposed": False},
    "diopiConvolution3d": {**CONV3, "weight": f(4, 3, 3, 3, 3), "transposed": False},
    "diopiConvTranspose2d": {**CONV, "weight": f(3, 4, 3, 3), "transposed": True},
    "diopiConvTranspose3d": {**CONV3, "weight": f(3, 4, 3, 3, 3), "transposed": True},
    "diopiConvolution2dBackward": {
        **CONV, **BACK, "weight": f(4, 3, 3, 3), "transposed": False, "grad_output": f(2, 4, 3, 3),
    },
    "diopiConvolution3dBackward": {
        **CONV3, **BACK, "weight": f(4, 3, 3, 3, 3), "transposed": False,
        "grad_output": f(2, 4, 2, 2, 2),
    },
    "diopiConvTranspose2dBackward": {
        **CONV, **BACK, "weight": f(3, 4, 3, 3), "transposed": True,
        "grad_output": f(2, 4, 11, 11),
    },
    "diopiConvTranspose3dBackward": {
        **CONV3, **BACK, "weight": f(3, 4, 3, 3, 3), "transposed": True,
        "grad_output": f(2, 4, 7, 7, 7),
    },
}  # fmt: skip


def arguments(function: Function) -> dict[str, Any]:
    """The arguments of the op, such that the function can be called for them."""
    op = diopi.get(function.op)
    given = {a.name: a.default for a in op.arguments if not a.required}
    given |= SAMPLES.get(function.name, op_samples.all_samples()[op.name])
    given = {k: v for k, v in given.items() if k in {a.name for a in op.arguments}}
    renames = dict(function.renames)
    names = {p.name: p for p in function.parameters}
    for argument in op.arguments:
        source = renames.get(argument.name, argument.name)
        if source in ("True", "False"):
            given[argument.name] = source == "True"
        elif source in names:
            given[argument.name] = _fitting(names[source], given[argument.name])
        elif not source.startswith("@"):
            given[argument.name] = argument.default
    if function.inplace and "input" in given and not op.written:
        given["input"] = _broadcast(op, given)
    return given


def _fitting(parameter: Parameter, value: Any) -> Any:
    """A number where the function takes one and the sample has a tensor, and the reverse."""
    if parameter.c_type.endswith("diopiScalar_t*") and isinstance(value, Tensor):
        return 2
    if "TensorHandle_t" in parameter.c_type and isinstance(value, (int, float)):
        return torch.tensor(float(value))
    if parameter.c_type in ("diopiSize_t", "const int64_t*") and value is None:
        return value
    return value


def _broadcast(op: diopi.Op, given: dict[str, Any]) -> Any:
    """An input that has the shape of the result."""
    result = op.meaning(**op_samples.copied(given))
    first = result[0] if len(op.returns) > 1 else result
    if not isinstance(first, Tensor):
        return given["input"]
    return given["input"].broadcast_to(first.shape).clone()


def parameters(function: Function, given: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """Convert to the parameters of the published function, with memory for the results."""
    op = diopi.get(function.op)
    renames = dict(function.renames)
    sources = {renames.get(a.name, a.name): a.name for a in op.arguments}
    slots = dict(zip((p.name for p in legacy.targets(function)), results, strict=False))
    found: dict[str, Any] = {}
    for parameter in function.parameters:
        name = parameter.name
        if name in sources:
            value = given[sources[name]]
        elif name in slots:
            value = [] if parameter.direction == "alloc" else _empty(slots[name])
        else:
            value = None
        found[legacy.python_name(parameter)] = value
    count = next((p.name for p in function.parameters if p.name in legacy.COUNTS), None)
    if count:
        lists = [v for k, v in found.items() if isinstance(v, list) and v]
        found[count] = len(lists[0]) if count != "num_outs" else len(results[0])
    return found


def _empty(result: Any) -> Any:
    return None if result is None else torch.empty_like(result)


def listed(value: Any) -> list[Any]:
    """Yield one result, or each of several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
