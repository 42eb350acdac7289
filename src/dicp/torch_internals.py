"""What is used of torch's private interfaces, in one place: it differs from release to release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "aot",
    "decompositions",
    "fake_mode_for",
    "fake_mode_of",
    "fix_numbers",
    "inductor",
    "parameters",
    "torch_version",
    "without_modes",
]

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


def inductor(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: dict[str, Any],
    change: Callable[[fx.Graph], None],
) -> Callable[..., Any]:
    """Inductor's own compile_fx, with one more pass over the graphs that it makes."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Pass(CustomGraphPass):
        """Named by the file that it is from: inductor's cache asks for that."""

        def __call__(self, graph: fx.Graph) -> None:
            change(graph)

        def uuid(self) -> Any:
            return get_hash_for_files((change.__code__.co_filename,))

    given = {**patches, "post_grad_custom_pre_pass": Pass()}
    return compile_fx(gm, list(inputs), config_patches=given)  # type: ignore[return-value]


def torch_version() -> str:
    """For keys: torch's version, as it names itself."""
    return str(torch.__version__)
