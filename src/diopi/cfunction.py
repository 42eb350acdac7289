# SPDX-License-Identifier: Apache-2.0
"""The functions of diopi.h, called from Python: parameters are converted from an op's arguments.

The conversion of each parameter is determined when the library is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from diopi import catalogue, handles, legacy
from diopi.catalogue import Function, Parameter
from diopi.codegen import header
from diopi.handles import Context, CScalar, CSize
from diopi.op import Op, all_ops

TENSORS = ("diopiTensorHandle_t", "diopiConstTensorHandle_t")
LISTS = ("diopiTensorHandle_t*", "diopiConstTensorHandle_t*")


@cache
def functions() -> tuple[Function, ...]:
    """Return every function of diopi.h in order of preference.

    Those named after the op take all arguments, so they are first. In-place functions are last: a
    functional result needs a copy.
    """
    published = [f for f in catalogue.functions().values() if f.op in all_ops()]
    return (*map(_own, all_ops().values()), *sorted(published, key=lambda f: f.inplace))


def _own(op: Op) -> Function:
    """Return the function of an op's own name, `diopi_add`, as diopi.h declares it."""
    written = {argument.name for argument in op.written}
    results = len(op.result_names) + op.returns.count("Tensor[]")
    parameters = []
    for index, found in enumerate(header.parameters(op)[1:]):
        direction = "inout" if found.name in written else "in"
        if index < results and not found.name.endswith("_len"):
            direction = "alloc" if found.c_type.endswith("*") else "out"
        parameters.append(Parameter(found.name, found.c_type, direction, found.nullable))
    return Function(header.symbol(op), "diopi.h", op.name, (), tuple(parameters))


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex))


class Bound:
    """One function of a library, and the source of each of its parameters in the op's arguments."""

    def __init__(self, function: Function, op: Op, entry: Any) -> None:
        self.name = function.name
        self.entry = entry
        self.inplace = function.inplace
        self._function = function
        self._arguments = {argument.name: argument for argument in op.arguments}
        sources = dict(function.renames)
        self._parameter_of = {sources.get(name, name): name for name in self._arguments}
        self._targets = [parameter.name for parameter in legacy.targets(function)]
        self.allocates = any(p.direction == "alloc" for p in function.parameters)
        taken = {p.name for p in function.parameters}
        # arguments that the function does not take: the values that they may have
        self._implied = {
            name: sources.get(name, "")
            for name in self._arguments
            if sources.get(name, name) not in taken
        }
        self._values = [self._conversion(parameter) for parameter in function.parameters]
        entry.restype = c_int32
        entry.argtypes = [c_void_p, *(_c_type(p) for p in function.parameters)]

    def _conversion(self, parameter: Parameter) -> Callable[[Context, Any], Any]:
        name = self._parameter_of.get(parameter.name)
        element = _ELEMENTS.get(self._arguments[name].type) if name is not None else None
        if element is not None:
            return _array(element)
        plain = bare(parameter)
        if plain == "char*" and parameter.optional:
            return lambda call, value: None if value is None else value.encode()
        return _VALUES.get(plain, lambda call, value: value)

    def fits(self, given: Mapping[str, Any]) -> bool:
        return not self.refusal(given)

    def refusal(self, given: Mapping[str, Any]) -> str:
        """Return why the function cannot take these arguments; "" when it can."""
        for name, source in self._implied.items():
            value = given[name]
            if source in ("True", "False") and bool(value) != (source == "True"):
                return f"it has no {name}={value}"
            if source == "@zeros" and any(value):
                return f"it has no {name}={value}"
            default = self._arguments[name].default
            if not source and value is not None and value != default:
                return f"it has no argument {name!r}, which is {value!r}"
        for parameter in self._function.parameters:
            argument = self._parameter_of.get(parameter.name)
            if argument is None:
                continue
            value = given[argument]
            if value is None and not nullable(parameter):
                return f"{argument} is None"
            if bare(parameter) in TENSORS and is_number(value):
                return f"{argument} is a number"
            if "diopiScalar_t" in parameter.c_type and isinstance(value, Tensor):
                return f"{argument} is a tensor"
        return ""

    def arguments(
        self, call: Context, given: Mapping[str, Any], results: Sequence[Any]
    ) -> list[Any]:
        """Return the C arguments after the context."""
        mask = given.get("output_mask", given.get("mask"))
        values: list[Any] = []
        for parameter, convert in zip(self._function.parameters, self._values, strict=True):
            name = self._parameter_of.get(parameter.name)
            if parameter.name in self._targets:
                index = self._targets.index(parameter.name)
                result = results[index] if index < len(results) else None
                if isinstance(mask, (list, tuple)) and index < len(mask) and not mask[index]:
                    result = None
                if name is not None:
                    _copied(result, given[name])  # the function works in place
                values.append(_target(call, parameter, result))
            elif name is not None:
                values.append(convert(call, given[name]))
            elif parameter.name in legacy.COUNTS or parameter.name.endswith("_len"):
                values.append(self._count(parameter.name, given, results))
            else:
                values.append(convert(call, None))
        return values

    def _count(self, name: str, given: Mapping[str, Any], results: Sequence[Any]) -> int:
        """Return the length of the list that a parameter counts: `x_len` counts x,
        others the first list.
        """
        counted = name.removesuffix("_len")
        if counted in given:
            return len(given[counted] or ())
        if counted in self._targets:
            result = results[self._targets.index(counted)]
            return len(result) if isinstance(result, list) else 0
        for value in given.values():
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
                return len(value)
        return next((len(value) for value in results if isinstance(value, list)), 0)

    def results(self, call: Context, arguments: list[Any], results: Sequence[Any]) -> list[Any]:
        """Return the results: those of the caller, and those that the function allocated."""
        found = list(results)
        for parameter, argument in zip(self._function.parameters, arguments, strict=True):
            if parameter.name not in self._targets or parameter.direction != "alloc":
                continue
            index = self._targets.index(parameter.name)
            if parameter.c_type not in LISTS:
                found[index] = argument[0]
                continue
            made = [call.tensor(address) for address in argument if address]
            if isinstance(results[index], list):
                found[index] = made
            elif made:
                found[index] = made[0]
        return found


