# SPDX-License-Identifier: Apache-2.0
"""torch's stored traces for later processes (its `caching_precompile`)."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._guards import TracingContext

from dicp.torch_internals.calls import compiled_frame

IDENTITY = {"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"}  # kinds of guards


def precompiled_name(gm: fx.GraphModule) -> str | None:
    """Return the name of dynamo's graph in torch's entry for its frame; None: torch stores none."""
    if not getattr(torch._dynamo.config, "caching_precompile", False):
        return None
    return getattr(gm, "_backend_id", None)


class Precompiled(BackendCacheArtifact[Any]):
    """A compiled graph in torch's entry: data, a function that restores it, and a check that raises
    where it cannot be used by the process that reads it.
    """

    def after_deserialization(self) -> Any:
        content, restore, _ = self.content
        return restore(content)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.key, self.content)


def _opened(key: str, content: tuple[Any, ...]) -> Precompiled:
    kept, _, check = content
    check(kept)
    return Precompiled(key, content)


def record_precompiled(
    name: str, content: Any, restore: Callable[[Any], Any], check: Callable[[Any], None]
) -> None:
    PrecompileContext.record_artifact(Precompiled(name, (content, restore, check)))


def guards_of_trace() -> Callable[[], list[str]]:
    """Return a function that lists the guards which torch omits from its entry: all on object
    identity.

    Call it after the frame that is traced now has been compiled.
    """
    # updated when further guards are added
    guards = TracingContext.get().guards_context.dynamo_guards.inner

    def left_out() -> list[str]:
        return [
            guard.name
            for guard in guards
            if IDENTITY & {guard.create_fn_name(), *(guard.guard_types or ())}
        ]

    return left_out


def compiled_globals() -> dict[str, Any] | None:
    """Return the globals of the compiled frame in which the caller runs."""
    frame = compiled_frame()
    return None if frame is None else frame.f_globals


def requested_options() -> str | None:
    """Return the backend and options of torch.compile: in a backend's call, and where torch.compile
    reads an entry; None elsewhere.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        given: Any = frame.f_locals.get("self")
        if frame.f_code is _TorchDynamoContext.__call__.__code__:
            given = given.callback
            while hasattr(given, "_torchdynamo_orig_backend"):
                given = given._torchdynamo_orig_backend
        if isinstance(given, torch._TorchCompileWrapper):
            return repr((given.compiler_name, sorted(given.kwargs.items())))
        frame = frame.f_back
    return None


def save_precompiled() -> None:
    """Write torch's entries, next to inductor's cache."""
    PrecompileContext.save_to_dynamo_cache()
