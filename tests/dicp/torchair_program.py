"""The converter of the real torch_npu and dicp's: two GE graphs of one program, on one simulation.

A program of its own: `python -m tests.dicp.torchair_program FILE` writes what each case gave. The
folder `torch_npu/dynamo` of an unpacked wheel must be on the path; its four C++ modules, which
talk to the chip, are stand-ins here, and torch_npu itself is not imported.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from deeplink.judge import judge
from deeplink_vendors.ascend.graph import backend
from deeplink_vendors.ascend.graph.graph import Graph
from deeplink_vendors.ascend.graph.interpreter import Simulation
from dicp.dynamo_bridge.codegen import emit
from dicp.dynamo_bridge.passes import decompose
from dicp.dynamo_bridge.passes.canonical import canonicalise
from tests.dicp import sim_models

NATIVE = ("_torchair", "_npu_graph_executor", "_npu_utils", "_abi_compat_ge_apis")
Program = Callable[..., Any]


class Executor:
    """Replace the runner of a graph on a chip."""

    def __init__(self, *args: Any) -> None:
        pass


def inference_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, *rest: Any) -> Any:
    """The form in which AOTAutograd gives a batch norm of inference."""
    training, momentum, eps = rest
    assert not training
    norm = torch.ops.aten._native_batch_norm_legit_no_training
    return norm(x, w, b, mean, var, momentum, eps)


NORM = {torch.ops.aten.native_batch_norm.default: inference_norm}


def x(*shape: int) -> Tensor:
    return torch.randn(shape)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


CASES: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "add": (torch.add, (x(2, 3), x(3))),
    "sub_alpha": (lambda a, b: torch.sub(a, b, alpha=2), (x(2, 3), x(2, 3))),
    "mul_scalar": (lambda a: a * 2.5, (x(2, 3),)),
    "div": (torch.div, (x(2, 3), positive(2, 3))),
    "pow": (lambda a: a.pow(3), (x(2, 3),)),
    "maximum": (torch.maximum, (x(2, 3), x(2, 3))),
    "compare": (lambda a, b: a < b, (x(2, 3), x(2, 3))),
    "where": (lambda a, b: torch.where(a > 0, a, b), (x(2, 3), x(2, 3))),
    "exp": (torch.exp, (x(2, 3),)),
    "log": (torch.log, (positive(2, 3),)),
    "rsqrt": (torch.rsqrt, (positive(2, 3),)),
    "tanh": (torch.tanh, (x(2, 3),)),
    "sigmoid": (torch.sigmoid, (x(2, 3),)),
    "relu": (torch.relu, (x(2, 3),)),
    "silu": (F.silu, (x(2, 3),)),
    "erf": (torch.erf, (x(2, 3),)),
    "sum": (lambda a: a.sum(1, keepdim=True), (x(2, 3),)),
    "mean": (lambda a: a.mean((0, 2)), (x(2, 3, 4),)),
    "amax": (lambda a: a.amax(1), (x(2, 3),)),
    "argmax": (lambda a: a.argmax(1), (x(2, 3),)),
    "topk": (lambda a: torch.topk(a, 2), (x(2, 5),)),
    "cumsum": (lambda a: a.cumsum(1), (x(2, 3),)),
    "softmax": (lambda a: F.softmax(a, -1), (x(2, 3),)),
    "log_softmax": (lambda a: F.log_softmax(a, -1), (x(2, 3),)),
    "mm": (torch.mm, (x(2, 3), x(3, 4))),
    "bmm": (torch.bmm, (x(2, 3, 4), x(2, 4, 5))),
    "addmm": (torch.addmm, (x(4), x(2, 3), x(3, 4))),
    "permute": (lambda a: (a + 1).permute(1, 0), (x(2, 3),)),
    "reshape": (lambda a: (a + 1).reshape(3, 2), (x(2, 3),)),
    "expand": (lambda a: (a + 1).expand(2, 3), (x(1, 3),)),
    "cat": (lambda a, b: torch.cat([a, b], 1), (x(2, 3), x(2, 1))),
    "split": (lambda a: torch.split(a + 1, [1, 2], 1), (x(2, 3),)),
    "slice": (lambda a: (a + 1)[:, 1:3], (x(2, 4),)),
    "select": (lambda a: (a + 1)[:, 1], (x(2, 4),)),
    "unsqueeze": (lambda a: (a + 1).unsqueeze(1), (x(2, 3),)),
    "pad": (lambda a: F.pad(a, (1, 2), value=1.5), (x(2, 3),)),
    "tril": (torch.tril, (x(3, 3),)),
    "embedding": (lambda i, w: F.embedding(i, w), (torch.tensor([[2, 0]]), x(3, 4))),
    "gather": (lambda a, i: a.gather(1, i), (x(2, 3), torch.tensor([[2, 0], [1, 1]]))),
    "cast": (lambda a: a.to(torch.float16), (x(2, 3),)),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (3,), w, b), (x(2, 3), x(3), x(3))),
    "conv2d": (lambda a, w: F.conv2d(a, w, padding=1), (x(1, 2, 5, 5), x(3, 2, 3, 3))),
    "residual": (
        lambda a, w, *norm: F.relu(F.batch_norm(F.conv2d(a, w, padding=1), *norm) + a),
        (x(1, 3, 5, 5), x(3, 3, 3, 3), x(3), positive(3), x(3), x(3)),
    ),
    "bmm_half": (torch.bmm, (x(2, 3, 4).bfloat16(), x(2, 4, 5).bfloat16())),
    "softmax_half": (lambda a: F.softmax(a, -1), (x(2, 3).bfloat16(),)),
}


def models() -> dict[str, tuple[Program, tuple[Tensor, ...]]]:
    """The blocks of the tests, their weights as inputs."""
    return {name: _functional(*make()) for name, make in sim_models.BLOCKS.items()}


def _functional(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Program, tuple[Tensor, ...]]:
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = list(weights)

    def program(*given: Tensor) -> Any:
        own = dict(zip(names, given[len(inputs) :], strict=True))
        return torch.func.functional_call(model, own, given[: len(inputs)])

    return program, (*inputs, *(weight.detach() for weight in weights.values()))


def traced(program: Program, inputs: Sequence[Tensor], table: dict[Any, Any]) -> fx.GraphModule:
    """A graph that returns a tuple."""

    def whole(*given: Tensor) -> tuple[Tensor, ...]:
        result = program(*given)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    mode = FakeTensorMode()
    fakes = [mode.from_tensor(tensor) for tensor in inputs]
    with mode, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        return make_fx(whole, decomposition_table=table)(*fakes)


def ours(program: Program, inputs: Sequence[Tensor]) -> Graph:
    gm = traced(program, inputs, decompose.table(backend) | NORM)
    gm.graph.eliminate_dead_code()  # unused results
    canonicalise(gm, backend)
    return Graph.from_bytes(emit(gm, backend, {}))


def theirs(program: Program, inputs: Sequence[Tensor]) -> Graph:
    """torchair's graph; its descriptions of results are left out: it fills them in later."""
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph
    from torchair.configs.compiler_config import CompilerConfig
    from torchair.npu_fx_compiler import _NpuGraphConverter

    gm = traced(program, inputs, NORM)
    graph = GeConcreteGraph(CompilerConfig(), name="graph")
    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    with given[0].fake_mode:
        done = _NpuGraphConverter(gm, graph=graph, garbage_collect_values=False).run(*given)
    read = Graph.from_bytes(done.graph._proto.SerializeToString())
    bare = [replace(node, output_descs=()) for node in read.nodes]
    return Graph(read.name, tuple(bare))


