"""torch.func, fake tensors, tracing, export, torch.compile, jit and custom operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, vmap

from dicp.dynamo_bridge import report
from tests.dicp import toy

# torch imports and scripts its own decompositions on the first use of these
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit."),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\):FutureWarning"),
]


def _loss(w: Tensor, x: Tensor) -> Tensor:
    return (torch.tanh(x @ w) ** 2).sum()


def test_grad_equals_the_cpus() -> None:
    w, x = torch.randn(3, 2), torch.randn(4, 3)
    actual = grad(_loss)(w.to("dipu"), x.to("dipu"))
    torch.testing.assert_close(actual.cpu(), grad(_loss)(w, x))


def test_vmap_of_grad_gives_per_sample_gradients() -> None:
    w, x = torch.randn(3, 2), torch.randn(4, 3)
    per_sample = vmap(grad(_loss), in_dims=(None, 0))
    actual = per_sample(w.to("dipu"), x.to("dipu"))
    assert actual.shape == (4, 3, 2)
    torch.testing.assert_close(actual.cpu(), per_sample(w, x))


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians_equal_the_cpus(jacobian: Callable[..., Any]) -> None:
    x = torch.randn(3)
    actual = jacobian(lambda t: torch.sin(t) * t.sum())(x.to("dipu"))
    torch.testing.assert_close(actual.cpu(), jacobian(lambda t: torch.sin(t) * t.sum())(x))


def test_vmap_over_random_numbers() -> None:
    draw = vmap(lambda t: t + torch.rand(3, device="dipu"), randomness="different")
    result = draw(torch.zeros(4, 3, device="dipu"))
    assert len({tuple(row) for row in result.tolist()}) == 4


def test_a_module_is_called_with_other_parameters() -> None:
    layer = nn.Linear(2, 1, bias=False).to("dipu")
    weight = torch.tensor([[2.0, 3.0]], device="dipu")
    result = functional_call(layer, {"weight": weight}, torch.ones(1, 2, device="dipu"))
    assert result.tolist() == [[5.0]]


def test_fake_tensors_carry_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    allocated = torch.dipu.memory_allocated()
    with FakeTensorMode():
        a = torch.empty(1 << 20, 64, device="dipu")
        b = (a @ a.t()[:, :8]).relu().sum(0)
    assert (b.device, b.shape) == (torch.device("dipu", 0), (8,))
    assert torch.dipu.memory_allocated() == allocated


def test_make_fx_traces_device_tensors() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(3, device="dipu")
    graph = make_fx(lambda t: t.sin() + t.new_zeros(3))(x)
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert targets[0] == "aten.sin.default"
    torch.testing.assert_close(graph(x).cpu(), x.sin().cpu())


def test_export_runs_on_the_device() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to("dipu")
    x = torch.randn(2, 3, device="dipu")
    exported = torch.export.export(net, (x,))
    torch.testing.assert_close(exported.module()(x).cpu(), net(x).cpu())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_trains_as_eager_does(backend: str) -> None:
    results = []
    for compiled in (False, True):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1)).to("dipu")
        step = torch.compile(net, backend=backend) if compiled else net
        loss = step(torch.ones(2, 4, device="dipu")).square().sum()
        loss.backward()
        results.append([loss.item(), *(p.grad.cpu() for p in net.parameters())])  # type: ignore[union-attr]
    torch._dynamo.reset()
    torch.testing.assert_close(results[1], results[0])


def test_compile_follows_a_mutated_input() -> None:
    def double(t: Tensor) -> Tensor:
        t.mul_(2)
        return t + 1

    x = torch.ones(2, device="dipu")
    result = torch.compile(double, backend="aot_eager")(x)
    torch._dynamo.reset()
    assert (x.tolist(), result.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_inductor_is_right_or_says_what_to_use_instead() -> None:
    x = torch.linspace(-1, 1, 8, device="dipu")
    try:
        actual = torch.compile(lambda t: (t.sin() * 2 + t).relu(), backend="inductor")(x)
    except RuntimeError as error:
        assert "aot_eager" in str(error)
        return
    finally:
        torch._dynamo.reset()
    torch.testing.assert_close(actual.cpu(), (x.cpu().sin() * 2 + x.cpu()).relu())


GRAPHS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: x.softmax(-1), [(8, 100)]),
    "layer_norm": (
        lambda x, w, b: nn.functional.layer_norm(x, (100,), w, b),
        [(8, 100), (100,), (100,)],
    ),
    "linear": (lambda x, w: nn.functional.gelu(x @ w.t()).logsumexp(0), [(8, 10), (30, 10)]),
    "conv2d": (lambda x, w: torch.conv2d(x, w).relu().amax((2, 3)), [(2, 3, 8, 8), (4, 3, 3, 3)]),
    "var": (lambda x: x.var(1) + x.std(), [(50, 300)]),
    "masked": (lambda x: torch.where((x > 0).any(-1, keepdim=True), x, -x), [(4, 8)]),
    "sort": (lambda x: x.sort(-1).values.cumsum(0), [(8, 10)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_inductor_gives_the_cpus_numbers_forward_and_backward(name: str) -> None:
    function, shapes = GRAPHS[name]
    numbers = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=numbers) for shape in shapes]
    results = []
    for device, run in (("cpu", function), ("dipu", torch.compile(function))):
        given = [x.clone().to(device).requires_grad_() for x in inputs]
        result = run(*given)
        assert result.device.type == device
        result.square().mean().backward()
        results.append([result.detach().cpu(), *(x.grad.cpu() for x in given)])  # type: ignore[union-attr]
    torch._dynamo.reset()
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


def test_inductor_allocates_on_the_device_of_its_inputs() -> None:
    x = torch.arange(6.0, device="dipu:1")
    result = torch.compile(lambda t: (t * 2).cumsum(0).sin())(x)
    torch._dynamo.reset()
    assert result.device == torch.device("dipu", 1)
    torch.testing.assert_close(result.cpu(), (x.cpu() * 2).cumsum(0).sin())


def test_inductor_draws_the_devices_random_numbers() -> None:
    compiled = torch.compile(lambda t: nn.functional.dropout(t, 0.5))
    x, state = torch.ones(1000, device="dipu"), torch.get_rng_state()
    first, second = compiled(x), compiled(x)
    torch._dynamo.reset()
    assert 400 < first.count_nonzero().item() < 600
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_inductor_compiles_a_branch() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() - 1, (x,))

    compiled = torch.compile(choose)
    results = [compiled(torch.full((4,), sign, device="dipu")).cpu() for sign in (1.0, -1.0)]
    torch._dynamo.reset()
    torch.testing.assert_close(results[0], torch.full((4,), 1.0).sin() + 1)
    torch.testing.assert_close(results[1], torch.full((4,), -1.0).cos() - 1)


def test_inductor_is_registered_and_wraps_nothing() -> None:
    from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration

    init_backend_registration()
    scheduling = get_scheduling_for_device("dipu")
    assert scheduling is not None
    assert torch._TorchCompileInductorWrapper.__call__.__module__ == "torch"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_can_be_compiled(backend: str, masked: bool) -> None:
    def attend(x: Tensor, mask: Tensor | None) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, mask, is_causal=mask is None)

    x = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
    results = []
    for device, run in (("cpu", attend), ("dipu", torch.compile(attend, backend=backend))):
        there = x.clone().to(device).requires_grad_()
        result = run(there, None if mask is None else mask.to(device))
        result.square().sum().backward()
        assert there.grad is not None
        results.append((result.detach().cpu(), there.grad.cpu()))
    torch._dynamo.reset()
    torch.testing.assert_close(results[1], results[0])


def test_a_graph_compiler_of_the_host_serves_the_device_where_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    model, x = nn.Linear(4, 2).to("dipu"), torch.randn(3, 4).to("dipu")
    reasons = []
    for backend in (toy.make(through_host=True), toy.make()):
        torch.compiler.reset()
        with torch.no_grad():
            compiled = torch.compile(model, backend=backend, options={"measure": False})
            assert compiled(x).device == x.device
            torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())
        reasons.append([row["reason"] for row in report.RECORDS[-1].eager])
    torch.compiler.reset()  # what is compiled holds its weights
    assert reasons == [[], ["its tensors are on dipu; toygraph runs on cpu"]]


@pytest.mark.parametrize(
    "backend", ["onnxrtgraph", "openvinograph", "ascendgraph", "topsgraph", "inductorgraph"]
)
def test_a_named_backend_compiles_for_the_device(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile as in the manual of DICP: by the name of the backend, tensors on the device."""
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DICP_MEASURE", "0")
    args = [torch.randn(s) for s in ((5, 3), (5, 2), (2, 3))]
    torch.compiler.reset()
    compiled = torch.compile(torch.ops.aten.addmm.default, backend=backend, dynamic=False)
    result = compiled(*(t.to("dipu") for t in args))
    torch.compiler.reset()
    assert result.device.type == "dipu"
    torch.testing.assert_close(result.cpu(), torch.addmm(*args))
    record = report.RECORDS[-1]
    assert (record.backend.split()[0], record.nodes, record.taken) == (backend, 1, 1)


