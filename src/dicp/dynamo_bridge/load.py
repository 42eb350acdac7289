# SPDX-License-Identifier: Apache-2.0
"""One partition: its blob from the cache or the compiler, and the executable loaded from it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink import settings
from deeplink.errors import CompileError, DeeplinkError
from dicp.backend import Executable, GraphCompiler, Loading
from dicp.dynamo_bridge import disk_cache, report
from dicp.dynamo_bridge.codegen import describe, emit, results_of
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.partition import extract, reason
from dicp.dynamo_bridge.report import Record
from dicp.dynamo_bridge.run import Constants, Part, Shape
from dicp.dynamo_bridge.specialize import is_dynamic, specialized

log = logging.getLogger("dicp")


def make_part(
    name: str,
    gm: fx.GraphModule,
    backend: GraphCompiler,
    options: Options,
    known: Constants,
    record: Record,
) -> Part:
    """Compile a partition; `known` are all constants of the graph, by name."""
    shape = shape_of(name, gm, known)
    maker = _Maker(backend, options, record)
    by_size = backend.dynamic == "specialize" and is_dynamic(gm)

    def load(constants: Constants) -> Executable:
        own = shape.own(constants)
        return _by_size(shape, gm, maker, own) if by_size else maker.executable(shape, gm, own)

    part = Part(shape, load, load(known), gm)
    part.key = "" if by_size or backend.embeds else maker.key
    return part


def shape_of(name: str, gm: fx.GraphModule, known: Constants) -> Shape:
    """Return the properties of a partition that are needed without its graph."""
    inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
    nodes = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
    constant = tuple(place for place in inputs if place in known)
    places = [*gm.graph.find_nodes(op="placeholder"), *nodes]
    values = (node.meta.get("val") for node in places)
    devices = {value.device.type for value in values if isinstance(value, Tensor)}
    return Shape(name, inputs, constant, results_of(nodes), tuple(sorted(devices)))


def open_blob(
    blob: bytes, shape: Shape, backend: GraphCompiler, cached: bool, own: Constants
) -> Executable:
    """Return the executable of a compiled partition, for these constants."""
    elsewhere = [device for device in shape.devices if device not in backend.devices]
    if elsewhere:
        own = {place: tensor.cpu() for place, tensor in own.items()}
    folder = settings.DICP_CACHE_DIR.get() / backend.name if cached else None
    changing = tuple(place for place in shape.inputs if place not in own)
    threads = torch.get_num_threads()
    loading = Loading(shape.name, own, shape.results, changing, threads, folder)
    executable = backend.load(blob, loading)
    if not elsewhere:
        return executable
    report.warn_once(
        f"{backend.label} computes on {'/'.join(backend.devices)}: each call copies tensors from "
        f"{'/'.join(elsewhere)} to the host and the results back"
    )
    return _through_host(executable, shape)


class _Maker:
    """Compiles graphs of one partition; a blob without constants is created once."""

    def __init__(self, backend: GraphCompiler, options: Options, record: Record) -> None:
        self.backend, self.options, self.record = backend, options, record
        self.key = ""
        self._blobs: dict[fx.GraphModule, bytes] = {}

    def executable(self, shape: Shape, gm: fx.GraphModule, own: Constants) -> Executable:
        try:
            return open_blob(self._blob(gm, own), shape, self.backend, self.options.cache, own)
        except CompileError:
            raise
        # a vendor's compiler may raise anything; the error gets its source line
        except Exception as error:
            raise self._located_error(error, shape.name, gm, own) from error

    def _blob(self, gm: fx.GraphModule, own: Constants) -> bytes:
        if gm in self._blobs:
            return self._blobs[gm]
        backend = self.backend

        def make() -> bytes:
            return backend.compile(emit(gm, backend, own))

        if self.options.cache:
            self.key = disk_cache.key(gm, backend, own)
            blob, found = disk_cache.get(self.key, backend, make)
            self.record.cached += found
        else:
            blob = make()
        if not backend.embeds:
            self._blobs[gm] = blob
        return blob

    def refused(self, gm: fx.GraphModule) -> str:
        """Return why the backend refuses a graph that it supports at other
        sizes; "" if it does not.
        """
        calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        found = ((node, reason(node, self.backend)) for node in calls)
        return next((f"{describe(node)}: {why}" for node, why in found if why), "")

    def _located_error(
        self, error: Exception, name: str, gm: fx.GraphModule, own: Constants
    ) -> CompileError:
        """Add to an error the single operator that causes it, if there is one."""
        ours = isinstance(error, DeeplinkError)
        text = error.message if ours else f"{type(error).__name__}: {error}"  # type: ignore[attr-defined]
        hint = error.hint if ours else ""  # type: ignore[attr-defined]
        calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        faulty = next((node for node in calls if self._fails(node, own)), None)
        what = describe(faulty) if faulty is not None else f"{name}, a graph of {len(calls)} ops"
        hint = hint or 'torch.compile(…, backend="eager") runs without a compiler.'
        return CompileError(f"{self.backend.label} cannot compile {what}: {text}", hint)

    def _fails(self, node: fx.Node, own: Constants) -> bool:
        if any(not isinstance(n.meta.get("val"), Tensor) for n in (node, *node.all_input_nodes)):
            return False
        _, _, alone = extract([node], "alone")
        try:
            blob = self.backend.compile(emit(alone, self.backend, own))
            shape = shape_of("alone", alone, own)
            open_blob(blob, shape, self.backend, False, shape.own(own))
        except Exception:  # any error counts as a failure
            return True
        return False


def _by_size(shape: Shape, gm: fx.GraphModule, maker: _Maker, own: Constants) -> Executable:
    def compile_static(static: fx.GraphModule) -> tuple[Executable, list[int]]:
        fixed = shape_of(shape.name, static, own)
        refused = maker.refused(static)
        if refused:
            log.warning("%s runs eagerly at these sizes: %s", shape.name, refused)
            return lambda args: static(*args), [shape.inputs.index(n) for n in fixed.inputs]
        executable = maker.executable(fixed, static, own)
        return executable, [shape.inputs.index(n) for n in fixed.inputs if n not in own]

    run = specialized(gm, compile_static)

    def call(args: list[Any]) -> Sequence[Any]:
        rest = iter(args)
        return run([own[place] if place in own else next(rest) for place in shape.inputs])

    return call


def _through_host(executable: Executable, shape: Shape) -> Executable:
    def call(args: list[Any]) -> list[Any]:
        results = executable([x.cpu() if isinstance(x, Tensor) else x for x in args])
        pairs = zip(results, shape.results, strict=True)
        return [r.to(known.device) if isinstance(r, Tensor) else r for r, known in pairs]

    return call
