"""Every core-ATen overload that the real compilers map, judged against float64."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deeplink_vendors.cpu import onnxrt, openvino
from deeplink_vendors.cpu.onnx.conversion import computing
from deeplink_vendors.cpu.onnx.support import table
from dicp.backend import GraphCompiler
from dicp.conformance.op_check import check, compiled, graph_of
from dicp.conformance.overloads import Call, calls, core
from dicp.dynamo_bridge.partition import reason
from diopi.conformance.cases.sample import Sample
from tests.dicp.op_outcomes import outcomes

ROOT = Path(__file__).parents[3]
BACKENDS = {"onnxrt": onnxrt.backend, "openvino": openvino.backend}
aten = torch.ops.aten
# Ops outside of a compiler's scope: random, allocating, viewing memory, or for training.
NEVER = """
    _embedding_bag _fft_c2r _fft_r2c _local_scalar_dense _native_batch_norm_legit _pdist_forward
    atan2.out avg_pool2d_backward convolution_backward empty.memory_format empty_strided
    native_dropout rand randn randperm resize_ sym_is_contiguous sym_storage_offset sym_stride.int
""".split()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> GraphCompiler:
    return BACKENDS[request.param]


def test_each_overload_is_right_on_its_largest_sample(backend: GraphCompiler) -> None:
    right, bad = outcomes(backend, "float32", dynamic=False, most=1)

    assert bad == []
    assert len(right) >= LEAST[backend.name]


LEAST = {"onnxrtgraph": 155, "openvinograph": 140}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_call_of_every_overload_is_right(
    backend: GraphCompiler, dtype: str, dynamic: bool
) -> None:
    """Run in a separate process: a compiler may crash on an unsupported graph."""
    words = [backend.name, dtype, *(["dynamic"] if dynamic else [])]
    command = [sys.executable, "-m", "tests.dicp.op_outcomes", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["right"]


@pytest.mark.parametrize(
    ("backend", "overload", "why"),
    [
        ("openvino", aten.convolution.default, "OpenVINO's convolution takes no weight"),
        ("onnxrt", aten.col2im.default, "fixed sizes only"),
        ("onnxrt", aten.embedding_dense_backward.default, "fixed sizes only"),
    ],
)
def test_what_needs_fixed_sizes_stays_eager_without_them(
    backend: str, overload: Any, why: str
) -> None:
    call = calls(overload)[0]

    assert reason(graph_of(call, False).node, BACKENDS[backend]) is None
    assert why in (reason(graph_of(call, True).node, BACKENDS[backend]) or "")


def test_every_core_overload_is_mapped_or_known_not_to_be() -> None:
    names = {str(o).removeprefix("aten.").removesuffix(".default") for o in core()}
    mapped = {
        str(o).removeprefix("aten.").removesuffix(".default")
        for o in core()
        if o in onnxrt.backend.conversions
    }

    assert names - mapped == set(NEVER)


def test_a_dynamic_graph_runs_on_other_sizes_than_it_was_compiled_for() -> None:
    call = calls(aten.add.Tensor)[0]

    assert check(onnxrt.backend, call, dynamic=True).grown


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_bfloat16_is_rounded_to_the_nearest(backend: GraphCompiler, dynamic: bool) -> None:
    ends = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    heads = torch.arange(0x3F80, 0x3F90, dtype=torch.int32)[:, None] << 16
    numbers = (heads | ends).view(torch.float32).flatten()
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e38, -3.4e38, 0.0, -0.0])
    x = torch.cat((numbers, -numbers, odd))
    call = _call(aten._to_copy.default, x, dtype=torch.bfloat16)

    found = compiled(backend, graph_of(call, dynamic))([x])[0]

    assert torch.equal(found.nan_to_num(7.0), x.to(torch.bfloat16).nan_to_num(7.0))


def _wrong(emitter: Any, node: Any, x: Any) -> Any:
    return emitter.op("Exp", x)


def test_a_wrong_conversion_is_found() -> None:
    conversions = table()
    conversions.register_conversion(aten.tanh.default)(computing(_wrong))
    broken = replace(onnxrt.backend, conversions=conversions)

    assert check(broken, calls(aten.tanh.default)[0]).status == "wrong"


WHOLE = torch.tensor([0, 1, 2])


def _call(overload: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(overload, Sample(args, kwargs))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (_call(aten.add.Tensor, torch.ones(2).double(), torch.ones(2)), "float64 is not"),
        (_call(aten.add.Tensor, torch.ones(0), torch.ones(0)), "without elements"),
        (_call(aten.scatter_reduce.two, WHOLE, 0, WHOLE, WHOLE, "mean"), "integers"),
    ],
)
def test_what_stays_eager_has_its_reason(call: Call, text: str) -> None:
    found = check(onnxrt.backend, call)

    assert found.status == "eager"
    assert text in found.text
