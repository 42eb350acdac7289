# SPDX-License-Identifier: Apache-2.0
"""Routes to a vendor's C functions: the source of each parameter on an overload's stack.

The plans are computed when the library is loaded; the calls are made by csrc/routes/c_route.cpp.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._C import _dispatch_has_computed_kernel_for_dispatch_key as has_computed
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

from diopi import cabi, catalogue, cfunction, handles, legacy
from diopi.catalogue import Function, Parameter
from diopi.codegen import shapes
from diopi.op import MISSING, Op, all_ops
from diopi.resolve import writes_in_place
from diopi.schema import Argument, own_name
from torch_dipu import _C

# An operator that torch calls on a device -> the overload of the interface, with an argument fewer.
ASKED_AS = {"aten::convolution_backward_overrideable": "convolution_backward"}
NOWHERE = -(2**15)  # no argument is copied into a result beforehand

# C type of a parameter -> its code in c_route.cpp
CODES = {
    "diopiTensorHandle_t": "T",
    "diopiConstTensorHandle_t": "T",
    "diopiTensorHandle_t*": "L",
    "diopiConstTensorHandle_t*": "L",
    "diopiGeneratorHandle_t": "G",
    "diopiScalar_t*": "S",
    "diopiSize_t": "Z",
    "diopiSize_t*": "z",
    "int64_t": "I",
    "int32_t": "I",
    "int": "I",
    "diopiReduction_t": "I",
    "int64_t*": "l",
    "double": "D",
    "float": "D",
    "double*": "d",
    "bool": "B",
    "bool*": "b",
    "char*": "C",
    "diopiDtype_t": "Y",
    "diopiDtype_t*": "y",
    "diopiMemoryFormat_t": "F",
    "diopiMemoryFormat_t*": "f",
    "diopiRoundMode_t": "O",
}
ARRAYS = {"float[]": "x", "bool[]": "m"}  # type of an argument -> code


def routes(kernels: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route for every overload that C functions of a vendor's kernels can run.

    Kernels that a convert_config.yaml changes stay in Python, which makes the conversions.
    """
    found = {}
    for name, kernel in kernels.items():
        inner = inspect.unwrap(kernel)
        if isinstance(inner, cabi.Kernel) and not getattr(kernel, "lays_out", False):
            refused = [handles.CODES[dtype] for dtype in getattr(kernel, "converts", ())]
            found.update(_routes(all_ops()[name], inner, refused))
    if found:
        _C.take_c_runtime(ctypes.addressof(handles.RUNTIME))
    return found


def _routes(op: Op, kernel: cabi.Kernel, refused: list[int]) -> dict[str, Any]:
    entries = {
        bound.name: ctypes.cast(bound.entry, ctypes.c_void_p).value for bound in kernel.functions
    }
    found = {}
    for overload, plan in plans(op, list(entries)).items():
        for function in plan["functions"]:
            function["address"] = entries[function["name"]]
        found[overload] = _C.c_route(kernel.vendor, plan | {"refused": refused}, kernel.last_error)
    return found


def plans(op: Op, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return, for each overload of an op, the plan that calls the functions of these names."""
    functions = [f for f in cfunction.functions() if f.op == op.name and f.name in names]
    asked = [overload for overload, as_ in ASKED_AS.items() if f"aten::{as_}" in op.aten]
    found = {overload: _plan(op, overload, functions) for overload in (*op.aten, *asked)}
    return {overload: plan for overload, plan in found.items() if plan is not None}


def _schema(overload: str) -> Any:
    """Return the schema in the installed torch, or None where it has no such overload."""
    base, _, name = overload.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    found = getattr(packet, name or "default", None) if packet else None
    return None if found is None else found._schema


class _Stack:
    """The positions of an op's arguments: on the stack of an overload, or among constants."""

    def __init__(self, op: Op, schema: Any) -> None:
        self.op = op
        self.constants: list[Any] = []
        self.arguments = schema.arguments
        self.outs = [i for i, a in enumerate(schema.arguments) if _is_out(a)]
        taken = [(i, a.name) for i, a in enumerate(schema.arguments) if i not in self.outs]
        self.places = {own_name(schema.name, name): i for i, name in taken}

    def source(self, argument: Argument) -> int | None:
        """Return the source of an argument; None where the overload lacks a required argument."""
        if argument.name in self.places:
            return self.places[argument.name]
        if argument.required:
            return self.constant(None) if argument.optional else None
        return self.constant(argument.default)

    def constant(self, value: Any) -> int:
        self.constants.append(value)
        return -len(self.constants)


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info and argument.alias_info.is_write)


def _plan(op: Op, overload: str, functions: list[Function]) -> dict[str, Any] | None:
    schema = _schema(overload)
    known = catalogue.overloads().get(overload.removeprefix("aten::"))
    of = f"aten::{known.of}" if known else overload
    of = {"aten::convolution_overrideable": "aten::convolution"}.get(of, of)
    form = known.form if known else "functional"
    # a composite whose parts have gradients of their own would lose them
    if schema is None or has_kernel(overload, "CompositeImplicitAutograd"):
        return None
    if any(kind != "Tensor" for kind in op.returns):
        return None
    if op.dynamic and form != "functional":
        return None
    if not op.dynamic and not has_computed(of, "Meta"):
        return None
    stack = _Stack(op, schema)
    results = [-1] * len(op.returns)
    if form == "out":
        results = stack.outs
    elif form == "inplace":
        results = [0]
    if len(results) != len(op.returns) or len(schema.returns) != len(op.returns):
        return None
    found = [_function(function, stack) for function in _ordered(functions, form)]
    usable = [one for one in found if one is not None]
    sources = _functional_sources(of, stack)
    if not usable or sources is None:
        return None
    return {
        "form": form,
        "pointwise": writes_in_place(op, of),
        "dynamic": op.dynamic,
        "mask": next(
            (stack.places[n] for n in ("output_mask", "mask") if _is_mask(op, n, stack)), -1
        ),
        "results": results,
        "functional": of,
        "sources": sources,
        "functions": usable,
        "constants": stack.constants,
    }


