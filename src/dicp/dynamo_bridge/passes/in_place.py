# SPDX-License-Identifier: Apache-2.0
"""In-place execution of ops that write their arguments, which AOTAutograd has made to copy them.

A cache of keys and values is large, and a step writes a small part of it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from dicp.dynamo_bridge.passes.canonical import VIEWS

FUNCTIONAL = torch.ops.higher_order.auto_functionalized_v2
BASES = "_all_bases"
# The views of its base that an argument may be: by an op, with these suffixes of argument names.
PARTS = {
    torch.ops.aten.as_strided.default: ("_size", "_stride", "_storage_offset"),
    torch.ops.aten.slice.Tensor: ("_slice_dim", "_slice_start", "_slice_end"),
}


def write_in_place(gm: fx.GraphModule, constants: Collection[str]) -> int:
    """Replace copying ops by their mutating form where the old value has no further use; return the
    number of replacements. Nodes are processed in the order of execution.
    """
    done = 0
    for node in gm.graph.find_nodes(op="call_function", target=FUNCTIONAL):
        arguments = _arguments(node)
        if arguments is None or not all(_free(base, node, constants) for base in _bases(node)):
            continue
        _exchange(node, arguments)
        done += 1
    gm.recompile()
    return done


def _bases(node: fx.Node) -> list[fx.Node]:
    found: Any = node.kwargs[BASES]
    return list(found)


def _arguments(node: fx.Node) -> dict[str, Any] | None:
    """Return the op's own arguments: numbers of bases, and the part of the base for written ones.

    None for parts that this module does not support.
    """
    given = dict(node.kwargs)
    given.pop(BASES)
    written = [name[1 : -len("_base_index")] for name in given if name.endswith("_base_index")]
    arguments: dict[str, Any] = {}
    for name in written:
        number = given.pop(f"_{name}_base_index")
        arguments[name] = None if number is None else (number, _way(given, name))
    if any(name.startswith("_") for name in given):
        return None
    return given | {"": arguments}


def _way(given: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Return the op that views an argument's base, and its arguments; empty when it is the base."""
    given.pop(f"_{name}_alias", None)
    for view, ends in PARTS.items():
        if f"_{name}{ends[0]}" in given:
            return view, *(given.pop(f"_{name}{end}") for end in ends)
    return ()


def _free(base: fx.Node, node: fx.Node, constants: Collection[str]) -> bool:
    """Whether no node reads a base, or a view of it, after a node."""
    if base.name in constants:
        return False
    return all(user is node or (user < node and not _views(user)) for user in base.users)


def _views(node: fx.Node) -> bool:
    if node.op == "call_module":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        aliases = any(result.alias_info is not None for result in node.target._schema.returns)
        return node.target in VIEWS or aliases
    return True


def _exchange(node: fx.Node, arguments: dict[str, Any]) -> None:
    graph, bases = node.graph, _bases(node)
    written = arguments.pop("")
    with graph.inserting_before(node):
        for name, which in written.items():
            arguments[name] = None
            if which is not None:
                number, way = which
                base = bases[number]
                arguments[name] = graph.call_function(way[0], (base, *way[1:])) if way else base
        call = graph.call_function(node.args[0], (), arguments)  # type: ignore[arg-type]
    call.meta = {k: v for k, v in node.meta.items() if k != "val"}
    for user in list(node.users):
        assert user.target is operator.getitem
        number = int(user.args[1])  # type: ignore[arg-type]
        user.replace_all_uses_with(bases[number - 1] if number else call)
        graph.erase_node(user)
    graph.erase_node(node)
