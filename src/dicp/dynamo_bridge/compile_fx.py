"""The way in: dynamo's graph to a callable, through AOTAutograd and all passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dicp import torch_internals
from dicp.backend import Backend, find
from dicp.dynamo_bridge import decompose, report
from dicp.dynamo_bridge.build import boxed, build
from dicp.dynamo_bridge.measure import Choice
from dicp.dynamo_bridge.options import resolve

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
        return backend.whole(gm, example_inputs, chosen)  # type: ignore[no-any-return]
    backend.version()  # says what is missing before any work is done
    if wants_gradients(example_inputs) and not backend.training:
        say_once(
            f"{backend.label} compiles inference only, and gradients are wanted here: eager. "
            "Call the model under torch.no_grad() for inference."
        )
        report.begin(backend.label, "training").decision = "eager: it compiles inference only"
        report.write()
        return gm.forward
    weights = torch_internals.parameters(gm) if chosen.freeze else {}
    graphs: list[report.Record] = []

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(report.begin(backend.label, kind))
            # with another number of inputs, AOTAutograd changed which is which
            frozen = kind == "inference" and len(inputs) == len(example_inputs)
            program = build(graph, backend, chosen, weights if frozen else {}, graphs[-1])
            report.write()
            return boxed(program)

        return compile_graph

    compiled = torch_internals.aot(
        gm,
        example_inputs,
        forward=compiler("forward"),
        backward=compiler("backward"),
        inference=compiler("inference"),
        table=decompose.table(backend),
    )
    inference = [record.kind for record in graphs] == ["inference"]
    if not (chosen.measure and inference) or chosen.verify or backend.simulated:
        return compiled

    def decided(text: str) -> None:
        graphs[0].decision = text
        report.write()
        log.info("%s: graph %d stays %s", backend.label, graphs[0].number, text)

    return Choice(compiled, gm.forward, decided)


def wants_gradients(inputs: Sequence[Any]) -> bool:
    """Whether a graph is one of training."""
    return torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in inputs
    )


_said: set[str] = set()


def say_once(text: str) -> None:
    """A warning that is not repeated in this process."""
    if text not in _said:
        _said.add(text)
        log.warning(text)
