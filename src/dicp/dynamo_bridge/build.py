# SPDX-License-Identifier: Apache-2.0
"""Compilation of one functional graph: passes, partitions, loading."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from dicp import torch_internals
from dicp.backend import GraphCompiler
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.cache import graph_cache
from dicp.dynamo_bridge.debug import blame
from dicp.dynamo_bridge.load import make_part
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.partition import split
from dicp.dynamo_bridge.passes.canonical import canonicalise
from dicp.dynamo_bridge.passes.fold import Folded, fold
from dicp.dynamo_bridge.passes.freeze import Frozen, lift_attributes
from dicp.dynamo_bridge.passes.in_place import write_in_place
from dicp.dynamo_bridge.passes.layout import arrange
from dicp.dynamo_bridge.passes.merge import merge
from dicp.dynamo_bridge.passes.rewrite import activate, rewrite
from dicp.dynamo_bridge.report import Record
from dicp.dynamo_bridge.run import Constants, Program, finisher, orders_of

log = logging.getLogger("dicp")


def build(
    gm: fx.GraphModule,
    backend: GraphCompiler,
    options: Options,
    weights: Mapping[int, Tensor],
    record: Record | None = None,
    keep: Callable[[graph_cache.Plan], None] | None = None,
) -> Program:
    """Build the program of a graph; `weights` are the values of inputs that become constants.

    `keep` receives the program's plan.
    """
    record = record or Record(0, backend.label, "inference")
    with torch_internals.without_modes(), torch.no_grad():
        traced = _copy(gm)
        program = _build(gm, backend, options, weights, record, keep)
        if options.verify:
            quiet = replace(options, verify=False, cache=False)
            again = _whole(backend, quiet), _bare(backend, quiet)
            blame.watch(program, traced, backend.label, *again)
    program.rebuild = lambda rest: build(_copy(traced), backend, options, rest, record)
    return program


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    return fx.GraphModule(gm, copy.deepcopy(gm.graph))


def _whole(backend: GraphCompiler, options: Options) -> blame.Again:
    def again(gm: fx.GraphModule, inputs: list[Any], frozen: Collection[str]) -> Sequence[Any]:
        places = gm.graph.find_nodes(op="placeholder")
        weights = {i: inputs[i] for i, node in enumerate(places) if node.name in frozen}
        return build(_copy(gm), backend, options, weights)(list(inputs))

    return again


def _bare(backend: GraphCompiler, options: Options) -> blame.Again:
    def again(gm: fx.GraphModule, inputs: list[Any], frozen: Collection[str]) -> Sequence[Any]:
        places = gm.graph.find_nodes(op="placeholder")
        known = {n.name: x for n, x in zip(places, inputs, strict=True) if n.name in frozen}
        part = make_part("cut", gm, backend, options, known, Record(0, backend.label, "cut"))
        return part.executable([inputs[i] for i in part.keep])

    return again


def _build(
    gm: fx.GraphModule,
    backend: GraphCompiler,
    options: Options,
    weights: Mapping[int, Tensor],
    record: Record,
    keep: Callable[[graph_cache.Plan], None] | None,
) -> Program:
    inputs = gm.graph.find_nodes(op="placeholder")
    numbers = {node.name: number for number, node in enumerate(inputs)}
    names = {inputs[number].name: number for number in weights}
    orders = orders_of(gm)
    with timed(record, "passes"):
        attributes = lift_attributes(gm)
        folded = passes(gm, backend, options, {*attributes, *names})
        whole = split(gm, backend)
    report.count(record, whole)
    record.frozen = len(weights)
    for row in record.eager:
        log.info("%s: %s stays eager: %s", backend.label, row["op"], row["reason"])

    def constants(tensors: Mapping[int, Tensor]) -> Constants:
        return folded.constants(attributes | {n: tensors[i] for n, i in names.items()})

    if not options.verify:  # verify mode computes again with the original arguments
        write_in_place(whole.gm, {*attributes, *names})
    with timed(record, "compile"):
        known = constants(weights)
        parts = [
            make_part(name, sub, backend, options, known, record)
            for name, sub in whole.parts.items()
        ]
    frozen = Frozen(weights)
    finish = finisher(orders)
    program = Program(whole, parts, frozen, numbers, known, constants, finish, record)
    if keep and (kept := graph_cache.describe(program, folded, attributes, names, orders)):
        keep(kept)
    return program


def passes(
    gm: fx.GraphModule, backend: GraphCompiler, options: Options, constants: set[str]
) -> Folded:
    """Run all passes on a graph before it is split, in order."""
    canonicalise(gm, backend)
    if options.rewrite:
        rewrite(gm, backend)
    if options.merge:
        merge(gm, backend, constants)
    if options.rewrite:
        activate(gm, backend)
    arrange(gm, backend)
    for own in backend.passes:
        gm = own(gm)
    return fold(gm, constants)


def boxed(program: Program) -> Callable[[list[Any]], list[Any]]:
    """Adapt a program to AOTAutograd, which passes its list on,
    so that tensors can be freed early.
    """
    current = program

    def call(args: list[Any]) -> list[Any]:
        nonlocal current
        if current.unstable_weights:  # hot path: an empty set
            current = current.with_weights_as_inputs()
        return current(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


@contextmanager
def timed(record: Record, stage: str) -> Iterator[None]:
    """Add the time of a block to a record."""
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    record.seconds[stage] = record.seconds.get(stage, 0.0) + spent
