# SPDX-License-Identifier: Apache-2.0
"""A function of someone else as the kernel of an op: which argument goes where."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import NoKernelError
from diopi import inference
from diopi.conformance.cases.bound import REDUCTIONS
from diopi.inference import Described
from diopi.op import Op, signature
from diopi.resolve import device_of
from diopi.schema import RENAMED, Argument

Kernel = Callable[..., Any]
# other names of an argument, by that of ops
SYNONYMS: dict[str, tuple[str, ...]] = {
    "input": ("x", "self", "inp", "a", "src", "in0", "x0", "t", "X", "A", "inputs", "data"),
    "other": ("y", "b", "in1", "x1", "B", "Y", "rhs", "exponent"),
    "mat2": ("other", "b", "y", "B", "w", "weight"),
    "weight": ("w", "gamma", "scale", "W"),
    "bias": ("b", "beta", "B"),
    "dim": ("axis", "dims", "axes"),
    "keepdim": ("keepdims", "keep_dim"),
    "eps": ("epsilon", "variance_epsilon"),
    "indices": ("index", "ids", "idx", "input"),
    "index": ("indices", "idx"),
    "target": ("y", "targets", "labels"),
    "normalized_shape": ("shape",),
    "exponent": ("other", "y", "b"),
}
OUTPUTS = ("out", "output", "o", "dst", "result", "out_ptr")  # a buffer that the function writes
WORDS = {number: word for word, number in REDUCTIONS.items()}
POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
LAST_DIM = "dim"  # a function without it computes along the last dimension
SILENT = frozenset({"half_to_float"})  # an argument that no program sets
SHAPE = "normalized_shape"  # a function without it normalises the last dimension


@dataclass(frozen=True)
class Adapted:
    """The kernel of an op, called with the op's arguments."""

    op: Op
    function: str  # its name
    kernel: Kernel
    call: Kernel
    inplace: bool = False
    limits: str = ""  # which calls it cannot take, by its parameters


@dataclass(frozen=True)
class _Plan:
    places: tuple[tuple[str, str], ...]  # parameter of the function -> argument of the op
    positional: frozenset[str]  # parameters that are given by position
    absent: tuple[str, ...]  # arguments of the op that the function does not take
    output: str = ""  # the parameter that is a buffer for the result
    spread: bool = False  # *args: the op's arguments in their order


def adapted(op: Op, name: str, function: Kernel, inplace: bool = False) -> Adapted | str:
    """Return a function as the kernel of an op; a text with the reason where it cannot be one."""
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, a binding of C++
        taken = inspect.Signature([Parameter("args", Parameter.VAR_POSITIONAL)]).parameters
    plan = _plan(op, taken)
    if isinstance(plan, str):
        return plan
    return Adapted(op, name, function, _call(op, function, plan, taken), inplace, _limits(op, plan))


