"""The way in: dynamo's graph to a callable, through AOTAutograd and all passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dicp import torch_internals
from dicp.backend import Backend, Loading, find
from dicp.dynamo_bridge import decompose
from dicp.dynamo_bridge.canonical import canonicalise
from dicp.dynamo_bridge.codegen import emit, results_of
from dicp.dynamo_bridge.freeze import Frozen, lift_attributes
from dicp.dynamo_bridge.options import Options, resolve
from dicp.dynamo_bridge.partition import split
from dicp.dynamo_bridge.run import Constants, Part, Program, finisher

log = logging.getLogger("dicp")


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backend: Backend | str,
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What runs in place of a graph of dynamo's, on the backend given by its record or name."""
    backend = find(backend) if isinstance(backend, str) else backend
    chosen = resolve(backend.options, options or {})
    if backend.whole is not None:
        return backend.whole(gm, example_inputs, chosen)
    backend.version()  # says what is missing before any work is done
    if _wants_gradients(example_inputs) and not backend.training:
        _say_once(
            f"{backend.label} compiles inference only, and gradients are wanted here: eager. "
            "Call the model under torch.no_grad() for inference."
        )
        return gm.forward
    weights = torch_internals.parameters(gm) if chosen.freeze else {}

    def training(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return boxed(build(graph, backend, chosen, {}))

    def inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        same = len(inputs) == len(example_inputs)  # else AOTAutograd changed what is what
        return boxed(build(graph, backend, chosen, weights if same else {}))

    return torch_internals.aot(
        gm,
        example_inputs,
        forward=training,
        backward=training,
        inference=inference,
        table=decompose.table(backend),
    )


def build(
    gm: fx.GraphModule, backend: Backend, options: Options, weights: Mapping[int, Tensor]
) -> Program:
    """One functional graph, all the way to what runs it; `weights` are inputs to freeze."""
    inputs = gm.graph.find_nodes(op="placeholder")
    numbers = {node.name: number for number, node in enumerate(inputs)}
    with torch_internals.without_modes():
        attributes = lift_attributes(gm)
        canonicalise(gm, backend)
        names = {inputs[number].name: number for number in weights}

        def constants(tensors: Mapping[int, Tensor]) -> Constants:
            return attributes | {name: tensors[number] for name, number in names.items()}

        whole = split(gm, backend)
        known = constants(weights)
        parts = [_part(name, sub, backend, known) for name, sub in whole.parts.items()]
        return Program(whole, parts, Frozen(weights), numbers, constants, finisher(_outputs(gm)))


def boxed(program: Program) -> Callable[[list[Any]], list[Any]]:
    """AOTAutograd hands its list over: what it holds may be freed on the way."""

    def call(args: list[Any]) -> list[Any]:
        return program(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    call.program = program  # type: ignore[attr-defined]
    return call


def _part(name: str, sub: fx.GraphModule, backend: Backend, known: Constants) -> Part:
    places = sub.graph.find_nodes(op="placeholder")
    own = [node.name for node in places if node.name in known]
    keep = tuple(i for i, node in enumerate(places) if node.name not in known)
    nodes = list(sub.graph.output_node().args[0])  # type: ignore[arg-type]
    results, inputs = results_of(nodes), tuple(places[i].name for i in keep)

    def load(constants: Constants) -> Any:
        mine = {name: constants[name] for name in own}
        blob = backend.compile(emit(sub, backend, mine))
        threads = torch.get_num_threads()
        return backend.load(blob, Loading(name, mine, results, inputs, threads))

    return Part(name, sub, load, load(known), keep)


def _outputs(gm: fx.GraphModule) -> list[Any]:
    return list(gm.graph.output_node().args[0])  # type: ignore[arg-type]


def _wants_gradients(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in inputs
    )


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning(text)