def _overload(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _is_mask(op: Op, name: str, stack: _Stack) -> bool:
    return any(a.name == name and a.type == "bool[]" for a in op.arguments) and name in stack.places


def _ordered(functions: list[Function], form: str) -> list[Function]:
    """Order functions by preference: in place where in place is requested, to avoid a copy."""
    return sorted(functions, key=lambda f: not f.inplace) if form == "inplace" else functions


def _functional_sources(of: str, stack: _Stack) -> list[int] | None:
    """Return the sources of the functional overload's arguments."""
    found = []
    for argument in _overload(of)._schema.arguments:
        name = own_name(of, argument.name)
        if name in stack.places:
            found.append(stack.places[name])
        elif argument.has_default_value():
            found.append(stack.constant(_plain(argument.default_value)))
        else:
            return None
    return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, list)) else None


def _function(function: Function, stack: _Stack) -> dict[str, Any] | None:
    renames = dict(function.renames)
    arguments = {argument.name: argument for argument in stack.op.arguments}
    argument_of = {renames.get(name, name): argument for name, argument in arguments.items()}
    targets = [parameter.name for parameter in legacy.targets(function)]
    rows = []
    for parameter in function.parameters:
        row = _parameter(parameter, argument_of, targets, stack)
        if row is None:
            return None
        rows.append(row)
    conditions = _conditions(function, renames, arguments, stack)
    if conditions is None:
        return None
    return {
        "name": function.name,
        "shape": shapes.shape(function),
        "parameters": rows,
        "conditions": conditions,
    }


# code, source, source of the initial values of a result, whether None is accepted
Row = tuple[str, int, int, bool]


def _parameter(
    parameter: Parameter, argument_of: Mapping[str, Argument], targets: list[str], stack: _Stack
) -> Row | None:
    kind = cfunction.bare(parameter)
    argument = argument_of.get(parameter.name)
    if parameter.name in targets:
        return _target(parameter, argument, targets.index(parameter.name), stack)
    if argument is not None:
        source = stack.source(argument)
        code = ARRAYS.get(argument.type) if kind.endswith("*") else None
        code = code or CODES.get(kind)
        if source is None or code is None or argument.type == "Scalar[]":
            return None
        nullable = cfunction.nullable(parameter) or argument.type == "Generator"
        return (code, source, NOWHERE, nullable)
    if parameter.name in legacy.COUNTS or parameter.name.endswith("_len"):
        counted = _counted(parameter.name, argument_of, stack)
        return None if counted is None else ("N", counted, NOWHERE, True)
    code = CODES.get(kind)
    return None if code is None else (code, stack.constant(None), NOWHERE, True)


def _target(
    parameter: Parameter, argument: Argument | None, index: int, stack: _Stack
) -> Row | None:
    if index >= len(stack.op.returns):
        return None
    if parameter.direction == "alloc":
        return ("A", index, NOWHERE, False) if stack.op.dynamic else None
    if cfunction.bare(parameter) not in cfunction.TENSORS or stack.op.dynamic:
        return None
    filled = NOWHERE if argument is None else stack.source(argument)
    return None if filled is None else ("R", index, filled, True)


def _counted(name: str, argument_of: Mapping[str, Argument], stack: _Stack) -> int | None:
    counted = name.removesuffix("_len")
    for argument in argument_of.values():
        if argument.name == counted or (
            name in legacy.COUNTS and argument.type in ("Tensor[]", "Tensor?[]")
        ):
            return stack.source(argument)
    return None


def _conditions(
    function: Function,
    renames: Mapping[str, str],
    arguments: Mapping[str, Argument],
    stack: _Stack,
) -> list[tuple[int, str, Any]] | None:
    """Return the values required of arguments that a function does not take;
    None if unsatisfiable.
    """
    taken = {parameter.name for parameter in function.parameters}
    found: list[tuple[int, str, Any]] = []
    for name, argument in arguments.items():
        implied = renames.get(name, "")
        if renames.get(name, name) in taken or (implied.startswith("@") and implied != "@zeros"):
            continue
        source = stack.source(argument)
        if source is None:
            return None
        if implied == "@zeros":
            found.append((source, "z", None))
        elif implied in ("True", "False"):
            found.append((source, "=", implied == "True"))
        else:
            default = None if argument.default is MISSING else _plain(argument.default)
            found.append((source, "=", default))
    return found


def _grad_sizes(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Meta kernel of convolution_backward_overrideable, which torch lacks."""
    channels = grad_output.shape[1]
    made = (
        torch.empty_like(input, memory_format=torch.contiguous_format),
        torch.empty_like(weight, memory_format=torch.contiguous_format),
        grad_output.new_empty(channels),
    )
    return tuple(one if wanted else None for one, wanted in zip(made, output_mask, strict=True))


def _register_meta() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("convolution_backward_overrideable", _grad_sizes)
    return library


_META = _register_meta()  # the registration lasts as long as this object