def test_a_named_backend_trains_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    results = []
    for device in ("cpu", "dipu"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        run = torch.compile(model, backend="ascendgraph") if device == "dipu" else model
        run(torch.randn(3, 4).to(device)).sum().backward()
        results.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    torch.compiler.reset()
    assert [record.kind for record in report.RECORDS[-2:]] == ["forward", "backward"]
    assert all(record.taken for record in report.RECORDS[-2:])
    torch.testing.assert_close(results[1], results[0])


def test_dispatch_modes_see_the_ops() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, device="dipu")
    with Watch():
        (x + 1).relu()
    assert seen == ["aten.add.Tensor", "aten.relu.default"]


def test_a_custom_op_with_only_a_cpu_kernel_runs() -> None:
    @torch.library.custom_op("dipu_tests::twice", mutates_args=(), device_types="cpu")
    def twice(x: Tensor) -> Tensor:
        return x * 2

    result = twice(torch.ones(2, device="dipu"))
    assert result.device.type == "dipu"
    assert result.tolist() == [2.0, 2.0]


def test_a_custom_op_for_every_device_sees_device_tensors() -> None:
    devices: list[str] = []

    @torch.library.custom_op("dipu_tests::thrice", mutates_args=())
    def thrice(x: Tensor) -> Tensor:
        devices.append(x.device.type)
        return x * 3

    assert thrice(torch.ones(2, device="dipu")).tolist() == [3.0, 3.0]
    assert devices == ["dipu"]


def test_a_library_kernel_for_the_device_is_used() -> None:
    library = torch.library.Library("dipu_tests_kernel", "DEF")
    library.define("answer(Tensor x) -> Tensor")
    library.impl("answer", lambda x: torch.full_like(x, 42.0), "PrivateUse1")
    result = torch.ops.dipu_tests_kernel.answer(torch.zeros(2, device="dipu"))
    assert result.tolist() == [42.0, 42.0]


class _Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 2 - 1)


@pytest.mark.parametrize("kind", ["script", "trace"])
def test_jit_runs_on_the_device(kind: str) -> None:
    x = torch.tensor([0.0, 1.0, 2.0], device="dipu")
    module = torch.jit.script(_Scale()) if kind == "script" else torch.jit.trace(_Scale(), (x,))
    for _ in range(3):  # the profiling executor optimises after the second call
        result = module(x)
    assert result.tolist() == [0.0, 1.0, 3.0]
