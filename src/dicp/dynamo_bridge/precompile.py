"""With torch's `caching_precompile`, a later process does not even trace: what torch keeps of a
frame (its guards and code) names the plan that we keep of its graph.

What is kept is enough to compile the graph anew, should the plan be gone or of another version.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from deeplink.errors import DeeplinkError
from dicp import torch_internals
from dicp.backend import Backend, find
from dicp.dynamo_bridge import cache, plan
from dicp.dynamo_bridge.options import Options

log = logging.getLogger("dicp")


@dataclass(frozen=True)
class Kept:
    """A graph of dynamo's, and how it was compiled."""

    backend: str
    options: Options
    key: str  # of its plan
    head: tuple[str, ...]  # of the versions that the key is for
    weights: tuple[int, ...]
    rows: plan.Rows
    attributes: dict[str, Tensor]

    def module(self) -> fx.GraphModule:
        gm = plan.module_of(self.rows)
        for name, tensor in self.attributes.items():
            gm.register_buffer(name, tensor)
        return gm


def keep(
    gm: fx.GraphModule,
    backend: Backend,
    options: Options,
    weights: Mapping[int, Tensor],
    key: str | None,
) -> bool:
    """Names a compiled graph to torch, where torch asks for it; whether it did, and it could be."""
    name = torch_internals.precompiled_name(gm)
    rows = None if name is None or key is None else plan.rows_of(gm)
    if name is None or key is None or rows is None or not _found_by_name(backend):
        return False
    attributes = {str(n.target): getattr(gm, str(n.target)) for n in _attributes(gm)}
    made = Kept(backend.name, options, key, cache.head(backend), tuple(weights), rows, attributes)
    try:
        pickle.dumps(made)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    torch_internals.record_precompiled(name, made, restore)
    return True


def is_current(kept: Kept, backend: Backend) -> bool:
    """Whether the plan was made by the versions that are here now."""
    return kept.head == cache.head(backend)


def _attributes(gm: fx.GraphModule) -> list[fx.Node]:
    return list(gm.graph.find_nodes(op="get_attr"))


def _found_by_name(backend: Backend) -> bool:
    try:
        return find(backend.name) is backend
    except DeeplinkError:
        return False


def saving(run: Callable[..., Any]) -> Callable[..., Any]:
    """What has torch write its part once the first call is made: before it, it is not whole."""
    saved = False

    def call(*args: Any) -> Any:
        nonlocal saved
        if not saved:
            saved = True
            try:
                torch_internals.save_precompiled()
            except Exception as error:  # torch's, and the program goes on without it
                log.warning("torch keeps no trace of this graph: %s", error)
        return run(*args)

    return call


def restore(kept: Kept) -> Callable[..., Any]:
    """What runs a graph in a later process: made by its first call, which brings the weights."""
    from dicp.dynamo_bridge.compile_fx import again  # it uses this module

    run: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal run
        if run is None:
            run = again(kept, args)
        return run(*args)

    return call
