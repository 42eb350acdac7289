# SPDX-License-Identifier: Apache-2.0
"""Patches of torch and Python that are in place while a tool is active.

Two modes on the stacks of each thread, the function that runs a backward pass, the start of a
thread, and the capture of a graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_Before = Callable[[], bool | None]
_After = Callable[[bool | None], None]
_ABSENT: Any = object()


class Patches:
    """Attributes of modules, classes and instances that are replaced until `undo`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, before, replacement

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def set(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, before, replacement))

    def holds(self, owner: Any, name: str) -> bool:
        """Whether the replacement of an attribute is in place."""
        return any(
            entry[0] is owner and entry[1] == name and vars(owner).get(name) is entry[3]
            for entry in self._replaced
        )

    def undo(self) -> None:
        """Restore the attributes, except those that other code has replaced since."""
        while self._replaced:
            owner, name, before, replacement = self._replaced.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


_patches = Patches()


def install(on: bool, before: _Before, after: _After, in_thread: Callable[[], None]) -> None:
    """Install the wrappers, or restore what they replace."""
    if on and not _patches:
        plain = torch.autograd.graph._engine_run_backward
        backward = _wrapped_backward(plain, before, after)
        for owner in (torch.autograd.graph, torch.autograd):
            _patches.set(owner, "_engine_run_backward", backward)
        _patches.set(threading.Thread, "start", _wrapped_start(threading.Thread.start, in_thread))
        graph = torch.cuda.CUDAGraph
        if hasattr(graph, "capture_begin"):  # else torch was built without graphs
            _patches.set(graph, "capture_begin", _wrapped_capture_begin(graph.capture_begin))
            _patches.set(graph, "capture_end", _wrapped_capture_end(graph.capture_end))
    elif not on:
        _patches.undo()


def _wrapped_backward(plain: Callable[..., Any], before: _Before, after: _After) -> Any:
    @functools.wraps(plain)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        done = before()
        try:
            return plain(*args, **kwargs)
        finally:
            after(done)

    return run_backward


_capture_lock = threading.RLock()
_captures = 0  # graphs that are being captured


@contextmanager
def no_capture() -> Iterator[bool]:
    """Yields whether no graph is being captured; no capture begins inside the block. A query of the
    device from another thread would make a capture fail.
    """
    with _capture_lock:
        yield _captures == 0


def _wrapped_capture_begin(plain: Callable[..., None]) -> Any:
    @functools.wraps(plain)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        _count_captures(1)
        try:
            plain(graph, *args, **kwargs)
        except BaseException:
            _count_captures(-1)
            raise

    return capture_begin


def _wrapped_capture_end(plain: Callable[..., None]) -> Any:
    @functools.wraps(plain)
    def capture_end(graph: Any) -> None:
        try:
            plain(graph)
        finally:
            _count_captures(-1)

    return capture_end


def _count_captures(more: int) -> None:
    global _captures
    with _capture_lock:
        _captures = max(0, _captures + more)


def _wrapped_start(plain: Callable[..., None], in_thread: Callable[[], None]) -> Any:
    @functools.wraps(plain)
    def start(thread: threading.Thread) -> None:
        run = thread.run

        def run_intercepted() -> None:
            in_thread()
            run()

        thread.run = run_intercepted  # type: ignore[method-assign]
        plain(thread)

    return start


# The stacks of modes. Other modes, above or below ours, stay where they are.


def push_function_mode(mode: TorchFunctionMode) -> bool:
    """Push the mode unless it is on the thread's stack; returns whether it was pushed."""
    if _len_torch_function_stack() and mode in _function_stack():
        return False
    _push_on_torch_function_stack(mode)
    return True


def set_function_mode(mode: TorchFunctionMode, on: bool) -> None:
    """Push the mode on the thread's stack if it is missing, or remove it."""
    depth = _len_torch_function_stack()
    if not on and depth and _get_function_stack_at(depth - 1) is mode:
        _pop_torch_function_stack()
        return
    stack = _function_stack()
    if on and mode not in stack:
        _push_on_torch_function_stack(mode)
    elif not on and mode in stack:
        above = []
        while (top := _pop_torch_function_stack()) is not mode:
            above.append(top)
        for other in reversed(above):
            _push_on_torch_function_stack(other)


def _function_stack() -> list[Any]:
    return [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]


def default_device(func: Callable[..., Any]) -> torch.device | None:
    """The device of a function that makes a tensor, set by `with torch.device(…)` or
    `set_default_device`, which are modes on the stack.
    """
    if _len_torch_function_stack() and func in _device._device_constructors():
        for mode in reversed(_function_stack()):
            if isinstance(mode, _device.DeviceContext):
                return mode.device
    return None


def set_dispatch_mode(mode: TorchDispatchMode, on: bool) -> None:
    """Push the mode on the stack of dispatch modes if it is missing, or remove it."""
    stack = _python_dispatch._get_current_dispatch_mode_stack()
    if on and mode not in stack:
        mode.__enter__()
    elif not on and mode in stack:
        above = []
        while (top := _python_dispatch._get_current_dispatch_mode()) is not mode:
            assert top is not None  # `mode` is below
            above.append(top)
            top.__exit__(None, None, None)
        mode.__exit__(None, None, None)
        for other in reversed(above):
            other.__enter__()
