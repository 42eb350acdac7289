"""topsgraph: C++ for TopsGraph's builder as it is written, compiled and simulated."""

import math

import pytest
import torch

from deeplink.errors import CompileError
from deeplink_vendors.enflame.graph import backend
from deeplink_vendors.enflame.graph.compiler import compile_source
from deeplink_vendors.enflame.graph.interpreter import Simulation
from deeplink_vendors.enflame.graph.source import Source
from dicp.simulation import SimulationError

EXACT = {
    torch.float32: [math.inf, -0.0, 1e-45, 3.4e38, 0.1],
    torch.bfloat16: [-math.inf, -0.0, 0.1],
    torch.int64: [-(2**63), 2**63 - 1, 0],
    torch.bool: [True, False],
}


@pytest.fixture(scope="module")
def source() -> str:
    """x + x, a row of 2000 numbers, and numbers at the edges of their types."""
    b = Source()
    x = b.of(torch.empty(2, 3))
    outputs = [b.call("Add", x, b.constant("w", torch.empty(2, 3)), [], out=(x.dtype, x.shape))]
    outputs += [b.const(torch.arange(2000))]
    outputs += [b.const(torch.tensor(values, dtype=dtype)) for dtype, values in EXACT.items()]
    b.output(outputs, [])
    return b.finish().decode()


@pytest.fixture(scope="module")
def module(source: str) -> bytes:
    return compile_source(source.encode())


def test_a_source_is_what_the_builder_is_called_with(source: str) -> None:
    kind = "builder::Type(std::vector<int64_t>{2, 3}, builder::PrimitiveType::F32())"
    assert f"builder::Op op0 = hlir_builder->CreateInput({kind});" in source
    assert f"builder::Op op2 = builder::Add(op0, op1, std::vector<int64_t>{{}}, {kind});" in source
    assert '#include "dtu/hlir_builder/hlir_builder.h"' in source


def test_a_module_runs_with_its_weights(module: bytes) -> None:
    x, w = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(Simulation(module, {"w": w})([x])[0], x + w)


def test_constants_are_exact_and_whole(module: bytes) -> None:
    _, row, *others = Simulation(module, {"w": torch.zeros(2, 3)})([torch.zeros(2, 3)])
    assert torch.equal(row, torch.arange(2000))
    for found, (dtype, values) in zip(others, EXACT.items(), strict=True):
        expected = torch.tensor(values, dtype=dtype)
        assert found.dtype == dtype and torch.equal(found, expected)
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))  # -0, too


def test_results_are_held_against_the_types_that_the_source_declares(module: bytes) -> None:
    wrong = module.replace(b'"op": "Add"', b'"op": "Less"')
    with pytest.raises(SimulationError, match=r"Less \(%2\) declares torch.float32\[2, 3\]"):
        Simulation(wrong, {"w": torch.zeros(2, 3)})([torch.zeros(2, 3)])
    with pytest.raises(SimulationError, match="no function Mystery"):
        Simulation(module.replace(b'"op": "Add"', b'"op": "Mystery"'), {"w": torch.zeros(2, 3)})


def test_a_call_that_the_interface_does_not_have_is_refused(source: str) -> None:
    for right, wrong in (("builder::Add(", "builder::Addd("), ("op0, op1,", "op0, 1.5,")):
        with pytest.raises(CompileError, match=r"graph_0\.cpp"):
            compile_source(source.replace(right, wrong).encode())


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match=r"no C\+\+ compiler here"):
        backend.version()
