"""inductorgraph: training with our passes inside of inductor, held to the gradients of eager."""

import copy
import logging
import weakref
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from deeplink.errors import SettingError
from deeplink.judge import judge
from deeplink_vendors.cuda.graph import backend, patches
from dicp import torch_internals
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.options import of_mode, resolve
from dicp.dynamo_bridge.passes import layout
from dicp.dynamo_bridge.tuning import autotune, bypass
from tests.dicp import blocks


def gradients(model: nn.Module, run: Any, args: tuple[Any, ...]) -> list[Tensor]:
    model.zero_grad()
    run(*args).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # inductor's own imports
@pytest.mark.slow  # inductor compiles C++ for a minute
@pytest.mark.parametrize("make", [blocks.llama, blocks.convolutions])
def test_gradients_are_as_good_as_eager_s(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Any] = []
    monkeypatch.setattr(layout, "_join", passed.append)
    model, args = make()
    kept = torch._inductor.config.patch(fx_graph_cache=False)  # a graph from there is passed by
    with kept, torch._functorch.config.patch(enable_autograd_cache=False):
        mine = gradients(model, torch.compile(model, backend=backend), args)
    plain = gradients(model, model, args)
    model.double()
    wide = gradients(model, model, tuple(x.double() for x in args))
    for got, eager, exact in zip(mine, plain, wide, strict=True):
        assert judge(got, exact, run_plain=lambda eager=eager: eager).passed
    assert bool(passed) == (make is blocks.llama)  # our pass saw its permutes
    assert report.RECORDS[-1].kind == "training"


@pytest.mark.parametrize(
    ("seconds", "winner"), [(2.0, "eager"), (0.99, "eager"), (0.5, "compiled")]
)
def test_a_training_step_that_does_not_win_clearly_stays_eager(
    monkeypatch: pytest.MonkeyPatch, seconds: float, winner: str
) -> None:
    now = [0.0]
    monkeypatch.setattr(autotune, "_now", lambda args: now[0])
    weight, calls = nn.Parameter(torch.ones(2)), list[str]()

    def candidate(name: str, seconds: float) -> Any:
        def run(x: Tensor, w: Tensor) -> tuple[Tensor]:
            now[0] += seconds
            calls.append(name)
            return (x * w,)

        return run

    told: list[autotune.Decision] = []
    both = candidate("compiled", seconds), candidate("eager", 1)
    choice = autotune.TrainingChoice(*both, told.append)
    choice(torch.ones(2), weight)[0].sum().backward()
    assert torch.equal(weight.grad, torch.ones(2))  # type: ignore[arg-type]  # of this call alone
    assert calls[-1] == winner
    compiled = weakref.ref(both[0])
    del both
    assert (compiled() is None) == (winner == "eager")  # what loses is let go
    assert told[0].winner == winner
    assert told[0].seconds == pytest.approx({"compiled": seconds, "eager": 1.0})


def test_a_trial_gives_each_step_the_program_s_values_in_one_place() -> None:
    given = list[tuple[float, int]]()

    def run(x: Tensor, w: Tensor) -> tuple[Tensor]:
        given.append((x[0].item(), x.data_ptr()))
        x += 1
        return (x * w,)

    x, weight = torch.ones(2), nn.Parameter(torch.ones(2))
    autotune._training_times([run, run], [x, weight])
    assert len(given) == 2 * (autotune.WARM + autotune.ROUNDS)
    assert set(given) == {(1.0, given[0][1])}
    assert given[0][1] != x.data_ptr() and torch.equal(x, torch.ones(2))


def test_a_model_whose_compiled_steps_lose_is_trained_eagerly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiler whose code is slow: time goes on when it runs, and not by itself."""
    now, calls = [0.0], [0]
    monkeypatch.setattr(autotune, "_now", lambda args: now[0])

    def slow(gm: fx.GraphModule, *rest: Any) -> Any:
        def run(*args: Any) -> Any:
            now[0] += 1.0
            calls[0] += 1
            return gm.forward(*args)

        return run

    monkeypatch.setattr(torch_internals, "inductor", slow)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    same, x = copy.deepcopy(model), torch.randn(3, 4)
    compiled = torch.compile(model, backend=backend, options={"measure": True})
    with caplog.at_level(logging.INFO, "dicp"):
        mine = gradients(model, compiled, (x,))
        tried = calls[0]
        gradients(model, compiled, (x,))
    assert calls[0] == tried > 0
    assert report.RECORDS[-1].decision == "kept eager: eager 0 us/step, compiled 1 s/step"
    assert "kept eager: eager 0 us/step" in caplog.text
    for got, expected in zip(mine, gradients(same, same, (x,)), strict=True):
        torch.testing.assert_close(got, expected)
    gradients(same, same, (x,))  # as many calls: the trials left the statistics as they were
    torch.testing.assert_close(dict(model.named_buffers()), dict(same.named_buffers()))


class Broken(nn.Module):
    """A module that dynamo splits into two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        torch._dynamo.graph_break()
        return x * self.inner.weight.sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own check of the state
