# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled modules: their frames, and their cost."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules.module import _has_any_global_hook as _any_global_hook

_tracing = torch._C._get_tracing_state


@dataclass(frozen=True)
class CompiledCall:
    """A call of a compiled module: the holder of its callable, its source module, its arguments,
    and
    whether it is one graph.
    """

    holder: torch.nn.Module
    name: str
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    alone: bool


def compiled_call() -> CompiledCall | None:
    """Return the call of a compiled module in which the caller runs."""
    frame = compiled_frame()
    between: list[types.CodeType] = []
    while frame is not None and frame.f_code.co_name != "compile_wrapper":
        between.append(frame.f_code)
        frame = frame.f_back
    if frame is None:
        return None
    alone = len(_graphs(between[0])) == 1 and all(code in _MODULE_CALLS for code in between[1:])
    given = frame.f_locals["args"], frame.f_locals["kwargs"], alone
    outer = frame.f_back
    while outer is not None and outer.f_globals.get("__name__") in _BETWEEN:
        outer = outer.f_back
    if outer is None:
        return None
    caller, module = outer.f_code, outer.f_locals.get("self")
    if caller in (_MODULE_CALLS[1], _STRAIGHT) and isinstance(module, OptimizedModule):
        return CompiledCall(module, "forward", module._orig_mod._call_impl, *given)
    if caller is _MODULE_CALLS[0] and isinstance(module, torch.nn.Module):  # by module.compile()
        return CompiledCall(module, "_compiled_call_impl", module._call_impl, *given)
    return None


class Straight(OptimizedModule):
    """A compiled module with a cheaper call:
    torch's own enters a context manager for global hooks around every call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # hot path
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or self._backward_hooks or self._backward_pre_hooks or _any_global_hook():
            return super().__call__(*args, **kwargs)
        if _tracing():
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)


def straighten(module: torch.nn.Module) -> None:
    """Make calls of torch.compile's module cheaper; other classes are unchanged."""
    if type(module) is OptimizedModule:
        module.__class__ = Straight


def saves_by_hooks() -> bool:
    """Whether the program's hooks receive what autograd saves, as in a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


_STRAIGHT = Straight.__call__.__code__
# Modules between a call and its module.
_BETWEEN = ("dicp.dynamo_bridge.tuning.bypass", "dicp.dynamo_bridge.tuning.autotune")
_MODULE_CALLS = (torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__)


def compiled_frame() -> types.FrameType | None:
    """Return the frame of dynamo's compiled code in which the caller runs."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _graphs(frame.f_code):
        frame = frame.f_back
    return frame


def _graphs(code: types.CodeType) -> list[str]:
    """Return the names that a frame's code calls: compiled graphs, and resumed frames."""
    return [n for n in code.co_names if n.startswith(("__compiled_fn_", "__resume_at_"))]
