# SPDX-License-Identifier: Apache-2.0
"""Support for torch's `caching_precompile`: a later process does not even trace. torch's entry for
a
frame (its guards and code) names the plan of its graph.

The entry contains enough to recompile the graph, should the plan be missing or of another version.
It is valid for the backend and options of the request, and for functions that are equal by name
(`identity`): torch itself checks neither.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from deeplink import settings
from deeplink.errors import CompileError, DeeplinkError
from dicp import torch_internals
from dicp.backend import GraphCompiler, find
from dicp.dynamo_bridge import disk_cache
from dicp.dynamo_bridge.cache import graph_cache, guard_identity
from dicp.dynamo_bridge.options import Options, resolve

log = logging.getLogger("dicp")


@dataclass(frozen=True)
class StoredTrace:
    """A graph of dynamo, and how it was compiled."""

    backend: str
    options: Options
    key: str  # of its plan
    head: tuple[str, ...]  # the versions of the key
    weights: tuple[int, ...]
    rows: graph_cache.Rows
    attributes: dict[str, Tensor]
    asked: str
    names: tuple[guard_identity.Named, ...] = ()

    def module(self) -> fx.GraphModule:
        gm = graph_cache.module_of(self.rows)
        for name, tensor in self.attributes.items():
            gm.register_buffer(name, tensor)
        return gm


def keep(
    gm: fx.GraphModule,
    backend: GraphCompiler,
    options: Options,
    weights: Mapping[int, Tensor],
    key: str | None,
    restore: Callable[[StoredTrace], Callable[..., Any]],
) -> Callable[[], bool] | None:
    """Return a function that registers a compiled graph with torch and returns its success; None
    where torch does not request it. A later process calls `restore`.
    """
    name, asked = torch_internals.precompiled_name(gm), _asked()
    rows = None if name is None or key is None else graph_cache.rows_of(gm)
    if (
        name is None
        or key is None
        or asked is None
        or rows is None
        or not _has_entry_point(backend)
    ):
        return None
    attributes = {str(n.target): getattr(gm, str(n.target)) for n in _attributes(gm)}
    head = disk_cache.head(backend)
    made = StoredTrace(backend.name, options, key, head, tuple(weights), rows, attributes, asked)
    left_out = torch_internals.guards_of_trace()

    def record() -> bool:
        scope = torch_internals.compiled_globals()
        names = None if scope is None else guard_identity.named(left_out(), scope)
        if names is None:
            log.info("a trace is not kept: it calls what has no name in another process")
            return False
        named = replace(made, names=names)
        try:
            pickle.dumps(named)
        except (pickle.PicklingError, TypeError, AttributeError):
            return False
        torch_internals.record_precompiled(name, named, restore, check)
        return True

    return record


def check(kept: StoredTrace) -> None:
    """Raise where a process cannot use a stored trace."""
    asked = _asked()
    if asked is not None and asked != kept.asked:
        raise CompileError(f"the stored trace is for {kept.asked}; requested is {asked}.")
    other = [name.source for name in kept.names if not name.holds()]
    if other:
        raise CompileError(f"the stored trace used other values of: {', '.join(other)}.")


def _asked() -> str | None:
    """Return the arguments of torch.compile, and the settings that count."""
    found = torch_internals.requested_options()
    return None if found is None else repr((found, resolve(), settings.DICP_PREFERENCE.get()))


def is_current(kept: StoredTrace, backend: GraphCompiler) -> bool:
    """Whether the plan was created by the installed versions."""
    return kept.head == disk_cache.head(backend)


def _attributes(gm: fx.GraphModule) -> list[fx.Node]:
    return list(gm.graph.find_nodes(op="get_attr"))


def _has_entry_point(backend: GraphCompiler) -> bool:
    try:
        return find(backend.name) is backend
    except DeeplinkError:
        return False


def saving(run: Callable[..., Any], record: Callable[[], bool]) -> Callable[..., Any]:
    """Let torch write its entry after the first call, before which the entry is incomplete."""
    saved = False

    def call(*args: Any) -> Any:
        nonlocal saved
        if not saved:
            saved = True
            try:
                if record():
                    torch_internals.save_precompiled()
            except Exception as error:  # an error of torch, which must not stop the program
                log.warning("torch keeps no trace of this graph: %s", error)
        return run(*args)

    return call