def _plan(op: Op, taken: Mapping[str, Parameter]) -> _Plan | str:
    arguments = {argument.name: argument for argument in op.arguments}
    plain = {n: p for n, p in taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if not plain and any(p.kind is p.VAR_POSITIONAL for p in taken.values()):
        return _Plan((), frozenset(), (), spread=True)
    places = _by_name(arguments, plain)
    output = next((n for n in plain if n not in places and n.lower() in OUTPUTS), "")
    # what is left of the tensors is matched in order
    left = [a for a in arguments if a not in places.values() and "Tensor" in arguments[a].type]
    for name, parameter in plain.items():
        if name in places or name == output or parameter.kind not in POSITIONAL or not left:
            continue
        if parameter.default is parameter.empty:
            places[name] = left.pop(0)
    shown = f"{op.name}{_shown(op)}"
    for name, parameter in plain.items():
        if name not in places and name != output and parameter.default is parameter.empty:
            return f"its argument {name!r} is none of {shown}"
    absent = [a for a in arguments if a not in places.values()]
    for name in absent:
        if (
            arguments[name].required
            and name not in (LAST_DIM, SHAPE)
            and not (arguments[name].optional)
        ):
            return f"it takes no {name!r}, which {shown} requires"
    if output and (len(op.result_names) != 1 or op.dynamic):
        return f"it writes {output!r}, and {op.name} has {len(op.result_names)} results"
    positional = frozenset(n for n, p in plain.items() if p.kind in POSITIONAL)
    if not _leading(plain, places, output, positional):
        positional = frozenset(n for n, p in plain.items() if p.kind is p.POSITIONAL_ONLY)
    return _Plan(tuple(places.items()), positional, tuple(absent), output)


def _leading(
    plain: Mapping[str, Parameter], places: Mapping[str, str], output: str,
    positional: frozenset[str],
) -> bool:  # fmt: skip
    """Whether no unmatched parameter stands before a matched one."""
    used = [name in places or name == output for name in plain if name in positional]
    return sorted(used, reverse=True) == used


def _by_name(arguments: Mapping[str, Argument], plain: Mapping[str, Parameter]) -> dict[str, str]:
    places: dict[str, str] = {}
    for name in plain:
        own = RENAMED.get(name, name)
        if own in arguments:
            places[name] = own
    for own in arguments:
        if own in places.values():
            continue
        for name in SYNONYMS.get(own, ()):
            if name in plain and name not in places:
                places[name] = own
                break
    return places


def _shown(op: Op) -> str:
    return str(inspect.Signature([
        p.replace(annotation=p.empty) for p in signature(op).parameters.values()
    ]))  # fmt: skip


def _limits(op: Op, plan: _Plan) -> str:
    required = {argument.name for argument in op.arguments if argument.required}
    last = {LAST_DIM, SHAPE} & required & set(plan.absent)
    rest = [name for name in plan.absent if name not in last and name not in SILENT]
    words = ["the last dimension alone"] if last else []
    words += [f"no {', '.join(rest)}"] if rest else []
    return "; ".join(words)


def _call(op: Op, function: Kernel, plan: _Plan, taken: Mapping[str, Parameter]) -> Kernel:
    takes = signature(op)
    arguments = {argument.name: argument for argument in op.arguments}

    def call(*args: Any, **kwargs: Any) -> Any:
        given = takes.bind(*args, **kwargs)
        named = given.arguments
        if plan.spread:
            return _refusable(op, function, _spread(op, named), _keywords(op, named))
        for name in plan.absent:
            if name in named and not _neutral(name, arguments[name], named):
                raise NoKernelError(f"{op.name}: the kernel takes no {name}")
        words: dict[str, Any] = {}
        for parameter, name in plan.places:
            if name in named:
                words[parameter] = _converted(op, arguments[name], taken[parameter], named[name])
        if plan.output:
            words[plan.output] = _buffer(op, args, kwargs)
        ordered = []
        for parameter in taken:
            if parameter not in plan.positional or parameter not in words:
                break
            ordered.append(words.pop(parameter))
        result = _refusable(op, function, ordered, words)
        if plan.output and result is None:
            place = list(taken).index(plan.output)
            return ordered[place] if place < len(ordered) else words[plan.output]
        return result

    return call


def _refusable(op: Op, function: Kernel, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a function; its own statement that it does not take these arguments is a refusal."""
    try:
        return function(*args, **kwargs)
    except NoKernelError:
        raise
    except (NotImplementedError, AssertionError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise NoKernelError(f"{op.name}: the kernel refuses: {text}") from error


def _spread(op: Op, named: Mapping[str, Any]) -> list[Any]:
    found = []
    for argument in op.arguments:
        if argument.kwarg_only or argument.name not in named:
            break
        found.append(named[argument.name])
    return found


def _keywords(op: Op, named: Mapping[str, Any]) -> dict[str, Any]:
    rest = {a.name: a for a in op.arguments if a.kwarg_only}
    return {n: v for n, v in named.items() if n in rest and v != rest[n].default}


def _neutral(name: str, argument: Argument, named: Mapping[str, Any]) -> bool:
    """Whether an argument has the value that a function without this parameter computes with."""
    value = named[name]
    first = next((v for v in named.values() if isinstance(v, Tensor)), None)
    if name == LAST_DIM and argument.required and first is not None:
        dims = value if isinstance(value, (list, tuple)) else [value]
        return len(dims) == 1 and dims[0] in (-1, max(0, first.dim() - 1))
    if name == SHAPE and first is not None:
        return list(value) == list(first.shape[-1:])
    if value is None:
        return True
    if argument.type == "dtype":
        return first is not None and value == first.dtype
    if argument.required or isinstance(value, Tensor):
        return False
    return bool(value == argument.default) or not value


def _converted(op: Op, argument: Argument, parameter: Parameter, value: Any) -> Any:
    """Return a value in the form that the function's own default or annotation shows."""
    note = parameter.annotation
    is_tensor = argument.type == "Tensor"
    if is_tensor and isinstance(value, (bool, int, float, complex)):
        raise NoKernelError(f"{op.name}: {argument.name} is a number, the kernel takes tensors")
    whole = note in (int, "int") or type(parameter.default) is int
    if whole and isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise NoKernelError(f"{op.name}: the kernel takes one {argument.name}, not {value}")
        return value[0]
    if argument.name == "reduction" and isinstance(parameter.default, str):
        return WORDS.get(value, value)
    return value


def _buffer(op: Op, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """Allocate the result for a function that writes it."""
    found = inference.results(op.meaning, args, kwargs)
    if found is None or not isinstance(found[0], Described):
        raise NoKernelError(f"{op.name}: the size of its result depends on values")
    kind = found[0]
    return torch.empty(kind.shape, dtype=kind.dtype, device=device_of(args, kwargs))
