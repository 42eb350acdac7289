# SPDX-License-Identifier: Apache-2.0
"""torch.compile with inductor: compile the graph for the host, run it on the device's memory.

Inductor has no code generator for this device. Its C++ for the CPU works wherever the host reaches
the device's memory: inputs are passed as aliases, and outputs are allocated in device memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from deeplink.errors import DeeplinkError
from torch_dipu import _C

Graph = torch.fx.GraphModule
HOST = torch.device("cpu")


def register(chip: ModuleType) -> None:
    """Wrap inductor's entry point for graphs on this device alone."""
    wrapper = torch._TorchCompileInductorWrapper
    plain: Callable[..., Any] = wrapper.__call__

    def call(self: Any, model: Graph, inputs: Sequence[Any], **kwargs: Any) -> Any:
        if not _uses_device(model, inputs):
            return plain(self, model, inputs, **kwargs)
        return _compile(model, inputs, {**self.config, **(kwargs.get("config_patches") or {})})

    setattr(wrapper, "__call__", call)  # noqa: B010  # a method is not assigned to, for mypy


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "dipu"


def _uses_device(model: Graph, inputs: Sequence[Any]) -> bool:
    values = [*inputs, *(node.meta.get("example_value") for node in model.graph.nodes)]
    return any(_on_device(leaf) for leaf in tree_leaves(values))


def _compile(model: Graph, inputs: Sequence[Any], config: dict[str, Any]) -> Any:
    if not all(_C.host_reachable(i) for i in range(_C.device_count())):
        raise DeeplinkError(
            "inductor compiles for the host, which cannot reach this chip's memory.",
            hint='torch.compile(backend="aot_eager") works on any chip.',
        )
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor import config as inductor_config
    from torch._inductor.decomposition import select_decomp_table

    def compiler(kind: dict[str, Any]) -> Callable[[Graph, Sequence[Any]], Any]:
        def compile_graph(graph: Graph, example: Sequence[Any]) -> Any:
            with inductor_config.patch({**config, "freezing": False}):
                return _compile_graph(graph, example, kind)

        return compile_graph

    backend = aot_autograd(
        fw_compiler=compiler({}),
        bw_compiler=compiler({"is_backward": True}),
        inference_compiler=compiler({"is_inference": True}),
        decompositions=select_decomp_table(),
    )
    return backend(model, inputs)


def _compile_graph(graph: Graph, example: Sequence[Any], kind: dict[str, Any]) -> Any:
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    devices = [_device_of(value) for value in tree_leaves(_output_of(graph))]
    _to_host(graph)
    host_example = [_host_fake(value) for value in example]
    with V.set_fake_mode(detect_fake_mode(host_example)):
        # inductor relies on them, for random numbers among others
        graph = joint_graph_passes(graph)
    compiled = compile_fx_inner(graph, host_example, **kind)
    default = next((d for d in [*map(_device_of, example), *devices] if d.type == "dipu"), None)
    index = 0 if default is None or default.index is None else default.index

    def run(arguments: list[Any]) -> list[Any]:
        inputs = list(arguments)
        arguments.clear()  # boxed calling convention: the callee owns the list
        return _run(compiled, inputs, index, devices)

    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd asks of a compiler
    return run


def _run(compiled: Any, inputs: list[Any], index: int, devices: list[torch.device]) -> list[Any]:
    device_inputs = [value for value in inputs if _on_device(value)]
    hosts = [_C.alias_host(value) for value in device_inputs]
    aliases = iter(hosts)
    outputs = _C.run_on_host(
        compiled, [next(aliases) if _on_device(value) else value for value in inputs], index
    )
    wanted = [device.type == "dipu" for device in devices]
    results: list[Any] = _C.adopt_outputs(list(outputs), wanted, hosts, device_inputs, index)
    return results


def _output_of(graph: Graph) -> Any:
    node = next(node for node in graph.graph.nodes if node.op == "output")
    return tree_map(lambda n: n.meta.get("val") if isinstance(n, torch.fx.Node) else n, node.args)


def _device_of(value: Any) -> torch.device:
    return value.device if isinstance(value, torch.Tensor) else HOST


def _host_fake(value: Any) -> Any:
    """Return an equal fake tensor on the host."""
    if not _on_device(value):
        return value
    mode = getattr(value, "fake_mode", None)
    with mode if mode is not None else contextlib.nullcontext():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=HOST)


def _to_host(graph: Graph) -> None:
    """Replace the device by the host in a graph: in arguments, constants and fake values."""

    def argument(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "dipu":
            return HOST
        return value

    for node in graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, argument)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, argument)
        if "val" in node.meta:
            node.meta["val"] = tree_map(_host_fake, node.meta["val"])
        if node.op == "get_attr":
            constant = getattr(graph, node.target, None)
            if isinstance(constant, torch.Tensor) and _on_device(constant):
                setattr(graph, node.target, _alias_constant(constant))
    graph.recompile()


_constants: list[torch.Tensor] = []  # aliases do not own their memory


def _alias_constant(constant: torch.Tensor) -> torch.Tensor:
    _constants.append(constant)
    alias: torch.Tensor = _C.alias_host(constant)
    return alias
