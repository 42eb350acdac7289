# SPDX-License-Identifier: Apache-2.0
"""Inference graphs that inductor compiled for the CPU, stored on disk as libraries: a later process
loads them without AOTAutograd and without inductor.

Graphs are stored under the conditions of `plan`. A file that is damaged, or of another machine,
counts as missing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from deeplink import settings
from dicp import torch_internals
from dicp.backend import GraphCompiler
from dicp.dynamo_bridge import disk_cache
from dicp.dynamo_bridge.cache import graph_cache
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.tuning.prepack import Packs

log = logging.getLogger("dicp")
KIND = "library"
Run = Callable[..., Any]


@dataclass(frozen=True)
class StoredLibrary:
    """A library, and the sources of its last inputs; None: torch's cache handles the graph."""

    library: torch_internals.Library | None
    packs: Packs
    guards: str  # on sizes that change


def key(
    gm: fx.GraphModule,
    backend: GraphCompiler,
    options: Options,
    weights: Mapping[int, Tensor],
    patches: Mapping[str, Any],
) -> str | None:
    """Return a key of dynamo's graph and of all that inductor's code depends on;
    None for a graph that is not stored.
    """
    if torch.is_autocast_enabled("cpu") or not patches.get("cpp_wrapper"):
        return None  # AOTAutograd switches autocast off in a call; or: no library
    graph, state = (
        graph_cache.key(gm, backend, options, weights),
        torch_internals.state_of_inductor(),
    )
    if graph is None or state is None:
        return None
    return hashlib.sha256(repr((graph, state, sorted(patches.items()))).encode()).hexdigest()


def watch(
    key: str | None, gm: fx.GraphModule, backend: GraphCompiler
) -> torch_internals.Watch | None:
    """Return a watch for the library of a graph, if it is to be stored.

    Where an entry exists that is not usable, torch's own cache, which a watch disables, is faster.
    """
    if key is None or disk_cache.find(key, backend, KIND) is not None:
        return None
    return torch_internals.Watch(
        lambda graph: graph_cache.is_plain(gm, graph) and _returns_own_tensors(graph)
    )


def _returns_own_tensors(graph: fx.GraphModule) -> bool:
    """Whether all results are tensors, and none shares memory with an input."""
    nodes: Any = graph.graph.output_node().args[0]
    given = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    made = [node.meta.get("val") for node in nodes if isinstance(node, fx.Node)]
    taken = {_memory(x) for x in given if isinstance(x, Tensor)}
    return all(isinstance(x, Tensor) and _memory(x) not in taken for x in made)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def keep(
    key: str,
    backend: GraphCompiler,
    made: torch_internals.Library | None,
    packs: Packs,
    changing: Sequence[torch.SymInt],
) -> None:
    """Store the library of a graph, or the fact that it has none."""
    guards = torch_internals.guards_on(changing)
    made = None if guards is None else made
    plain = Packs(packs.groups, packs.few, packs.kept)
    blob = pickle.dumps(StoredLibrary(made, plain, guards or ""))
    disk_cache.get(key, backend, lambda: blob, KIND)


def find(
    key: str | None,
    backend: GraphCompiler,
    few: Callable[[], Any],
    changing: Sequence[torch.SymInt],
) -> tuple[Callable[[list[Any]], list[Any]], Packs] | None:
    """Load the library of a key; `few` returns the op for few rows, called if it is needed."""
    kept: StoredLibrary | None = None if key is None else disk_cache.load(key, backend, KIND)
    if kept is None or kept.library is None or not torch_internals.holds(kept.guards, changing):
        return None
    if any(kept.packs.few) and few() is None:
        return None
    try:
        return _opened(kept.library, backend), kept.packs
    except (ImportError, OSError) as error:  # a folder mounted noexec, for example
        log.warning("%s: a kept library is not used: %s", backend.label, error)
        return None


def _opened(
    library: torch_internals.Library, backend: GraphCompiler
) -> Callable[[list[Any]], list[Any]]:
    """Load a library from a file named by its bytes, which are verified first."""
    name = hashlib.sha256(library.code).hexdigest()
    file = settings.DICP_CACHE_DIR.get() / backend.name / f"{name}.so"
    if not file.exists() or file.read_bytes() != library.code:
        temporary = file.with_suffix(f".{os.getpid()}.part")
        temporary.write_bytes(library.code)
        temporary.replace(file)
    return torch_internals.open_library(file, library.text)
