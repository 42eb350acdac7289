# SPDX-License-Identifier: Apache-2.0
"""The functions of the published headers as Python calls, with their order of parameters.

    diopi.call("diopiSoftmax", out, input, 1)

The context is omitted. A parameter that the callee allocates (`diopiTensorHandle_t*`), or that is a
pointer to a number, is a list that receives the results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import UnknownOpError
from diopi import catalogue, op
from diopi.catalogue import Function, Parameter

Kernel = Callable[..., Any]

# The memory formats and rounding modes, by their numbers in the headers.
MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.contiguous_format,
    torch.channels_last,
    torch.channels_last_3d,
    torch.preserve_format,
)
ROUND_MODES = (None, "trunc", "floor")


def call(name: str, *args: Any, kernel: Kernel | None = None, **kwargs: Any) -> Any:
    """Run a function by its published name, with a kernel of its op, or else with its meaning.

    Return what it wrote: one tensor, a tuple, or None.
    """
    declared = op.by_legacy(name)
    function = catalogue.functions()[name]
    given = signature(name).bind(*args, **kwargs)
    given.apply_defaults()
    parameters = given.arguments
    _check_counts(function, parameters)
    result = (kernel or declared.meaning)(**arguments(function, parameters))
    return _deliver(function, parameters, result)


@cache
def signature(name: str) -> inspect.Signature:
    """Return the parameters in the order of the header, without the context."""
    try:
        function = catalogue.functions()[name]
    except KeyError:
        op.by_legacy(name)  # raises with a hint
        raise UnknownOpError(f"no function {name!r}") from None
    return inspect.Signature(
        [
            inspect.Parameter(python_name(p), inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for p in function.parameters
        ]
    )


def arguments(function: Function, parameters: dict[str, Any]) -> dict[str, Any]:
    """Convert the parameters of a function to the arguments of the op."""
    renames = dict(function.renames)
    known = {p.name: p for p in function.parameters}
    found = {}
    for argument in op.get(function.op).arguments:
        source = renames.get(argument.name, argument.name)
        if source.startswith("@"):
            found[argument.name] = DERIVED[source](function, parameters)
        elif source in known:
            value = parameters[python_name(known[source])]
            found[argument.name] = _convert(known[source], value)
        elif source in ("True", "False"):
            found[argument.name] = source == "True"
    return found


def python_name(parameter: Parameter) -> str:
    """Return the Python name of a parameter: some names in C are keywords of Python."""
    return {"from": "low", "to": "high", "in": "input"}.get(parameter.name, parameter.name)


def _convert(parameter: Parameter, value: Any) -> Any:
    """Convert a number of a C enumeration to its meaning; return any other value unchanged."""
    if parameter.c_type == "diopiRoundMode_t" and isinstance(value, int):
        return ROUND_MODES[value]
    if parameter.c_type == "diopiMemoryFormat_t" and isinstance(value, int):
        return MEMORY_FORMATS[value]
    if parameter.name == "reduce":
        return value or None
    if parameter.c_type == "diopiSize_t" and isinstance(value, Sequence):
        return list(value)
    return value


COUNTS = frozenset(
    """
    inputSize nums num_inputs numTensors num_outs inputsNum indices_counts num_grads
    num_scaled_grads
    """.split()
)


def _check_counts(function: Function, parameters: dict[str, Any]) -> None:
    count = next((p for p in function.parameters if p.name in COUNTS), None)
    if count is None:
        return
    lists = [p for p in function.parameters if _is_list(p) and p.direction != "alloc"]
    lists = lists or [p for p in function.parameters if _is_list(p)]
    stated = parameters[count.name]
    length = len(parameters[lists[0].name]) if lists else stated
    if stated != length and not (count.name == "num_outs" and length == 0):
        raise ValueError(f"{function.name}: {count.name} is {stated}, {lists[0].name} has {length}")


def _is_list(parameter: Parameter) -> bool:
    return parameter.c_type in ("diopiTensorHandle_t*", "diopiConstTensorHandle_t*")


# --- arguments that the headers leave to the callee -------------------------------------------


def _input(parameters: dict[str, Any]) -> Tensor:
    tensor: Tensor = parameters["input"]
    return tensor


def _first_output(function: Function, parameters: dict[str, Any]) -> Tensor:
    name = next(p.name for p in function.parameters if p.direction in ("out", "inout"))
    tensor: Tensor = parameters[name]
    return tensor


def _total_weight(function: Function, parameters: dict[str, Any]) -> Tensor:
    del function
    target, weight = parameters["target"], parameters["weight"]
    kept = target[target != parameters["ignore_index"]]
    dtype = _input(parameters).dtype
    if weight is None:
        return torch.tensor(kept.numel(), dtype=dtype, device=target.device)
    total: Tensor = weight[kept].sum()
    return total.to(dtype)


def _keepdim(function: Function, parameters: dict[str, Any]) -> bool:
    return _first_output(function, parameters).dim() == _input(parameters).dim() > 0


def _mask(function: Function, parameters: dict[str, Any]) -> list[bool]:
    outputs = (p for p in function.parameters if p.direction in ("out", "inout"))
    return [parameters[p.name] is not None for p in outputs]


DERIVED: dict[str, Callable[[Function, dict[str, Any]], Any]] = {
    "@zeros": lambda f, p: [0] * len(p["stride"]),
    "@mask": _mask,
    "@batch": lambda f, p: _input(p).shape[0],
    "@channels": lambda f, p: _input(p).shape[1],
    "@pixels": lambda f, p: _input(p)[0, 0].numel() if _input(p).numel() else 0,
    "@grad_dtype": lambda f, p: p["grad_input"].dtype,
    "@out_shape": lambda f, p: list(_first_output(f, p).shape),
    "@out_dtype": lambda f, p: _first_output(f, p).dtype,
    "@keepdim": _keepdim,
    "@total_weight": _total_weight,
}


# --- results into the parameters that receive them --------------------------------------------


def targets(function: Function) -> list[Parameter]:
    """Return the parameters that receive the op's results, in their order."""
    renames = dict(function.renames)
    written = {renames.get(a.name, a.name) for a in op.get(function.op).written}
    return [p for p in function.parameters if p.direction != "in" and p.name not in written]


def _deliver(function: Function, parameters: dict[str, Any], result: Any) -> Any:
    returns = op.get(function.op).returns
    results = [result] if len(returns) == 1 else list(result or ())
    delivered = []
    for parameter, value in zip(targets(function), results, strict=False):
        slot = parameters[python_name(parameter)]
        if slot is None or value is None:
            continue
        _write(function, parameter, slot, value)
        delivered.append(slot)
    return delivered[0] if len(delivered) == 1 else tuple(delivered) or None


def _write(function: Function, parameter: Parameter, slot: Any, value: Any) -> None:
    if isinstance(slot, list):
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if slot and all(isinstance(item, Tensor) for item in slot):
            for item, new in zip(slot, values, strict=True):
                _copy(function, parameter, item, new)
        else:
            slot[:] = values
    else:
        _copy(function, parameter, slot, value)


def _copy(function: Function, parameter: Parameter, slot: Tensor, value: Tensor) -> None:
    if slot.shape != value.shape:
        raise ValueError(
            f"{function.name}: {parameter.name} has shape {list(slot.shape)}, "
            f"the result {list(value.shape)}"
        )
    slot.copy_(value)
