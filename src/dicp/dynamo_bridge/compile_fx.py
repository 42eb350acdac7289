# SPDX-License-Identifier: Apache-2.0
"""The entry point: from dynamo's graph to a callable, through AOTAutograd and all passes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from dicp import torch_internals
from dicp.backend import GraphCompiler, find
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.build import boxed, build, timed
from dicp.dynamo_bridge.cache import graph_cache, precompile
from dicp.dynamo_bridge.options import Options, of_mode, resolve
from dicp.dynamo_bridge.passes import decompose
from dicp.dynamo_bridge.run import Program
from dicp.dynamo_bridge.tuning import bypass
from dicp.dynamo_bridge.tuning.autotune import Choice, Decision, TrainingChoice

log = logging.getLogger("dicp")


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backend: GraphCompiler | str,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return the callable that replaces a graph of dynamo, for a backend given by
    record or name.
    """
    backend = find(backend) if isinstance(backend, str) else backend
    chosen = resolve(backend.options, of_mode(mode), options or {})
    torch_internals.fix_numbers(gm)
    before = len(report.RECORDS)
    try:
        return _compiled(gm, example_inputs, backend, chosen)
    except torch_internals.UNTRACEABLE as error:
        for record in report.RECORDS[before:]:
            record.taken = record.parts = 0
        return _untraceable(gm, example_inputs, backend, chosen, error)


def _compiled(
    gm: fx.GraphModule, example_inputs: Sequence[Any], backend: GraphCompiler, chosen: Options
) -> Callable[..., Any]:
    if backend.whole is not None:
        return backend.whole(gm, example_inputs, chosen)  # type: ignore[no-any-return]
    backend.version()  # raises for a missing compiler before any work is done
    if wants_gradients(example_inputs) and not backend.training:
        report.warn_once(
            f"{backend.label} compiles inference only, and this graph needs gradients: running "
            "eagerly. Call the model under torch.no_grad() for inference."
        )
        record = report.begin(backend.label, "training")
        record.decide("eager: it compiles inference only", stays_eager=True)
        return gm.forward
    weights = torch_internals.parameters(gm) if chosen.freeze else {}
    record = report.begin(backend.label, "inference")
    key, changing = graph_cache.key(gm, backend, chosen, weights), torch_internals.sizes(gm)
    compiled = _from_disk(key, backend, weights, record, changing)
    if compiled is None:
        compiled = _compile(gm, example_inputs, backend, chosen, weights, record, key)
    traced = None if changing else key  # recompiled without dynamo, sizes would be fixed
    if record_trace := precompile.keep(gm, backend, chosen, weights, traced, restore):
        compiled = precompile.saving(compiled, record_trace)
    return _measured_graph(compiled, gm.forward, backend, chosen, record)


def _untraceable(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backend: GraphCompiler,
    options: Options,
    error: Exception,
) -> Callable[..., Any]:
    """Return an eager callable for the whole graph: torch would break it at every
    frame and retry.
    """
    training = wants_gradients(example_inputs)
    record = report.RECORDS[-1]
    record.decide(f"eager: torch cannot trace {error}", stays_eager=True)
    report.warn_once(
        f"{backend.label}: a graph of {record.nodes} operators stays eager; torch cannot trace "
        f"{error}{' in its forward or backward' if training else ''}"
    )
    ask = options.measure

    def run(*args: Any) -> Any:
        nonlocal ask
        if ask:
            ask = False
            bypass.measure_call(lambda _: None, 0.0, training)
        return gm.forward(*args)

    return run


def restore(kept: precompile.StoredTrace) -> Callable[..., Any]:
    """Return the callable of a graph in a later process, built by its first call with
    the weights.
    """
    run: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal run
        if run is None:
            run = _compiled_again(kept, args)
        return run(*args)

    return call


def _compiled_again(kept: precompile.StoredTrace, args: Sequence[Any]) -> Callable[..., Any]:
    """Return the callable for a graph that an earlier process traced and compiled, at its first
    call.
    """
    backend = find(kept.backend)
    weights = {i: args[i].detach() for i in kept.weights}
    record = report.begin(backend.label, "inference")
    key = kept.key if precompile.is_current(kept, backend) else None
    compiled = _from_disk(key, backend, weights, record)
    if compiled is None:
        compiled = _compile(kept.module(), args, backend, kept.options, weights, record, key)
    return _measured_graph(compiled, _on_first_call(kept.module), backend, kept.options, record)


