"""What is used of torch's private interfaces, in one place: it differs from release to release."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import OptimizedModule, _TorchDynamoContext
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._dynamo.utils import preserve_rng_state
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import _has_any_global_hook as _any_global_hook
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "aligning",
    "aot",
    "asked_for",
    "at_hints",
    "compiled_call",
    "compiled_globals",
    "copies_into",
    "decompositions",
    "fake_mode_for",
    "fake_mode_of",
    "fix_numbers",
    "guards_of_trace",
    "has_kernel",
    "holders",
    "inductor",
    "parameters",
    "precompiled_name",
    "preserve_rng_state",
    "raw_stream",
    "record_precompiled",
    "recording",
    "same_places",
    "save_precompiled",
    "saves_by_hooks",
    "static_input",
    "straighten",
    "torch_version",
    "without_modes",
]

IDENTITY = {"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"}  # kinds of guards

without_modes = _disable_current_modes  # real tensors, inside of torch.compile's fake mode


def aot(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    table: dict[Any, Any],
) -> Callable[..., Any]:
    """AOTAutograd: the graph's functional forms, each given to its compiler."""
    front = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=table,
    )
    return front(gm, inputs)


def decompositions() -> dict[Any, Any]:
    """torch's own, down to core ATen."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def parameters(gm: fx.GraphModule) -> dict[int, Tensor]:
    """The real parameters and buffers among the inputs of dynamo's graph, by their number."""
    found = {}
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        given = node.meta.get("grapharg")
        source = getattr(given, "source", None)
        if source is None:
            continue
        name = source.name if isinstance(source.name, str) else source.name()
        if "_parameters[" in name or "_buffers[" in name:
            example = given.example
            if isinstance(example, Tensor) and not example.is_inference():
                found[number] = example.detach()
    return found


def fix_numbers(gm: fx.GraphModule) -> None:
    """Has dynamo trace anew with the floats that modules hold (eps) as constants, with guards.

    For dynamic sizes it makes every float an input; a norm is then none that a compiler knows.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    held = {_held(node) for node in gm.graph.find_nodes(op="placeholder")} - {""}
    new = [name for name in held if not TensorifyState.should_specialize(name)]
    for name in new:
        TensorifyState.specialize(name)
    if new:
        raise TensorifyScalarRestartAnalysis


def _held(node: fx.Node) -> str:
    """The symbol of a float that a module holds; empty for any other input."""
    given = node.meta.get("grapharg")
    if given is None or given.is_tensor or not given.pass_arg_as_tensor:
        return ""
    where = given.source.guard_source
    where = where() if callable(where) else where
    if not (where.is_unspecialized_nn_module() or where.is_specialized_nn_module()):
        return ""
    value = getattr(node.meta.get("example_value"), "item_memo", None)
    read = all(user.target == "item" for user in node.users)
    return str(value.node._expr) if value is not None and read else ""


def fake_mode_for(values: Sequence[Any]) -> FakeTensorMode:
    """The mode of these fake tensors; a new one when there are none."""
    mode = detect_fake_mode([v for v in values if isinstance(v, Tensor)])
    return mode if mode is not None else FakeTensorMode()


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode:
    """The mode of the fake tensors that describe a graph's values."""
    return fake_mode_for([node.meta.get("val") for node in gm.graph.nodes])


def at_hints(value: Any, mode: FakeTensorMode) -> Any:
    """A fake tensor or a number with the sizes that it was traced with in place of symbols; None
    where one of them is known by no example.
    """
    if not isinstance(value, Tensor):
        return _hint(value)
    sizes, strides = [_hint(s) for s in value.shape], [_hint(s) for s in value.stride()]
    if None in sizes or None in strides:
        return None
    with mode:
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def _hint(size: Any) -> Any:
    return size if not hasattr(size, "node") else size.node.hint


