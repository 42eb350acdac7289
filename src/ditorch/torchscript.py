# SPDX-License-Identifier: Apache-2.0
"""TorchScript: in compiled graphs, literal CUDA devices are replaced by the target's.

The compiler turns `device="cuda"` and `x.cuda()` into constants and operators of a graph, which no
Python call reaches. The graph is rewritten where it is created: before its first run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ditorch.patches import Patches, twin
from ditorch.target import Target


def apply(patches: Patches, target: Target) -> None:
    """Patch the functions that compile functions and modules, and that read saved modules."""
    compile_function = torch._C._jit_script_compile
    compile_module = twin(torch.jit._recursive.create_script_module)
    wrap_module = twin(torch.jit._recursive.wrap_cpp_module)

    def script_compile(*args: Any) -> Any:
        made = compile_function(*args)
        rewrite(made.graph, target)
        return made

    def create_script_module(*args: Any, **kwargs: Any) -> Any:
        return _rewritten(compile_module(*args, **kwargs), target)

    def wrap_cpp_module(cpp_module: Any) -> Any:
        return _rewritten(wrap_module(cpp_module), target)

    patches.set(torch._C, "_jit_script_compile", script_compile)
    patches.replace(torch.jit._recursive, "create_script_module", create_script_module)
    patches.replace(torch.jit._recursive, "wrap_cpp_module", wrap_cpp_module)


def _rewritten(module: Any, target: Target) -> Any:
    for each in module.modules():
        if isinstance(each, torch.jit.ScriptModule):
            for name in each._c._method_names():
                rewrite(each._c._get_method(name).graph, target)
    return module


def rewrite(graph: Any, target: Target) -> None:
    """Replace literal CUDA devices, `x.cuda()` and `x.is_cuda` in a graph; idempotent."""
    for node in list(_nodes(graph)):
        kind = node.kind()
        if kind == "prim::Constant" and _is_device(node):
            node.s_("value", target.name(node.s("value")))
        elif kind == "aten::device":
            _rename(graph, node, target)
        elif kind == "aten::cuda":
            _replace(graph, node, "aten::to", [_device(graph, node, target), None, False, False])
        elif kind == "prim::is_cuda":
            _compare(graph, node, target)


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _is_device(node: Any) -> bool:
    return node.output().type().kind() == "DeviceObjType" and "value" in node.attributeNames()


def _rename(graph: Any, node: Any, target: Target) -> None:
    """Rewrite `torch.device("cuda", 0)`, whose name is a constant that other nodes may share."""
    given = list(node.inputs())
    source = given[0].node()
    if source.kind() != "prim::Constant" or given[0].type().kind() != "StringType":
        return
    name = target.name(source.s("value"))
    if name == source.s("value"):
        return
    if not target.has_index and len(given) > 1:  # plain CPU has only one device
        node.replaceInput(1, _constant(graph, node, 0))
    node.replaceInput(0, _constant(graph, node, name))


def _compare(graph: Any, node: Any, target: Target) -> None:
    """Rewrite `x.is_cuda`: True if `x.device.type` is the target's, or always on plain CPU."""
    device = _insert(graph, node, "prim::device", [next(node.inputs())])
    device.setType(torch._C.DeviceObjType.get())
    kind = _insert(graph, node, "prim::type", [device])
    kind.setType(torch._C.StringType.get())
    _replace(graph, node, "aten::eq", [target.device], first=kind)


def _replace(graph: Any, node: Any, kind: str, rest: list[Any], first: Any = None) -> None:
    """Replace a node by another operator on the node's first argument and constants."""
    given = next(node.inputs()) if first is None else first
    values = [v if isinstance(v, torch._C.Value) else _constant(graph, node, v) for v in rest]
    made = _insert(graph, node, kind, [given, *values])
    made.setType(node.output().type())
    node.output().replaceAllUsesWith(made)
    node.destroy()


def _device(graph: Any, node: Any, target: Target) -> Any:
    made = _constant(graph, node, target.device)
    made.node().s_("value", target.device)
    made.setType(torch._C.DeviceObjType.get())
    return made


def _insert(graph: Any, node: Any, kind: str, given: list[Any]) -> Any:
    made = graph.create(kind, given, 1)
    made.insertBefore(node)
    return made.output()


def _constant(graph: Any, node: Any, value: Any) -> Any:
    made = graph.insertConstant(value)
    made.node().moveBefore(node)
    return made
