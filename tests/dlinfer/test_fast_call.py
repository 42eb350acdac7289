"""Ops called from Python: by the short way in C++ where that is possible, with the same results."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dlinfer
from dlinfer import fast_call, fused
from dlinfer.registry import OPS

X, WEIGHT = torch.randn(2, 64), torch.randn(64)


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


class _Marked(Tensor):
    pass


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The short way comes with the first call of a native kernel."""
    dlinfer.routes("cpu")
    assert type(fused.rms_norm).__call__ is not OPS["rms_norm"].overload._op


def test_results_are_those_of_torchs_overload() -> None:
    given = (X, X, WEIGHT, 1e-6)
    for found, expected in zip(
        fused.add_rms_norm(*given), OPS["add_rms_norm"].overload(*given), strict=True
    ):
        assert torch.equal(found, expected)
    cache = [torch.zeros(2, 4, 1, 8) for _ in range(4)]
    new, slots = torch.ones(1, 1, 8), torch.tensor([5])
    assert fused.fill_kv_cache(new, new, *cache[:2], slots) is None
    OPS["fill_kv_cache"].overload(new, new, *cache[2:], slots)
    assert torch.equal(cache[0], cache[2]) and cache[0].sum() == 8


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((X, WEIGHT, 1e-6), {}),
        ((X, WEIGHT), {"eps": 1e-6}),
        ((X, torch.nn.Parameter(WEIGHT, requires_grad=False), 1), {}),  # an int for a float
        ((X.as_subclass(_Marked), WEIGHT, 1e-6), {}),
    ],
    ids=["plain", "named", "parameter", "subclass"],
)
def test_every_way_of_giving_arguments_does_as_torch_does(given: Any, named: Any) -> None:
    found, expected = (f(*given, **named) for f in (fused.rms_norm, OPS["rms_norm"].overload))
    assert type(found) is type(expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("given", [(X,), (X, WEIGHT, "a"), (X, None, 1e-6), (X, WEIGHT, 1e-6, 3)])
def test_what_does_not_fit_is_reported_by_torch(given: Any) -> None:
    told = []
    for function in (fused.rms_norm, OPS["rms_norm"].overload):
        with pytest.raises((RuntimeError, TypeError)) as raised:
            function(*given)
        told.append((raised.type, str(raised.value)))
    assert told[0] == told[1]


def test_an_error_of_a_kernel_comes_out() -> None:
    with pytest.raises(RuntimeError) as found, dlinfer.using("reference"):
        fused.rms_norm(X, torch.randn(3), 1e-6)
    with pytest.raises(RuntimeError) as expected, dlinfer.using("reference"):
        OPS["rms_norm"].overload(X, torch.randn(3), 1e-6)
    assert str(found.value) == str(expected.value)


def test_modes_see_the_call() -> None:
    with _Seen() as seen:
        fused.rms_norm(X, WEIGHT, 1e-6)
    assert seen.names == ["dlinfer.rms_norm.default"]
    with _Called() as called:
        fused.rms_norm(X, WEIGHT, 1e-6)
    assert called.functions == [OPS["rms_norm"].overload]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_fake_tensors_and_jit_traces_have_the_op() -> None:
    with torch._subclasses.FakeTensorMode():
        found = fused.rms_norm(torch.empty(2, 64), torch.empty(64), 1e-6)
    assert type(found).__name__ == "FakeTensor" and found.shape == (2, 64)
    traced: Any = torch.jit.trace(lambda x: fused.rms_norm(x, WEIGHT, 1e-6), X)  # type: ignore[no-untyped-call]
    assert "dlinfer::rms_norm" in str(traced.graph)


def test_a_graph_holds_torchs_overload() -> None:
    graphs = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return module

    def step(x: Tensor) -> Any:
        return fused.rms_norm(x, WEIGHT, eps=1e-6)

    assert torch.equal(torch.compile(step, backend=keep, fullgraph=True)(X), step(X))
    assert OPS["rms_norm"].overload in [node.target for node in graphs[0].nodes]
    exported = torch.export.export(_Module(), (X,))
    assert OPS["rms_norm"].overload in [node.target for node in exported.graph.nodes]


class _Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return fused.rms_norm(x, WEIGHT, 1e-6)


def test_import_does_not_load_dynamo() -> None:
    code = "import sys, dlinfer; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_compiler_calls_stay_in_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise fast_call.BuildError("no compiler.\nmore", hint="")

    monkeypatch.setattr(fast_call.native, "load_extension", broken)
    fast_call.in_cpp()
    assert "calls of dlinfer's ops stay in Python: no compiler." in caplog.text