def test_a_module_whose_graphs_win_alone_and_lose_in_the_program_s_steps_is_trained_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(autotune, "_now", lambda args: now[0])
    monkeypatch.setattr(autotune, "_training_times", lambda both, args: [1.0, 2.0])

    def slow(gm: fx.GraphModule, *rest: Any) -> Any:
        def run(*args: Any) -> Any:
            now[0] += 1.0
            return gm.forward(*args)

        return run

    monkeypatch.setattr(torch_internals, "inductor", slow)
    model, before = Broken(), len(report.RECORDS)
    same, x = copy.deepcopy(model), torch.randn(3, 4)
    compiled = torch.compile(model, backend=backend, options={"measure": True})
    for _ in range(2 + 2 * autotune.BLOCK * (autotune.ROUNDS + 1)):
        mine, plain = gradients(model, compiled, (x,)), gradients(same, same, (x,))
        torch.testing.assert_close(mine, plain)
    assert [record.decision for record in report.RECORDS[before:]] == [
        "kept eager: eager 0 us/step, compiled 2 s/step, the whole module in the program's steps; "
        "the graph alone: kept compiled: compiled 1 s/step, eager 2 s/step"
    ] * 2
    took = now[0]
    gradients(model, compiled, (x,))
    assert now[0] == took
    refused = pytest.raises(RuntimeError, match="recompile")
    with torch.compiler.set_stance("fail_on_recompile"), refused:
        compiled(torch.randn(5, 4, 4))  # other sizes are to be compiled


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own check of the state
@pytest.mark.parametrize("before", [0, 4])
def test_a_module_in_a_checkpoint_runs_one_thing_in_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(torch_internals, "inductor", lambda gm, *rest: gm.forward)
    compiled = torch.compile(Broken(), backend=backend, options={"measure": True})
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(before):
        compiled(x).sum().backward()
    assert bypass.measures(compiled) == bool(before)
    for _ in range(2):
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
        assert not bypass.measures(compiled)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # inductor's own imports
def test_a_graph_may_be_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run AOTAutograd's graphs without inductor: backward is compiled before its call, and must not
    modify what forward saved.
    """

    def eager(gm: fx.GraphModule, inputs: Any, config_patches: Any) -> Any:
        return torch_internals.aot(
            gm, inputs, forward=boxed, backward=boxed, inference=boxed, table={}
        )

    def boxed(gm: fx.GraphModule, inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", eager)
    monkeypatch.setenv("DICP_MEASURE", "0")
    x = torch.ones(2, requires_grad=True)
    loss = torch.compile(lambda x: (x.sin().cos() * x).sum(), backend=backend)(x)
    loss.backward(retain_graph=True)
    assert x.grad is not None
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_inductor_is_set_to_cuda_graphs_or_a_wrapper_in_c() -> None:
    class OnCuda(Tensor):
        @property
        def device(self) -> Any:
            return torch.device("cuda")

    x, size = torch.ones(1).as_subclass(OnCuda), ShapeEnv().create_unbacked_symint()
    plain, quick = resolve({}), resolve(of_mode("reduce-overhead"))
    for inputs, training in (([x], False), ([x], True), ([x, size], False)):
        assert patches(inputs, training, plain) == {"triton.cudagraphs": True}
    assert patches([x, size], True, plain) == {"triton.cudagraphs": False}
    assert patches([x, size], True, quick) == {"triton.cudagraphs": True}
    assert patches([torch.ones(1)], False, plain) == {"cpp_wrapper": True}
    assert patches([torch.ones(1)], True, plain) == {}


def test_a_mode_that_means_nothing_here_is_refused() -> None:
    with pytest.raises(SettingError, match="there are: default, reduce-overhead"):
        of_mode("max-autotune")


@torch.library.custom_op("toy::sums", mutates_args=())
def sums(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in x.split(sizes.tolist())])


@sums.register_fake
def _(x: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(len(sizes), x.shape[1])


def _sums_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad.repeat_interleave(torch.tensor(ctx.sizes.tolist()), 0), None


sums.register_autograd(
    _sums_backward,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "sizes", inputs[1]),
)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # inductor's own imports
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # torch's word of the same
def test_what_torch_cannot_trace_stays_eager_as_one_graph_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, before = nn.Linear(8, 8), len(report.RECORDS)
    args = (torch.randn(6, 8), torch.tensor([2, 4]))

    def run(x: Tensor, sizes: Tensor) -> Tensor:
        return sums(model(x), sizes).relu()

    compiled = torch.compile(run, backend=backend, options={"cache": False})
    mine, plain = gradients(model, compiled, args), gradients(model, run, args)
    assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))
    (record,) = report.RECORDS[before:]
    assert (record.nodes, record.taken) == (3, 0)
    assert record.decision == "eager: torch cannot trace aten._local_scalar_dense.default"
    assert "stays eager" in caplog.text
