# SPDX-License-Identifier: Apache-2.0
"""What torch keeps of a trace for later processes (its `caching_precompile`)."""

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
    """The name of a graph of dynamo's in what torch keeps of its frame; None: torch keeps none."""
    if not getattr(torch._dynamo.config, "caching_precompile", False):
        return None
    return getattr(gm, "_backend_id", None)


class Precompiled(BackendCacheArtifact[Any]):
    """A compiled graph in what torch keeps: some data, the function that makes it run, and the one
    that raises, when a process reads it, where it is not for that process.
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
    """What lists, once the frame that is now traced is compiled, the sources of those guards that
    torch leaves out of what it keeps: all that are on the identity of an object.
    """
    guards = TracingContext.get().guards_context.dynamo_guards.inner  # it takes those to come, too

    def left_out() -> list[str]:
        return [
            guard.name
            for guard in guards
            if IDENTITY & {guard.create_fn_name(), *(guard.guard_types or ())}
        ]

    return left_out


def compiled_globals() -> dict[str, Any] | None:
    """The globals of the compiled frame that the caller runs in."""
    frame = compiled_frame()
    return None if frame is None else frame.f_globals


def asked_for() -> str | None:
    """The backend and its options, as torch.compile was called with them: in a backend's call, and
    where torch.compile reads what was kept; None elsewhere.
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
    """Writes what torch keeps, next to inductor's cache."""
    PrecompileContext.save_to_dynamo_cache()
