# SPDX-License-Identifier: Apache-2.0
"""Graphs: a captured sequence of calls that is replayed as one, with the names of torch.cuda.

The memory of a capture is private to it and lives as long as the graph; new input is copied into
the tensors that the capture used. A capture itself changes no memory of the program and no random
state; each replay takes the random numbers that the same calls would take without a graph.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_dipu import _C
from torch_dipu.dipu.device import Device, current_device, index_of, synchronize
from torch_dipu.dipu.memory import empty_cache
from torch_dipu.dipu.streams import Stream, current_stream
from torch_dipu.dipu.streams import stream as on_stream

__all__ = [
    "Graph",
    "MemPool",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "use_mem_pool",
]

PoolId = tuple[int, int]
MODES = ("default", "global", "thread_local", "relaxed")  # by their numbers in the core


class Graph:
    """A graph of the device, in the form of torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = _C.Graph()
        self._debug = False

    def capture_begin(
        self, pool: PoolId | MemPool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Capture the current stream, which must not be the default one.

        `pool` is that of another graph, or of graph_pool_handle(), to share memory with graphs that
        are replayed in the order of their captures. In the mode "global" a call that waits for the
        device raises in every thread, else in the capturing one.
        """
        if capture_error_mode not in MODES:
            raise ValueError(
                f"expected capture_error_mode to be one of {', '.join(map(repr, MODES))}, "
                f"found {capture_error_mode!r}"
            )
        chosen = pool.id if isinstance(pool, MemPool) else pool or (0, 0)
        self._graph.capture_begin(chosen, MODES.index(capture_error_mode))

    def capture_end(self) -> None:
        """End the capture; the memory that its calls changed has its values of before again."""
        self._graph.capture_end()

    def instantiate(self) -> None:
        """Check that there is a capture: it needs no further preparation."""
        if not self._graph.is_captured():
            raise RuntimeError("the graph holds nothing to instantiate.\nHint: capture first.")

    def replay(self) -> None:
        """Run the captured calls on the current stream."""
        self._graph.replay()

    def reset(self) -> None:
        """Drop the capture and its memory; the graph can capture again."""
        self._graph.reset()

    def pool(self) -> PoolId:
        """Return the identifier of the graph's memory, for another graph's capture."""
        return self._graph.pool()

    def enable_debug_mode(self) -> None:
        """Do nothing: the calls of a graph are always recorded by name."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the captured calls as a graph in the DOT language."""
        self._graph.debug_dump(str(debug_path))


class graph:  # the name of torch.cuda's
    """Context manager that captures into a graph, on a stream of its own unless one is given."""

    _stream: Stream | None = None

    def __init__(
        self,
        dipu_graph: Graph,
        pool: PoolId | MemPool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            stream = graph._stream
            if stream is None or stream.device_index != current_device():
                stream = graph._stream = Stream()
        self.capture_stream = stream
        self._graph, self._pool, self._mode = dipu_graph, pool, capture_error_mode
        self._on_stream: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self._on_stream = on_stream(self.capture_stream)
        self._on_stream.__enter__()
        try:
            self._graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._on_stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._on_stream is not None
        try:
            self._graph.capture_end()
        finally:
            self._on_stream.__exit__(None, None, None)


def graph_pool_handle() -> PoolId:
    """Return the identifier of a new pool, for several captures."""
    return _C.new_pool()


def is_current_stream_capturing() -> bool:
    """Whether a graph captures this thread's stream."""
    return _C.is_capturing(current_device())


class MemPool:
    """Memory of its own for the allocations inside `use_mem_pool(pool)`."""

    def __init__(self, allocator: None = None, use_on_oom: bool = False) -> None:
        if allocator is not None:
            raise NotImplementedError(
                "a MemPool of dipu takes its memory from the chip; an allocator of the program is "
                "not supported.\nHint: leave `allocator` out."
            )
        self._pool = _C.MemoryPool(_C.new_pool())

    @property
    def id(self) -> PoolId:
        """The identifier, as graphs accept it."""
        return self._pool.id

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the pool's segments, in the form of torch.dipu.memory_snapshot()."""
        return [s for s in _C.memory_snapshot() if s["segment_pool_id"] == self.id]


@contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """Allocate this thread's new tensors of a device from the pool."""
    index = index_of(device)
    before = pool._pool.select(index)
    try:
        yield
    finally:
        _C.restore_pool(index, before)


# ---- callables as graphs

Function = Callable[..., Any]


class _Static:
    """One callable as two graphs, with the tensors that they read and write."""

    def __init__(self, function: Function, sample: tuple[Any, ...]) -> None:
        self.function = function
        self.samples, self.structure = pytree.tree_flatten(sample)
        not_tensors = [type(v).__name__ for v in self.samples if not isinstance(v, torch.Tensor)]
        if not_tensors:
            raise TypeError(
                "make_graphed_callables: expected tensors as sample_args, "
                f"found {', '.join(not_tensors)}.\nHint: bind other arguments by functools.partial."
            )
        module = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
        self.parameters = tuple(module.parameters())
        self.inputs: tuple[torch.Tensor, ...] = (*self.samples, *self.parameters)
        self.forward, self.backward = Graph(), Graph()
        self.outputs: list[torch.Tensor] = []
        self.result_structure: pytree.TreeSpec | None = None
        self.output_grads: list[torch.Tensor | None] = []
        self.input_grads: list[torch.Tensor | None] = []

    def run(self) -> list[torch.Tensor]:
        """Call the function on its static inputs."""
        result = self.function(*pytree.tree_unflatten(self.samples, self.structure))
        outputs, self.result_structure = pytree.tree_flatten(result)
        return outputs

    def gradients(
        self, outputs: list[torch.Tensor], allow_unused: bool
    ) -> list[torch.Tensor | None]:
        """Return the gradients of the inputs that require one, for the static output gradients."""
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, self.output_grads, strict=True)
            if grad is not None
        ]
        wanted = [value for value in self.inputs if value.requires_grad]
        if not pairs or not wanted:
            return [None] * len(self.inputs)
        found = iter(
            torch.autograd.grad(
                outputs=[output for output, _ in pairs],
                inputs=wanted,
                grad_outputs=[grad for _, grad in pairs],
                only_inputs=True,
                allow_unused=allow_unused,
            )
        )
        return [next(found) if value.requires_grad else None for value in self.inputs]

    def make_output_grads(self, outputs: list[torch.Tensor]) -> None:
        self.output_grads = [
            torch.zeros_like(output) if output.requires_grad else None for output in outputs
        ]