_C_TYPES: dict[str, Any] = {
    "bool": c_bool,
    "float": c_float,
    "double": c_double,
    "int": ctypes.c_int,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "diopiSize_t": CSize,
    "diopiReduction_t": c_int32,
    "diopiRoundMode_t": c_int32,
    "diopiMemoryFormat_t": c_int32,
    "diopiDtype_t": c_int32,
    "char*": c_char_p,
    "diopiScalar_t*": POINTER(CScalar),
    "diopiSize_t*": POINTER(CSize),
    "diopiDtype_t*": POINTER(c_int32),
    "diopiMemoryFormat_t*": POINTER(c_int32),
    "int64_t*": POINTER(c_int64),
    "double*": POINTER(c_double),
    "bool*": POINTER(c_bool),
}


def bare(parameter: Parameter) -> str:
    """Return the C type without qualifiers that do not matter to a caller."""
    return parameter.c_type.removeprefix("const ").replace(" *", "*")


def _c_type(parameter: Parameter) -> Any:
    return _C_TYPES.get(bare(parameter), c_void_p)


def nullable(parameter: Parameter) -> bool:
    """Whether a parameter accepts None."""
    return parameter.optional or bare(parameter) in (
        "diopiGeneratorHandle_t", "diopiRoundMode_t", "char*", "diopiMemoryFormat_t",
    )  # fmt: skip


def _target(call: Context, parameter: Parameter, result: Any) -> Any:
    """Return a parameter that receives a result: a handle, or a place for an allocated tensor."""
    plain = bare(parameter)
    if plain in TENSORS:
        return call.handle(result) if isinstance(result, Tensor) else None
    if plain in LISTS:
        tensors = result if isinstance(result, list) else [result]
        addresses = [call.handle(t) if isinstance(t, Tensor) else None for t in tensors]
        return call.keep((c_void_p * len(addresses))(*addresses))
    return call.keep((_C_TYPES[plain]._type_ * 1)())


def _copied(result: Any, source: Any) -> None:
    if isinstance(result, Tensor):
        result.copy_(source)
    elif isinstance(result, list):
        for one, value in zip(result, source, strict=True):
            one.copy_(value)


def _handle(call: Context, value: Any) -> int | None:
    return None if value is None else call.handle(value)


def _handles(call: Context, value: Any) -> Any:
    addresses = [_handle(call, tensor) for tensor in value or ()]
    return call.keep((c_void_p * max(1, len(addresses)))(*addresses))


def _numbers(value: Any) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _pointer(make: Callable[[Any], Any]) -> Callable[[Context, Any], Any]:
    return lambda call, value: None if value is None else ctypes.pointer(call.keep(make(value)))


def _array(element: Any) -> Callable[[Context, Any], Any]:
    """Convert a list of plain numbers; its length is a separate parameter."""

    def convert(call: Context, value: Any) -> Any:
        if value is None:
            return None
        items = [handles.scalar(v) if element is CScalar else v for v in value]
        return call.keep((element * max(1, len(items)))(*items))

    return convert


# type of an argument -> of one element, for lists that are no diopiSize_t
_ELEMENTS: dict[str, Any] = {"float[]": c_double, "bool[]": c_bool, "Scalar[]": CScalar}

_VALUES: dict[str, Callable[[Context, Any], Any]] = {
    "diopiTensorHandle_t": _handle,
    "diopiConstTensorHandle_t": _handle,
    "diopiTensorHandle_t*": _handles,
    "diopiConstTensorHandle_t*": _handles,
    "diopiGeneratorHandle_t": lambda call, value: call.generator(value),
    "diopiScalar_t*": _pointer(handles.scalar),
    "diopiSize_t": lambda call, value: call.keep(handles.size(_numbers(value))),
    "diopiSize_t*": _pointer(lambda value: handles.size(_numbers(value))),
    "int64_t*": _pointer(c_int64),
    "double*": _pointer(c_double),
    "bool*": _pointer(c_bool),
    "diopiDtype_t": lambda call, value: handles.CODES[value],
    "diopiDtype_t*": _pointer(lambda value: c_int32(handles.CODES[value])),
    "diopiMemoryFormat_t*": _pointer(lambda value: c_int32(legacy.MEMORY_FORMATS.index(value))),
    "char*": lambda call, value: (value or "").encode(),
    "diopiRoundMode_t": lambda call, value: legacy.ROUND_MODES.index(value),
    "diopiMemoryFormat_t": lambda call, value: legacy.MEMORY_FORMATS.index(
        value or torch.contiguous_format
    ),
    "diopiReduction_t": lambda call, value: int(value),
    "int": lambda call, value: int(value or 0),
    "int32_t": lambda call, value: int(value or 0),
    "int64_t": lambda call, value: int(value or 0),
    "float": lambda call, value: float(value or 0),
    "double": lambda call, value: float(value or 0),
    "bool": lambda call, value: bool(value),
}
