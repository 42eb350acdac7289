# SPDX-License-Identifier: Apache-2.0
"""Graphs of dynamo and AOTAutograd, and the fake tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode


def aot(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    table: dict[Any, Any],
) -> Callable[..., Any]:
    """Run AOTAutograd: each functional form of the graph is passed to its compiler."""
    front = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=table,
    )
    return front(gm, inputs)


def decompositions() -> dict[Any, Any]:
    """Return torch's own decompositions to core ATen."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def parameters(gm: fx.GraphModule) -> dict[int, Tensor]:
    """Return the real parameters and buffers among the inputs of dynamo's
    graph, by their number.
    """
    found = {}
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        given = node.meta.get("grapharg")
        source = getattr(given, "source", None)
        if source is None:
            continue
        name = source.name if isinstance(source.name, str) else source.name()
        if "_parameters[" in name or "_buffers[" in name:
            example = given.example
            if isinstance(example, Tensor) and not example.is_inference():
                found[number] = example.detach()
    return found


def device_types(inputs: Sequence[Any]) -> set[str]:
    """Return the device types of tensors; a device that represents CUDA keeps its own name."""
    return {x.device.type for x in inputs if isinstance(x, Tensor)}


def fix_numbers(gm: fx.GraphModule) -> None:
    """Let dynamo trace again with the floats of modules (eps) as constants, with guards.

    With dynamic sizes it makes every float an input, and a norm is then not recognised by
    compilers.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    held = {_held(node) for node in gm.graph.find_nodes(op="placeholder")} - {""}
    new = [name for name in held if not TensorifyState.should_specialize(name)]
    for name in new:
        TensorifyState.specialize(name)
    if new:
        raise TensorifyScalarRestartAnalysis


def _held(node: fx.Node) -> str:
    """Return the symbol of a float that a module holds; "" for any other input."""
    given = node.meta.get("grapharg")
    if given is None or given.is_tensor or not given.pass_arg_as_tensor:
        return ""
    where = given.source.guard_source
    where = where() if callable(where) else where
    if not (where.is_unspecialized_nn_module() or where.is_specialized_nn_module()):
        return ""
    value = getattr(node.meta.get("example_value"), "item_memo", None)
    read = all(user.target == "item" for user in node.users)
    return str(value.node._expr) if value is not None and read else ""


def sizes(gm: fx.GraphModule) -> list[torch.SymInt]:
    """Return the changing sizes among the inputs of dynamo's graph."""
    given = (node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder"))
    return [value for value in given if isinstance(value, torch.SymInt)]


def ranges(changing: Sequence[torch.SymInt]) -> list[tuple[str, str]] | None:
    """Return dynamo's ranges of changing sizes; None where one is no symbol with an example."""
    found = []
    for size in changing:
        node, symbol = size.node, size.node.expr
        if not symbol.is_symbol or symbol != node._expr or not node.has_hint():
            return None
        found.append((str(symbol), str(node.shape_env.var_to_range.get(symbol))))
    return found


def guards_on(changing: Sequence[torch.SymInt]) -> str | None:
    """Return the assumptions about sizes as text; None where they depend on other values."""
    if not changing:
        return ""
    if ranges(changing) is None:  # one was specialised, or unified with another
        return None
    env, symbols = changing[0].node.shape_env, {size.node.expr for size in changing}
    guards = [guard for guard in env.guards if guard.expr.free_symbols & symbols]
    if any(guard.expr.free_symbols - symbols for guard in guards):
        return None
    return env.produce_guards_expression(list(changing), guards=guards) or ""


def holds(guards: str, changing: Sequence[torch.SymInt]) -> bool:
    """Whether these sizes satisfy stored assumptions, which dynamo then guards."""
    if not guards:
        return True
    env = changing[0].node.shape_env
    hints = [size.node.hint for size in changing]
    if not env.evaluate_guards_expression(guards, hints):
        return False
    return bool(env.evaluate_guards_expression(guards, list(changing)))


def fake_mode_for(values: Sequence[Any]) -> FakeTensorMode:
    """Return the mode of these fake tensors; a new one when there are none."""
    mode = detect_fake_mode([v for v in values if isinstance(v, Tensor)])
    return mode if mode is not None else FakeTensorMode()


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode:
    """Return the mode of the fake tensors that describe a graph's values."""
    return fake_mode_for([node.meta.get("val") for node in gm.graph.nodes])


def at_hints(value: Any, mode: FakeTensorMode) -> Any:
    """Replace the symbols of a fake tensor or number by the sizes of the trace;
    None where a symbol has no example.
    """
    if not isinstance(value, Tensor):
        return hint(value)
    sizes, strides = [hint(s) for s in value.shape], [hint(s) for s in value.stride()]
    if None in sizes or None in strides:
        return None
    with mode:
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def hint(size: Any) -> Any:
    """Return a size, or the example of a symbol, without a guard."""
    return size if not hasattr(size, "node") else size.node.hint