def _on_first_call(make: Callable[[], fx.GraphModule]) -> Callable[..., Any]:
    """Return a callable whose graph is built at its first call."""
    made: list[fx.GraphModule] = []

    def run(*args: Any) -> Any:
        if not made:
            made.append(make())
        return made[0](*args)

    return run


def _measured_graph(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    backend: GraphCompiler,
    options: Options,
    record: report.Record,
) -> Callable[..., Any]:
    report.write()
    report.warn_if_eager(record)
    if record.kind != "inference" or not options.measure or options.verify or backend.simulated:
        return compiled
    return measured({"compiled": compiled}, eager, record)


def measured(
    candidates: Mapping[str, Callable[..., Any]],
    eager: Callable[..., Any],
    record: report.Record,
) -> Callable[..., Any]:
    """Return the fastest of the compiled graphs and eager, as measured in the first calls."""

    def tell(text: str, winner: str) -> None:
        record.decide(text, stays_eager=winner == "eager")
        log.info("%s: graph %d: %s", record.backend, record.number, text)

    def decided(inner: Decision) -> bool:
        def whole(call: Decision) -> None:
            told = f"{call}, with torch.compile's own part; the graph alone: {inner}"
            tell(told, call.winner)

        took = inner.seconds.get(inner.winner, bypass.SHORT)
        doubted = inner.winner == "eager" and not inner.final  # the compiled graph may still win
        if not doubted and bypass.measure_call(whole, took):
            return True
        tell(str(inner), inner.winner)
        return False

    return Choice(candidates, eager, decided)


def trained(
    compiled: Callable[..., Any], eager: Callable[..., Any], record: report.Record
) -> Callable[..., Any]:
    """Return the faster of the compiled training graph and eager, as measured in a trial; a short
    module, or one in several graphs, is measured in the program's own steps instead.
    """

    def tell(text: str) -> None:
        record.decide(text, stays_eager=True)
        log.info("%s: graph %d: %s", record.backend, record.number, text)

    def decided(trial: Decision) -> None:
        def whole(step: Decision) -> None:
            if step.winner == "eager" and step.final:
                choice.stay_eager()
                told = f"{step.of_steps()}, the whole module in the program's steps"
                tell(f"{told}; the graph alone: {trial.of_steps()}")

        if trial.winner == "eager":
            tell(trial.of_steps())
        bypass.measure_call(whole, trial.seconds[trial.winner], training=True)

    choice = TrainingChoice(compiled, eager, decided)
    return choice


def _from_disk(
    key: str | None,
    backend: GraphCompiler,
    weights: Mapping[int, Tensor],
    record: report.Record,
    changing: Sequence[torch.SymInt] = (),
) -> Callable[..., Any] | None:
    """Return the program that an earlier process compiled for an equal graph."""
    if key is None:
        return None
    with torch_internals.without_modes(), timed(record, "load"):
        program = graph_cache.load(key, backend, weights, record, changing)
    return None if program is None else _direct(program)


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backend: GraphCompiler,
    options: Options,
    weights: Mapping[int, Tensor],
    record: report.Record,
    key: str | None,
) -> Callable[..., Any]:
    plain: list[Program] = []
    start = time.perf_counter()

    def keep(made: graph_cache.Plan) -> None:
        guards = torch_internals.guards_on(torch_internals.sizes(gm))
        if key is not None and guards is not None:
            graph_cache.save(key, replace(made, guards=guards), backend)

    def inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        record.seconds["trace"] = time.perf_counter() - start
        # with another number of inputs, AOTAutograd changed their order
        mine = weights if len(inputs) == len(example_inputs) else {}
        same = graph_cache.is_plain(gm, graph)
        program = build(graph, backend, options, mine, record, keep if same and key else None)
        if same:
            plain.append(program)
        return boxed(program)

    def training(kind: str) -> Callable[..., Callable[..., Any]]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            nonlocal record
            record = record if kind == "forward" else report.begin(backend.label, kind)
            record.kind = kind
            program = build(graph, backend, options, {}, record)
            report.write()
            report.warn_if_eager(record)
            return boxed(program)

        return compile_graph

    compiled = torch_internals.aot(
        gm,
        example_inputs,
        forward=training("forward"),
        backward=training("backward"),
        inference=inference,
        table=decompose.table(backend),
    )
    return _direct(plain[0]) if plain else compiled


def _direct(program: Program) -> Callable[..., Any]:
    """Call a program without AOTAutograd's wrappers, which would do nothing."""
    call = boxed(program)

    def run(*args: Any) -> list[Any]:
        return call(list(args))

    return run


def wants_gradients(inputs: Sequence[Any]) -> bool:
    """Whether a graph is one of training."""
    return torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in inputs
    )
