# SPDX-License-Identifier: Apache-2.0
"""Inductor, and the interfaces of inductor and torch's CUDA builds for recorded graphs."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink.errors import MissingCompilerError
from deeplink.i18n import _
from dicp.torch_internals.libraries import Watch, watched


def check_cpp() -> None:
    """Raise where inductor has no C++ compiler, before any work begins."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise MissingCompilerError(
            _("torch's inductor finds no C++ compiler for the CPU."),
            _("install g++ or clang, or name one in CXX."),
        ) from error


def inductor(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: dict[str, Any],
    change: Callable[[fx.Graph], None],
    graphs: Callable[..., Any] | None = None,
    watch: Watch | None = None,
) -> Callable[..., Any]:
    """Run inductor's own compile_fx with one more pass over its graphs.

    `graphs` records CUDA graphs in place of inductor's own code; `watch` receives the library.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Pass(CustomGraphPass):
        """A pass that inductor's cache identifies by its file."""

        def __call__(self, graph: fx.Graph) -> None:
            change(graph)

        def uuid(self) -> Any:
            kept = "" if graphs is None else "nothing donated"  # the code of backward depends on it
            return get_hash_for_files((change.__code__.co_filename,), kept)

    given = {**patches, "post_grad_custom_pre_pass": Pass()}
    with _recorded_by(graphs), watched(watch) as more:
        return compile_fx(gm, list(inputs), config_patches=given, **more)  # type: ignore[return-value]


def plain_inductor(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run `torch.compile(backend="inductor")` unchanged: vendors' runtimes patch it.

    Read from torch 2.13.
    """
    call: Any = torch._TorchCompileInductorWrapper(None, None, None)
    made: Callable[..., Any] = call(gm, list(inputs))
    return made


@contextlib.contextmanager
def _recorded_by(graphs: Callable[..., Any] | None) -> Iterator[None]:
    """Replace the function that creates inductor's CUDA graphs, and compile backward at once.

    Dynamo compiles one graph at a time, here with its backward, which torch would defer until its
    call. Backward must not overwrite what forward saved ("donated" buffers): gradients would
    prevent the recording of forward from running again, and a graph that the program retains would
    be refused.

    The `cudagraph_policy` of torch 2.13 is not used, because with it a graph is not split around
    ops that cannot be recorded.
    """
    if graphs is None:
        yield
        return
    module: Any = importlib.import_module("torch._inductor.compile_fx")
    output: Any = importlib.import_module("torch._inductor.output_code")
    functorch: Any = importlib.import_module("torch._functorch.config")
    autograd: Any = importlib.import_module("torch._functorch._aot_autograd.graph_compile")

    def cudagraphify(model: Any, static_input_idxs: Any = (), **known: Any) -> Any:
        mutated = known.get("mutated_input_idxs", ())
        kind = "backward" if known["is_backward"] else "forward"
        kind = "inference" if known["is_inference"] else kind
        return graphs(model, tuple(static_input_idxs), tuple(mutated), known["device_index"], kind)

    swaps: list[tuple[Any, str, Callable[..., Any]]] = [
        (module, "cudagraphify", cudagraphify),
        # of inductor's own CUDA graphs
        (output, "maybe_handle_backward_generation", lambda *given: None),
        (autograd, "collect_bw_donated_buffer_idxs", lambda *given: []),
    ]
    before = [getattr(where, name) for where, name, _ in swaps]
    for where, name, ours in swaps:
        setattr(where, name, ours)
    try:
        with functorch.patch(force_non_lazy_backward_lowering=True):
            yield
    finally:
        for (where, name, _), theirs in zip(swaps, before, strict=True):
            setattr(where, name, theirs)


def holders(storage: int) -> int:
    """Return the number of holders of a storage, given by its address:
    tensors, views among them.
    """
    return torch._C._storage_Use_Count(storage)


def same_places(inputs: list[Any], places: list[int | None], numbers: list[int]) -> bool:
    """Whether inputs have the addresses of places, by numbers. Exists in CUDA builds."""
    equal: Any = torch._C._tensors_data_ptrs_at_indices_equal
    return bool(equal(inputs, places, numbers))


def raw_stream(device: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device))


def static_input(value: Tensor) -> Tensor:
    """Allocate a buffer for a tensor, with its strides."""
    from torch._inductor.compile_fx import static_input as room

    made: Tensor = room(value)
    return made


def copies_into(places: Sequence[Tensor]) -> Callable[[list[Tensor]], None]:
    """Return a function that copies tensors to their buffers;
    a dimension of stride 0 is copied once.
    """
    from torch._inductor.compile_fx import index_expanded_dims_and_copy_
    from torch._inductor.output_code import get_expanded_dims

    held = list(places)
    expanded = [get_expanded_dims(place) for place in held]

    def copy_each(values: list[Tensor]) -> None:
        for place, value, dims in zip(held, values, expanded, strict=True):
            index_expanded_dims_and_copy_(place, value, dims)

    def copy_all(values: list[Tensor]) -> None:
        torch._foreach_copy_(held, values)

    return copy_all if len(held) > 1 and not any(expanded) else copy_each


def aligning(
    model: Callable[..., Any], inputs: Sequence[Any], static: Any, mutated: Sequence[int]
) -> Callable[..., Any]:
    """Wrap a compiled graph: copy inputs whose alignment its kernels do not support."""
    from torch._inductor.compile_fx import get_input_idxs_to_check
    from torch._inductor.utils import align_inputs_from_check_idxs
    from torch.utils._ordered_set import OrderedSet

    checked = get_input_idxs_to_check(inputs, static)
    made: Callable[..., Any] = align_inputs_from_check_idxs(model, checked, OrderedSet(mutated))
    return made


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Record on a separate stream; the workspaces of cuBLAS belong to the recording, too."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
