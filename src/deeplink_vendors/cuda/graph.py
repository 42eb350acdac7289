# SPDX-License-Identifier: Apache-2.0
"""inductorgraph: torch's own inductor with dicp's passes inside, for CUDA and for training.

The passes are added by inductor's hook, so that forward and backward are compiled together, with
the strides that inductor determined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink_vendors.cuda import replay
from dicp import torch_internals, workload
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.build import timed
from dicp.dynamo_bridge.cache import inductor_library
from dicp.dynamo_bridge.compile_fx import measured, trained, wants_gradients
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.passes.layout import cancel_permutes
from dicp.dynamo_bridge.tuning.prepack import Packed, Packing, Packs
from dicp.entry import Backend


def compile_whole(
    gm: fx.GraphModule, inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    """Compile dynamo's graph with inductor."""
    training = wants_gradients(inputs)
    record = report.begin(backend.name, "training" if training else "inference")
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    record.nodes = record.taken = len(calls)
    record.parts = 1
    others = torch_internals.device_types(inputs) - set(backend.devices)
    if others:
        compiled = torch_internals.plain_inductor(gm, inputs)
        record.decision = f"torch's own inductor on {'/'.join(sorted(others))}"
        report.write()
        return compiled
    given = patches(inputs, training, options)
    if _device(inputs) == "cpu" and not training:
        compiled = _packed(gm, inputs, given, options, record)
        report.write()
        if not options.measure:
            return compiled
        return measured({"compiled": compiled}, gm.forward, record)
    if _device(inputs) == "cpu":
        torch_internals.check_cpp()
    graphs = replay.ring if options.own_results else None
    compiled = torch_internals.inductor(gm, inputs, given, cancel_permutes, graphs)
    report.write()
    if not training or not options.measure or not options.own_results:
        return compiled
    return trained(compiled, gm.forward, record)


def _packed(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    given: dict[str, Any],
    options: Options,
    record: report.Record,
) -> Callable[..., Any]:
    """Compile inference on the CPU with weights of linears laid out and
    joined for their products.
    """
    weights = torch_internals.parameters(gm) if options.freeze else {}
    key, changing = (
        inductor_library.key(gm, backend, options, weights, given),
        torch_internals.sizes(gm),
    )
    with timed(record, "load"):
        found = inductor_library.find(key, backend, _few_rows, changing)
    if found is not None:
        run, packs = _unboxed(found[0]), found[1]
        record.cached = 1
    else:
        with timed(record, "compile"):
            run, packs = _compiled(gm, inputs, given, weights, key)
    record.frozen = sum(len(group) for group in packs.groups)
    return Packed(run, gm.forward, packs, weights) if packs.groups else run


def _compiled(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    given: dict[str, Any],
    weights: Mapping[int, Tensor],
    key: str | None,
) -> tuple[Callable[..., Any], Packs]:
    """Compile a graph with packed weights by inductor, and store it under a key."""
    torch_internals.check_cpp()
    packing, changing = Packing(gm, weights, _few_rows), torch_internals.sizes(gm)
    watch = None if packing.lacks else inductor_library.watch(key, packing.gm, backend)
    packed = packing.inputs(inputs, weights) if packing.groups else inputs
    whole = packing.gm if packing.groups else gm
    run = torch_internals.inductor(whole, packed, given, cancel_permutes, watch=watch)
    if key is not None and watch is not None:
        inductor_library.keep(key, backend, watch.library, packing, changing)
    return run, packing


def _unboxed(call: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
    def run(*args: Any) -> list[Any]:
        return call(list(args))

    return run


def _few_rows() -> Any:
    """Return the op of few rows if the CPU's fused kernels have it; they are built once."""
    from dlinfer import kernels

    kernels.served("cpu")
    op = torch.ops.dicp.few_rows.default
    return op if torch_internals.has_kernel(op, "CPU") else None


def patches(inputs: Sequence[Any], training: bool, options: Options) -> dict[str, Any]:
    """Return inductor's settings for a graph.

    On CUDA its graphs, but for training with changing sizes, where each recording would hold all
    that backward needs; on the CPU a wrapper in C++ for inference. Layouts are inductor's own
    choice: forced NHWC gained nothing on an H200 (docs/reference/measurements/compile.md).
    """
    if _device(inputs) == "cuda":
        changes = any(isinstance(x, torch.SymInt) for x in inputs)
        return {"triton.cudagraphs": not (training and changes and options.own_results)}
    return {} if training else {"cpp_wrapper": True}


def _device(inputs: Sequence[Any]) -> str:
    kinds = {x.device.type for x in inputs if isinstance(x, Tensor)}
    return "cuda" if "cuda" in kinds else "cpu"


backend = Backend(
    "inductorgraph",
    torch_internals.torch_version,
    whole=compile_whole,
    devices=("cpu", "cuda"),
    dynamic="native",
    training=True,
    fastest=frozenset({workload.PRODUCTS}),
)