def make_graphed_callables(
    callables: Function | tuple[Function, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Return callables whose forward and backward passes are replays of graphs.

    The sample arguments have the sizes, types and requires_grad of all later ones, and become the
    static inputs. A module keeps its identity: its forward is replaced, and runs as usual in the
    other training mode. Several callables must be called in their order.
    """
    if torch.is_autocast_enabled("dipu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables cannot be used with autocast's cache.\n"
            "Hint: torch.autocast('dipu', cache_enabled=False)."
        )
    if not isinstance(callables, tuple):
        return _graphed((callables,), (sample_args,), num_warmup_iters, allow_unused_input, pool)[0]
    return _graphed(callables, sample_args, num_warmup_iters, allow_unused_input, pool)


def _graphed(
    callables: Sequence[Function],
    sample_args: Sequence[tuple[Any, ...]],
    warmups: int,
    allow_unused: bool,
    pool: PoolId | None,
) -> tuple[Function, ...]:
    statics = [_Static(f, sample) for f, sample in zip(callables, sample_args, strict=True)]
    for static in statics:
        _refuse_hooks(static.function)
    _warm_up(statics, warmups, allow_unused)
    shared = graph_pool_handle() if pool is None else pool
    for static in statics:
        with graph(static.forward, pool=shared):
            static.outputs = static.run()
    for static in reversed(statics):  # the order of a backward pass: memory is shared
        static.make_output_grads(static.outputs)
        with graph(static.backward, pool=shared):
            static.input_grads = static.gradients(static.outputs, allow_unused)
        static.outputs = [output.detach() for output in static.outputs]  # frees its autograd graph
    return tuple(_as_callable(static) for static in statics)


def _refuse_hooks(function: Function) -> None:
    if not isinstance(function, torch.nn.Module):
        return
    hooks = (function._forward_hooks, function._forward_pre_hooks, function._backward_hooks)
    if any(hooks):
        raise RuntimeError(
            "make_graphed_callables: the module has hooks, which a replay does not call.\n"
            "Hint: register them on the result."
        )
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError("make_graphed_callables: a buffer of the module requires a gradient.")


def _warm_up(statics: list[_Static], count: int, allow_unused: bool) -> None:
    """Run what is allocated or chosen at a first call, on a side stream as the capture is."""
    synchronize()
    side = Stream()
    side.wait_stream(current_stream())
    with on_stream(side):
        for static in statics:
            for _ in range(count):
                outputs = static.run()
                static.make_output_grads(outputs)
                static.gradients(outputs, allow_unused)
            static.output_grads = []
    current_stream().wait_stream(side)
    synchronize()


def _as_callable(static: _Static) -> Function:
    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for held, given in zip(static.samples, inputs, strict=False):  # without parameters
                if held.data_ptr() != given.data_ptr():
                    held.copy_(given)
            static.forward.replay()
            results = tuple(output.detach() for output in static.outputs)
            ctx.mark_non_differentiable(
                *(r for r, g in zip(results, static.output_grads, strict=True) if g is None)
            )
            return results

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            for held, given in zip(static.output_grads, grads, strict=True):
                if held is not None and given is not None and held.data_ptr() != given.data_ptr():
                    held.copy_(given)
            static.backward.replay()
            return tuple(None if g is None else g.detach() for g in static.input_grads)

    def replay(*arguments: Any) -> Any:
        flat = pytree.tree_leaves(arguments)
        apply: Callable[..., Any] = Replay.apply
        outputs = apply(*flat, *static.parameters)
        assert static.result_structure is not None
        return pytree.tree_unflatten(list(outputs), static.result_structure)

    function = static.function
    if not isinstance(function, torch.nn.Module):
        functools.update_wrapper(replay, function, updated=())
        return replay
    captured_mode, plain = function.training, function.forward

    def forward(*arguments: Any) -> Any:
        return replay(*arguments) if function.training == captured_mode else plain(*arguments)

    function.forward = forward
    return function
