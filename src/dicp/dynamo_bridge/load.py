"""One partition: its blob from the cache or the compiler, and the executable made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink import settings
from deeplink.errors import CompileError, DeeplinkError
from dicp.backend import Backend, Executable, Loading
from dicp.dynamo_bridge import cache
from dicp.dynamo_bridge.codegen import describe, emit, results_of
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.partition import extract
from dicp.dynamo_bridge.report import Record
from dicp.dynamo_bridge.run import Constants, Part
from dicp.dynamo_bridge.specialize import is_dynamic, specialized


def make_part(
    name: str,
    gm: fx.GraphModule,
    backend: Backend,
    options: Options,
    known: Constants,
    record: Record,
) -> Part:
    """A partition, compiled; `known` are all constants of the graph, by name."""
    inputs = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    keep = tuple(i for i, place in enumerate(inputs) if place not in known)

    def load(constants: Constants) -> Executable:
        own = {place: constants[place] for place in inputs if place in constants}
        if backend.through_host:
            own = {place: tensor.cpu() for place, tensor in own.items()}
        if backend.dynamic == "specialize" and is_dynamic(gm):
            return _by_size(name, gm, backend, options, own, record)
        return _guarded(name, gm, backend, options, own, record)

    return Part(name, gm, load, load(known), keep)


def _by_size(
    name: str,
    gm: fx.GraphModule,
    backend: Backend,
    options: Options,
    own: Constants,
    record: Record,
) -> Executable:
    places = [node.name for node in gm.graph.find_nodes(op="placeholder")]

    def compile_static(static: fx.GraphModule) -> tuple[Executable, list[int]]:
        names = [n.name for n in static.graph.find_nodes(op="placeholder")]
        executable = _guarded(name, static, backend, options, own, record)
        return executable, [places.index(n) for n in names if n not in own]

    run = specialized(gm, compile_static)

    def call(args: list[Any]) -> Sequence[Any]:
        rest = iter(args)
        return run([own[place] if place in own else next(rest) for place in places])

    return call


def _guarded(
    name: str,
    gm: fx.GraphModule,
    backend: Backend,
    options: Options,
    own: Constants,
    record: Record,
) -> Executable:
    try:
        executable = _load(name, gm, backend, options, own, record)
    except CompileError:
        raise
    except Exception as error:  # a vendor's compiler may raise anything; it gets its place
        raise _placed(error, name, gm, backend, own) from error
    return _through_host(executable, gm) if backend.through_host else executable


def _load(
    name: str,
    gm: fx.GraphModule,
    backend: Backend,
    options: Options,
    own: Constants,
    record: Record,
) -> Executable:
    places = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    nodes = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]

    def make() -> bytes:
        return backend.compile(emit(gm, backend, own))

    if options.cache:
        blob, found = cache.get(cache.key(gm, backend, own), backend, make)
        record.cached += found
    else:
        blob = make()
    loading = Loading(
        name,
        own,
        results_of(nodes),
        tuple(place for place in places if place not in own),
        torch.get_num_threads(),
        settings.DICP_CACHE_DIR.get() / backend.name if options.cache else None,
    )
    return backend.load(blob, loading)


def _placed(
    error: Exception, name: str, gm: fx.GraphModule, backend: Backend, own: Constants
) -> CompileError:
    """The error with the operator that is alone enough to cause it, where one is."""
    text, hint = (
        (error.message, error.hint)
        if isinstance(error, DeeplinkError)
        else (f"{type(error).__name__}: {error}", "")
    )
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    guilty = next((node for node in calls if _fails(node, backend, own)), None)
    what = describe(guilty) if guilty is not None else f"{name}, a graph of {len(calls)} ops"
    hint = hint or 'torch.compile(…, backend="eager") runs without a compiler.'
    return CompileError(f"{backend.label} cannot compile {what}: {text}", hint)


def _fails(node: fx.Node, backend: Backend, own: Constants) -> bool:
    if any(not isinstance(n.meta.get("val"), Tensor) for n in (node, *node.all_input_nodes)):
        return False
    _, _, alone = extract([node], "alone")
    mine = {n.name: own[n.name] for n in node.all_input_nodes if n.name in own}
    try:
        _load("alone", alone, backend, Options(cache=False), mine, Record(0, "", ""))
    except Exception:  # as above: whatever it raises, it fails
        return True
    return False


def _through_host(executable: Executable, gm: fx.GraphModule) -> Executable:
    nodes = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
    devices = [getattr(node.meta["val"], "device", None) for node in nodes]
    move: Callable[[Any], Any] = lambda x: x.cpu() if isinstance(x, Tensor) else x  # noqa: E731

    def call(args: list[Any]) -> list[Any]:
        results = executable([move(x) for x in args])
        pairs = zip(results, devices, strict=True)
        return [r.to(d) if isinstance(r, Tensor) else r for r, d in pairs]

    return call
