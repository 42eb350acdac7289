"""A step of decoding in graphs: one graph, few compilations, the same results and writes."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend

import dlinfer
from dicp.dynamo_bridge import report
from tests.dlinfer.decoder import caches, given, layers, step

# batches as a server has them: requests come and go
BATCHES = [1, 1, 2, 3, 3, 5, 8, 8, 7, 6, 6, 4, 2, 1, 1, 9] * 2
NEEDS = {"onnxrtgraph": "onnxruntime", "openvinograph": "openvino"}


class Counting:
    """A back end that counts the graphs that another is given, and their nodes."""

    def __init__(self, name: str) -> None:
        self.inner: Callable[..., Any] = lookup_backend(name)
        self.nodes: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.nodes.append(sum(n.op == "call_function" for n in gm.graph.nodes))
        found: Callable[..., Any] = self.inner(gm, inputs)
        return found


def _outputs(call: Any, model: Any, held: Any, batches: list[int]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [
            call(model, held, *given(rows, 1 + at % 16)).clone() for at, rows in enumerate(batches)
        ]


# torch's own, when inductor is imported
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("backend", "count", "experts"),
    [
        ("aot_eager", 1, True),
        pytest.param("aot_eager", 2, False, marks=pytest.mark.slow),
        pytest.param("onnxrtgraph", 2, False, marks=pytest.mark.slow),
        pytest.param("onnxrtgraph", 2, True, marks=pytest.mark.slow),
        pytest.param("openvinograph", 2, True, marks=pytest.mark.slow),
        pytest.param("inductor", 2, True, marks=pytest.mark.slow),
        pytest.param("inductorgraph", 2, True, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_step_gives_and_writes_what_the_plain_one_does(
    backend: str, count: int, experts: bool
) -> None:
    if backend in NEEDS and importlib.util.find_spec(NEEDS[backend]) is None:
        pytest.skip(f"{NEEDS[backend]} is not installed")
    torch._dynamo.reset()
    model = layers(count, experts)
    plain, held = caches(count, 9 * 8), caches(count, 9 * 8)
    expected = _outputs(step, model, plain, BATCHES)
    graphs = Counting(backend)
    compiled = torch.compile(step, backend=graphs, fullgraph=True, dynamic=True)
    for found, wanted in zip(_outputs(compiled, model, held, BATCHES), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(held, plain, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.any()
            torch.testing.assert_close(mine, other)
    assert len(graphs.nodes) <= 4
    assert max(graphs.nodes) <= 40 * count


@pytest.mark.parametrize(
    "backend", ["ascendgraph", pytest.param("topsgraph", marks=pytest.mark.slow)]
)
def test_a_vendor_s_compiler_takes_all_but_the_cache_and_experts(backend: str) -> None:
    torch._dynamo.reset()
    model, plain, held = layers(1, True), caches(1, 16), caches(1, 16)
    compiled = torch.compile(step, backend=backend, fullgraph=True, options={"cache": False})
    with torch.no_grad():
        found = compiled(model, held, *given(2, 3))
        torch.testing.assert_close(found, step(model, plain, *given(2, 3)))
    eager = {row["op"] for row in report.RECORDS[-1].eager if "dlinfer" in row["op"]}
    assert eager == {"dlinfer.paged_decode_attention.default", "dlinfer.fused_moe.default"}
    assert report.RECORDS[-1].taken >= 25


def test_a_step_runs_as_it_is_where_the_device_has_no_graphs() -> None:
    model, plain, held = layers(1, False), caches(1, 16), caches(1, 16)
    recorded = dlinfer.capture(step, kept=("model", "held"))
    assert torch.equal(recorded(model, held, *given(2, 1)), step(model, plain, *given(2, 1)))
    assert not recorded.recordings
