# SPDX-License-Identifier: Apache-2.0
"""Code generation: walk one partition and call the backend's emitter;
errors name the user's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink.errors import CompileError, DeeplinkError
from dicp.backend import GraphCompiler, Result
from dicp.emitter import Emitter


def emit(gm: fx.GraphModule, backend: GraphCompiler, constants: Mapping[str, Tensor]) -> bytes:
    """Return the backend's form of a graph; the placeholders named in `constants` are constants."""
    emitter = backend.emitter()
    values: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            tensor = constants[node.name]
            data = tensor if backend.embeds else torch.empty_like(tensor, device="meta")
            values[node] = emitter.constant(node.name, data)
        elif node.op == "placeholder":
            values[node] = emitter.input(node)
        elif node.op == "call_function":
            values[node] = _convert(node, backend, emitter, values)
        elif node.op == "output":
            nodes = list(node.args[0])
            emitter.output([values[n] for n in nodes], nodes)
    return emitter.finish()


def _convert(
    node: fx.Node, backend: GraphCompiler, emitter: Emitter, values: dict[fx.Node, Any]
) -> Any:
    conversion = backend.conversions.get(node.target)
    if conversion is None:
        raise CompileError(f"{backend.label} has no conversion for {describe(node)}")
    args = fx.map_arg(node.args, values.__getitem__)
    kwargs = fx.map_arg(node.kwargs, values.__getitem__)
    try:
        return conversion(emitter, node, *args, **kwargs)
    except DeeplinkError as error:
        raise CompileError(
            f"{backend.label}: {describe(node)}: {error.message}", error.hint
        ) from error
    except Exception as error:  # a vendor's function: any error gets its source line
        text = f"{type(error).__name__}: {error}"
        raise CompileError(f"{backend.label} cannot convert {describe(node)}: {text}") from error


def describe(node: fx.Node) -> str:
    """Describe an operator, its operands, and the line of the program that it comes from."""
    given = ", ".join(_value(arg) for arg in node.args)
    line = user_line(node)
    return f"{node.target}({given})" + (f" at {line}" if line else "")


def _value(argument: Any) -> str:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)


def user_line(node: fx.Node) -> str:
    """Return `file.py:12, in forward`: the innermost line that torch recorded for a node, or ""."""
    lines = [x.strip() for x in (node.meta.get("stack_trace") or "").splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    if not places:
        return ""
    file, line, where = (*places[-1].removeprefix("File ").split(", "), "", "")[:3]
    return f"{file.strip(chr(34))}:{line.removeprefix('line ')}, {where}".rstrip(", ")


def results_of(nodes: Sequence[fx.Node]) -> tuple[Result, ...]:
    """Return the properties of a partition's results."""
    return tuple(_result(node.meta["val"]) for node in nodes)


def _result(value: Any) -> Result:
    if not isinstance(value, Tensor):
        return Result(None)
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return Result(value.dtype, shape, str(value.device))