def read_by_protobuf(program: Program, inputs: Sequence[Tensor]) -> str:
    """Whether the classes that protoc made read our bytes, and write the same."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import GraphDef

    blob = ours(program, inputs).to_bytes()
    message = GraphDef()
    message.ParseFromString(blob)
    return "same" if message.SerializeToString(deterministic=True) == blob else "not the same"


def verdict(graph: Graph, program: Program, inputs: Sequence[Tensor]) -> str:
    """`right`, or what is wrong with what the simulation of the graph gives."""
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    with torch.no_grad():
        plain, reference = _listed(program(*inputs)), _listed(program(*wide))
        results = Simulation(graph, {})(list(inputs))
    said = [
        judge(result, to, run_plain=lambda p=p: p)
        for result, to, p in zip(results, reference, plain, strict=True)
    ]
    return "; ".join(str(v) for v in said if not v.passed) or "right"


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def judged(make: Callable[..., Graph], program: Program, inputs: Sequence[Tensor]) -> str:
    return attempted(lambda: verdict(make(program, inputs), program, inputs))


def attempted(function: Callable[..., str], *args: Any) -> str:
    try:
        return function(*args)
    except Exception as error:  # what a case gave, not the end of the others
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def main() -> None:
    torch.manual_seed(0)
    for name in NATIVE:
        sys.modules[f"torchair.core.{name}"] = MagicMock()
    native: Any = sys.modules["torchair.core._torchair"]
    native.check_cann_compat = lambda *args: ""  # nothing is too new
    native.TorchNpuGraphBase = Executor  # what torchair's own class derives from
    found = {
        name: {"ours": judged(ours, *case), "theirs": judged(theirs, *case)}
        for name, case in {**CASES, **models()}.items()
    }
    for name, case in models().items():
        found[name]["protobuf"] = attempted(read_by_protobuf, *case)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
