# SPDX-License-Identifier: Apache-2.0
"""The table of conversions to ONNX, with two decorators: for ops that compute, and that move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx

from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.types import computed_in
from dicp.conversion import Conversions

conversions = Conversions()
Convert = Callable[..., Any]
Reason = Callable[[fx.Node], str | None]
REASONS: dict[Any, Reason] = {}  # reason for a call of an overload to stay eager


def moves(*targets: Any) -> Callable[[Convert], Convert]:
    """Register a conversion that moves elements unchanged, in every type."""

    def register(function: Convert) -> Convert:
        conversions.register_conversion(*targets)(
            _wrapped(function, _as_it_is, lambda dtype: dtype)
        )
        return function

    return register


def computes(*targets: Any) -> Callable[[Convert], Convert]:
    """Register a conversion that computes; see `computing`."""

    def register(function: Convert) -> Convert:
        conversions.register_conversion(*targets)(computing(function))
        return function

    return register


def computing(function: Convert) -> Convert:
    """Wrap a conversion whose inputs and results have the types of `computed_in`; the result is
    cast
    to the type of the node.
    """
    return _wrapped(function, OnnxEmitter.wide, computed_in)


def reason(*targets: Any) -> Callable[[Reason], Reason]:
    """Register a function that returns why a call stays eager, or None."""

    def register(function: Reason) -> Reason:
        REASONS.update(dict.fromkeys(targets, function))
        return function

    return register


def _as_it_is(emitter: OnnxEmitter, value: Value) -> Value:
    return value


def _wrapped(
    function: Convert,
    enter: Callable[[OnnxEmitter, Value], Value],
    leave: Callable[[torch.dtype], torch.dtype],
) -> Convert:
    @wraps(function)
    def convert(emitter: OnnxEmitter, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = mapped((args, kwargs), lambda value: enter(emitter, value))
        made = function(emitter, node, *args, **kwargs)
        return _results(emitter, made, node.meta["val"], leave)

    return convert


def mapped(arguments: Any, change: Callable[[Value], Value]) -> Any:
    """Return arguments with every value among them changed."""
    if isinstance(arguments, Value):
        return change(arguments)
    if isinstance(arguments, tuple | list):
        made = [mapped(argument, change) for argument in arguments]
        return tuple(made) if isinstance(arguments, tuple) else made
    if isinstance(arguments, dict):
        return {key: mapped(argument, change) for key, argument in arguments.items()}
    return arguments


def _results(
    emitter: OnnxEmitter, made: Any, val: Any, leave: Callable[[torch.dtype], torch.dtype]
) -> Any:
    if isinstance(val, tuple | list):
        pairs = zip(made, val, strict=False)
        return [None if m is None else _results(emitter, m, v, leave) for m, v in pairs]
    if not isinstance(val, Tensor):
        return Value(_name(made), val, torch.int64)
    return emitter.cast(Value(_name(made), val, leave(val.dtype)), val.dtype)


def _name(made: Name) -> str:
    return made.name if isinstance(made, Value) else made


def fake(argument: Any) -> Any:
    """Return torch's value of a node's argument: a fake tensor, or the argument itself."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def common_type(*arguments: Any) -> torch.dtype:
    """Return the type to which torch promotes operands."""
    return torch.result_type(*(_operand(argument) for argument in arguments))


def _operand(argument: Any) -> Any:
    if not isinstance(argument, Value):
        return argument
    return argument.val if isinstance(argument.val, Tensor) else 1


def operand(emitter: OnnxEmitter, argument: Any, dtype: torch.dtype) -> str:
    """Return a tensor or a number in a type."""
    return emitter.number(argument, dtype)


def as_result(emitter: OnnxEmitter, node: fx.Node, argument: Any) -> str:
    """Return a tensor or a number in the type in which the node's result is computed."""
    return operand(emitter, argument, computed_in(node.meta["val"].dtype))


def dims_of(x: Value, dims: int | Sequence[int] | None) -> list[int]:
    """Return dimensions as numbers from 0; None, or an empty list, means all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(x.rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return [dim % x.rank for dim in listed] if x.rank else []


def known(*sizes: Any) -> bool:
    """Whether sizes are numbers, not symbols."""
    return all(isinstance(size, int) for size in sizes)


def is_empty(val: Tensor) -> bool:
    """Whether a tensor has no elements, as far as its sizes are known."""
    return any(isinstance(size, int) and size == 0 for size in val.shape)