def inductor(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: dict[str, Any],
    change: Callable[[fx.Graph], None],
    graphs: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Inductor's own compile_fx, with one more pass over the graphs that it makes.

    `graphs` records what is to be a CUDA graph, in place of inductor's own way.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Pass(CustomGraphPass):
        """Named by the file that it is from: inductor's cache asks for that."""

        def __call__(self, graph: fx.Graph) -> None:
            change(graph)

        def uuid(self) -> Any:
            return get_hash_for_files((change.__code__.co_filename,))

    given = {**patches, "post_grad_custom_pre_pass": Pass()}
    with _recorded_by(graphs):
        return compile_fx(gm, list(inputs), config_patches=given)  # type: ignore[return-value]


@contextlib.contextmanager
def _recorded_by(graphs: Callable[..., Any] | None) -> Iterator[None]:
    """Inductor's CUDA graphs are made by this function; dynamo compiles one graph at a time, here
    with its backward, which torch would leave until it is called.

    The `cudagraph_policy` of torch 2.13 would do, but with it a graph is not split round what
    cannot be recorded.
    """
    if graphs is None:
        yield
        return
    module: Any = importlib.import_module("torch._inductor.compile_fx")
    output: Any = importlib.import_module("torch._inductor.output_code")
    functorch: Any = importlib.import_module("torch._functorch.config")
    before = module.cudagraphify, output.maybe_handle_backward_generation

    def cudagraphify(model: Any, static_input_idxs: Any = (), **known: Any) -> Any:
        mutated = known.get("mutated_input_idxs", ())
        kind = "backward" if known["is_backward"] else "forward"
        kind = "inference" if known["is_inference"] else kind
        return graphs(model, tuple(static_input_idxs), tuple(mutated), known["device_index"], kind)

    module.cudagraphify = cudagraphify
    output.maybe_handle_backward_generation = lambda *given: None  # for inductor's own graphs
    try:
        with functorch.patch(force_non_lazy_backward_lowering=True):
            yield
    finally:
        module.cudagraphify, output.maybe_handle_backward_generation = before


def has_kernel(op: torch._ops.OpOverload[..., Any], key: str) -> bool:
    """Whether a kernel of an op stands on a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def holders(storage: int) -> int:
    """How many hold a storage, given by its address: tensors, views among them."""
    return torch._C._storage_Use_Count(storage)


def same_places(inputs: list[Any], places: list[int | None], numbers: list[int]) -> bool:
    """Whether inputs of these numbers lie in the places of these numbers. CUDA's builds have it."""
    equal: Any = torch._C._tensors_data_ptrs_at_indices_equal
    return bool(equal(inputs, places, numbers))


def raw_stream(device: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device))


def static_input(value: Tensor) -> Tensor:
    """Room for a tensor, with its strides."""
    from torch._inductor.compile_fx import static_input as room

    made: Tensor = room(value)
    return made


def copies_into(places: Sequence[Tensor]) -> Callable[[list[Tensor]], None]:
    """What copies tensors to their places; a dimension of stride 0 is one place."""
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
    """A compiled graph that copies inputs which do not lie as its kernels count on."""
    from torch._inductor.compile_fx import get_input_idxs_to_check
    from torch._inductor.utils import align_inputs_from_check_idxs
    from torch.utils._ordered_set import OrderedSet

    checked = get_input_idxs_to_check(inputs, static)
    made: Callable[..., Any] = align_inputs_from_check_idxs(model, checked, OrderedSet(mutated))
    return made


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Records on a stream of its own; the workspaces of cuBLAS are the recording's, too."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


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
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _graphs(frame.f_code):
        frame = frame.f_back
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


@dataclass(frozen=True)
class CompiledCall:
    """A call of a compiled module: where its callable is kept, what it is compiled from, with what
    it was called, and whether one graph is all of it.
    """

    holder: torch.nn.Module
    name: str
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    alone: bool


def compiled_call() -> CompiledCall | None:
    """The call of a compiled module that the caller runs in."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _graphs(frame.f_code):
        frame = frame.f_back
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
    """A compiled module that is called as any other: torch's own enters a context manager, for the
    sake of global hooks, around every call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # hot path
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or self._backward_hooks or self._backward_pre_hooks or _any_global_hook():
            return super().__call__(*args, **kwargs)
        if torch._C._get_tracing_state():
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)


def straighten(module: torch.nn.Module) -> None:
    """Has calls of what torch.compile made of a module cost less; of another class none."""
    if type(module) is OptimizedModule:
        module.__class__ = Straight


def saves_by_hooks() -> bool:
    """Whether the program's hooks get what autograd saves, as in a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


_STRAIGHT = Straight.__call__.__code__
_BETWEEN = ("dicp.dynamo_bridge.shortcut", "dicp.dynamo_bridge.measure")  # of a call and its module
_MODULE_CALLS = (torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__)


def _graphs(code: types.CodeType) -> list[str]:
    """What a frame's code calls of what was compiled of it: graphs, and the rest of a frame."""
    return [n for n in code.co_names if n.startswith(("__compiled_fn_", "__resume_at_"))]


def torch_version() -> str:
    """For keys: torch's version, as it names itself."""
    return str(torch.__version__)
