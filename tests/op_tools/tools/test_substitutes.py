"""OpFallback and OpDtypeCast in a training: writes, leaves, random numbers, errors, composition."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from op_tools import OpDtypeCast, OpFallback
from op_tools.core import tool_errors
from op_tools.tools.apply import apply_feature

Tool = Callable[[], AbstractContextManager[Any]]
SAME: dict[str, Tool] = {  # tools that change no value on this device
    "fallback": OpFallback,
    "fallback kernels": partial(OpFallback, level="aten"),
    "fallback modules": partial(OpFallback, level="module"),
}
WIDE: dict[str, Tool] = {
    "cast": partial(OpDtypeCast, casts="float32->float64"),
    "cast kernels": partial(OpDtypeCast, casts="float32->float64", level="aten"),
}
BOTH = SAME | WIDE


def tools(kinds: dict[str, Tool]) -> Any:
    return pytest.mark.parametrize("tool", kinds.values(), ids=kinds)


def device(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to("dipu", dtype)


def assert_same(mine: Any, plain: Any) -> None:
    torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)
    assert tool_errors.problems() == []


# Writes that autograd's version counter does not report.

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    name: (getattr(torch.optim, name), kinds)
    for name, kinds in {
        "SGD": ("plain", "foreach", "fused"),
        "Adam": ("plain", "foreach", "fused", "capturable"),
        "AdamW": ("plain", "foreach", "fused", "capturable"),
        "Adagrad": ("plain", "foreach", "fused"),
        "Adadelta": ("plain", "foreach", "capturable"),
        "Adamax": ("plain", "foreach", "capturable"),
        "ASGD": ("plain", "foreach", "capturable"),
        "NAdam": ("plain", "foreach", "capturable"),
        "RAdam": ("plain", "foreach", "capturable"),
        "RMSprop": ("plain", "foreach", "capturable"),
        "Rprop": ("plain", "foreach", "capturable"),
        "Adafactor": ("plain", "foreach"),
        "Muon": ("plain",),
        "LBFGS": ("plain",),
        "SparseAdam": ("plain",),
    }.items()
}
KINDS = [(name, kind) for name, (_, kinds) in OPTIMIZERS.items() for kind in kinds]
QUICK = [pair for pair in KINDS if pair[1] == "fused" or pair in (("AdamW", "foreach"),)]


def trained(name: str, kind: str, around: AbstractContextManager[Any]) -> list[Any]:
    """The parameters after three steps, and the state of the optimizer."""
    torch.manual_seed(0)
    made = OPTIMIZERS[name][0]
    if name == "SparseAdam":
        model: nn.Module = nn.Embedding(6, 3, sparse=True).to("dipu")
        given = torch.tensor([1, 4, 1]).to("dipu")
    else:
        model = nn.Linear(4, 3, bias=name != "Muon").to("dipu")
        given = device(5, 4)
    options: dict[str, Any] = {"foreach": False} if kind == "plain" else {kind: True}
    if name in ("LBFGS", "SparseAdam", "Muon"):
        options = {}
    if name == "SGD":
        options["momentum"] = 0.9
    if name == "LBFGS":
        options["max_iter"] = 3  # more of them amplify rounding
    optimizer = made(model.parameters(), lr=0.1, **options)  # type: ignore[call-arg]

    def loss() -> Tensor:
        optimizer.zero_grad()
        found: Tensor = model(given).square().sum()
        found.backward()
        return found

    with around:
        for _ in range(3):
            optimizer.step(loss)  # type: ignore[arg-type]
    return [list(model.parameters()), optimizer.state_dict()["state"]]


def assert_trains(name: str, kind: str, tool: Tool) -> None:
    plain = trained(name, kind, nullcontext())
    mine = trained(name, kind, tool())
    is_exact = tool in SAME.values()  # float64 rounds elsewhere
    rtol, atol = (0.0, 0.0) if is_exact else (1e-3, 1e-5)
    torch.testing.assert_close(mine, plain, rtol=rtol, atol=atol)
    assert tool_errors.problems() == []


@pytest.mark.parametrize(("name", "kind"), QUICK)
@tools({name: BOTH[name] for name in ("fallback", "fallback kernels", "cast")})
def test_a_fused_optimizer_trains(name: str, kind: str, tool: Tool) -> None:
    assert_trains(name, kind, tool)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), KINDS)
@tools(BOTH)
def test_every_optimizer_trains(name: str, kind: str, tool: Tool) -> None:
    assert_trains(name, kind, tool)


@tools(SAME | {"cast": partial(OpDtypeCast, casts="float16->float32")})
def test_a_step_with_an_infinite_gradient_is_skipped(tool: Tool) -> None:
    weight = nn.Parameter(torch.ones(3).to("dipu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("dipu", init_scale=8.0)
    with tool():
        for gradient in (24.0, float("inf")):
            weight.grad = torch.full((3,), gradient).to("dipu")
            scaler.scale(torch.ones(1).to("dipu"))
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert weight.tolist() == pytest.approx([0.7, 0.7, 0.7]) and scaler.get_scale() == 4.0


@tools(BOTH)
@pytest.mark.parametrize("inference", [False, True])
def test_running_statistics_are_written(tool: Tool, inference: bool) -> None:
    def after(around: AbstractContextManager[Any]) -> list[Tensor]:
        torch.manual_seed(0)
        with torch.inference_mode(inference):
            one = nn.BatchNorm1d(3).to("dipu")
            two = nn.InstanceNorm1d(3, track_running_stats=True).to("dipu")
            x = torch.arange(24.0).reshape(2, 3, 4).to("dipu")
            with around:
                two(one(x))
        return [value for norm in (one, two) for value in norm.buffers()]

    assert_same(after(tool()), after(nullcontext()))


def test_a_write_past_autograd_is_seen_in_a_function_that_is_not_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(3, device="dipu")
    with apply_feature("tests.op_tools.tools.test_substitutes.third_party", "fallback"):
        third_party(x)
    assert x.tolist() == [5.0, 5.0, 5.0] and x._version == 0


def third_party(x: Tensor) -> None:
    x.data.fill_(5)


@tools(BOTH)
def test_a_result_fills_an_empty_out(tool: Tool) -> None:
    x, out = device(3, 4), torch.empty(0, device="dipu")
    with tool():
        assert torch.exp(x.t(), out=out) is out
    assert_same(out, torch.exp(x.t()))
    assert out.stride() == torch.exp(x.t(), out=torch.empty(0, device="dipu")).stride()


@tools({name: tool for name, tool in BOTH.items() if "modules" not in name})
def test_inference_tensors_are_computed_and_written(tool: Tool) -> None:
    with torch.inference_mode():
        x = device(3, 3)
        with tool() as started:
            y = (x @ x).relu_()
            y[0] = 7
            torch._foreach_add_([y], 1.0)
            nn.init.zeros_(x)
    assert started.hits
    assert y[0].tolist() == [8.0, 8.0, 8.0] and x.tolist() == [[0.0] * 3] * 3
    assert tool_errors.problems() == []


# Types, leaves, kinds of tensors.


@tools(SAME)
def test_a_conversion_under_autocast_keeps_the_type_that_it_names(tool: Tool) -> None:
    x = device(3, dtype=torch.bfloat16)
    with torch.autocast("dipu", dtype=torch.bfloat16), tool():
        wide = [x.float(), x.to(torch.float32), x.type_as(torch.ones(1, device="dipu"))]
        assert F.dropout(x, training=False) is x
    assert [(t.dtype, t.device.type) for t in wide] == [(torch.float32, "dipu")] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda like: torch.ones(3, device="dipu", requires_grad=True),
        lambda like: torch.randn(3, device="dipu", requires_grad=True),
        lambda like: torch.tensor([1.0, 2.0, 3.0], device="dipu", requires_grad=True),
        lambda like: torch.zeros_like(like, requires_grad=True),
        lambda like: like.new_ones(3, requires_grad=True),
    ],
)
@tools({"fallback": OpFallback, "cast": OpDtypeCast})
def test_a_new_tensor_is_a_leaf(make: Callable[[Tensor], Tensor], tool: Tool) -> None:
    like = device(3, dtype=torch.float16)
    with tool():
        leaf = make(like)
        (leaf * 2).sum().backward()
    assert leaf.is_leaf and leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0, 2.0]
    assert tool_errors.problems() == []


@tools(BOTH)
def test_the_gradient_of_an_embedding_may_be_sparse(tool: Tool) -> None:
    table = nn.Embedding(4, 2, sparse=True).to("dipu")
    with tool():
        table(torch.tensor([1, 1, 3]).to("dipu")).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0]


@tools({name: BOTH[name] for name in ("fallback", "fallback modules", "cast")})
def test_packed_sequences_are_computed(tool: Tool) -> None:
    x, layer = device(3, 4, 2), nn.LSTM(2, 3, batch_first=True).to("dipu")

    def run() -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)

    plain = run()
    with tool():
        mine = run()
    assert_same(mine, plain)


# Random numbers.


def draw() -> list[Tensor]:
    own = torch.Generator("dipu").manual_seed(3)
    layer = nn.Linear(3, 3).to("dipu")
    nn.init.kaiming_uniform_(layer.weight)
    nn.init.normal_(layer.bias)
    given = [
        torch.randn(3, device="dipu", generator=own),
        torch.randperm(5, generator=own, device="dipu"),
    ]
    nn.init.xavier_normal_(layer.weight, generator=own)
    given += [torch.rand(2, device="dipu", generator=own), torch.rand(2, device="dipu")]
    return [*layer.parameters(), *given]


@tools(SAME)
def test_initialisation_and_generators_draw_once(tool: Tool) -> None:
    torch.manual_seed(1)
    plain = draw()
    torch.manual_seed(1)
    with tool():
        mine = draw()
    assert_same(mine, plain)


def test_calls_that_fail_on_the_cpu_are_not_counted_and_draw_once() -> None:
    x = torch.zeros(3, device="dipu")
    name = "tests.op_tools.tools.test_substitutes.draws_on_device_alone"
    torch.manual_seed(1)
    plain = [draws_on_device_alone(x), torch.rand(1, device="dipu")]
    torch.manual_seed(1)
    with apply_feature(name, "fallback") as applied:
        mine = [draws_on_device_alone(x), torch.rand(1, device="dipu")]
        tool = applied.tools[0]
        assert isinstance(tool, OpFallback) and not tool.hits
    torch.testing.assert_close(mine, plain, rtol=0, atol=0)


def draws_on_device_alone(x: Tensor) -> Tensor:
    found = torch.rand_like(x)
    if x.device.type == "cpu":
        raise RuntimeError("not on the CPU")
    return found


# Errors that the program has without the tool.


@pytest.mark.parametrize(
    "mix",
    [
        lambda: torch.add(device(3), torch.ones(3)),
        lambda: F.linear(device(2, 3), torch.ones(4, 3)),
        lambda: torch.cat([device(2), torch.ones(2)]),
        lambda: torch.randn(3, device="dipu", generator=torch.Generator()),
    ],
)
def test_a_mix_of_devices_raises_as_on_the_device(mix: Callable[[], Tensor]) -> None:
    with OpFallback() as tool, pytest.raises(RuntimeError, match=r"same device|for generator"):
        mix()
    assert not tool.hits and tool_errors.problems() == []


def test_a_mix_of_devices_that_the_device_takes_runs_on_the_cpu() -> None:
    x = device(3)
    with OpFallback() as tool:
        chosen = x[torch.tensor([2, 0])]
        assert (x + torch.tensor(1.0)).device == x.device
    assert chosen.tolist() == x.tolist()[::-2]
    assert tool.hits == {"torch.Tensor.__getitem__": 1, "torch.Tensor.add": 1}


def writes_a_result() -> None:
    y = device(3).requires_grad_().exp()
    y.add_(1)
    y.sum().backward()


def writes_an_argument() -> None:
    x, w = device(3).requires_grad_(), device(3).requires_grad_()
    y = x * w
    with torch.no_grad():
        w.add_(1)
    y.sum().backward()


@tools(BOTH)
@pytest.mark.parametrize("program", [writes_a_result, writes_an_argument])
def test_a_saved_tensor_that_was_written_is_an_error(
    program: Callable[[], None], tool: Tool
) -> None:
    with tool(), pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        program()


@tools(BOTH)
def test_a_tensor_that_was_not_saved_may_be_written(tool: Tool) -> None:
    x = device(3).requires_grad_()
    with tool():
        y = (x + 1).exp_()
        with torch.no_grad():
            x.add_(1)
        y.sum().backward()
    assert x.grad is not None
    assert_same(x.grad, x.detach().exp())


@pytest.mark.parametrize("program", [writes_a_result, writes_an_argument])
@pytest.mark.parametrize("cast_is_inside", [True, False])
def test_a_saved_tensor_of_a_call_of_two_tools_that_was_written_is_an_error(
    program: Callable[[], None], cast_is_inside: bool
) -> None:
    cast, fallback = WIDE["cast"](), OpFallback()
    one, two = (fallback, cast) if cast_is_inside else (cast, fallback)
    with one, two, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program()


@pytest.mark.parametrize("cast_is_inside", [True, False])
def test_a_tensor_that_was_not_saved_by_two_tools_may_be_written(cast_is_inside: bool) -> None:
    cast, fallback = WIDE["cast"](), OpFallback()
    x = device(3).requires_grad_()
    with fallback if cast_is_inside else cast, cast if cast_is_inside else fallback:
        y = (x + 1).exp_()
        with torch.no_grad():
            x.add_(1)
        y.sum().backward()
    assert x.grad is not None
    assert_same(x.grad, x.detach().exp())


# Arguments that overlap in memory.


@tools(BOTH)
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        lambda x: x.__setitem__(slice(1, None), x[:-1]),
        lambda x: x.view(2, 2).add_(x.view(2, 2).t()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_write_into_an_overlapping_argument_raises_as_on_the_device(
    write: Callable[[Tensor], Any], dtype: torch.dtype, tool: Tool
) -> None:
    x = torch.arange(4.0).to("dipu", dtype)
    with tool(), pytest.raises(RuntimeError, match="refer to a single memory location"):
        write(x)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0] and tool_errors.problems() == []


@tools(BOTH)
def test_a_write_is_seen_by_an_argument_that_is_a_view_of_it(tool: Tool) -> None:
    x, y = torch.zeros(4, device="dipu"), torch.ones(3, device="dipu")
    with tool():
        torch._foreach_add_([x, x.view(2, 2), y], 1.0)
    assert x.tolist() == [2.0] * 4 and y.tolist() == [2.0] * 3


@tools(BOTH)
def test_gradients_pass_through_a_write_from_a_view(tool: Tool) -> None:
    x = torch.ones(4, device="dipu", requires_grad=True)
    with tool():
        y = x * 1
        y.add_(y.view(4)).square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0] * 4


@tools(BOTH)
def test_a_saved_view_of_what_the_call_writes_is_an_error(tool: Tool) -> None:
    x = torch.ones(4, device="dipu", requires_grad=True)
    with tool(), pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y = x * 1
        y.mul_(y.view(4)).sum().backward()


# Composition.


@pytest.mark.parametrize("cast_is_inside", [True, False])
def test_cast_and_fallback_work_on_the_same_call(cast_is_inside: bool) -> None:
    x = device(8, 8, dtype=torch.float16)
    one, two = OpDtypeCast(ops="torch.mm"), OpFallback(ops="torch.mm")
    with one if cast_is_inside else two, two if cast_is_inside else one:
        mine = torch.mm(x, x)
    assert one.hits == two.hits == {"torch.mm": 1}
    assert torch.equal(mine.cpu(), (x.cpu().float() @ x.cpu().float()).half())
    assert mine.device == x.device and tool_errors.problems() == []


@pytest.mark.parametrize("first", ["cast_dtype", "fallback"])
@pytest.mark.parametrize("name", ["torch.mm", "tests.op_tools.tools.test_substitutes.product"])
def test_two_features_of_a_function_work_on_the_same_call(first: str, name: str) -> None:
    second = {"cast_dtype": "fallback", "fallback": "cast_dtype"}[first]
    x = device(8, 8, dtype=torch.float16)
    with apply_feature(name, first) as inside, apply_feature(name, second) as outside:
        mine = torch.mm(x, x) if name == "torch.mm" else product(x)
    for tool in (*inside.tools, *outside.tools):
        assert isinstance(tool, (OpFallback, OpDtypeCast)) and tool.hits == {name: 1}
    assert torch.equal(mine.cpu(), (x.cpu().float() @ x.cpu().float()).half())


def product(x: Tensor) -> Tensor:
    return x @ x


@tools({"fallback": OpFallback, "cast": OpDtypeCast})
@pytest.mark.parametrize("kind", ["OpAutoCompare", "OpCapture", "OpTimeMeasure", "OpOverflowCheck"])
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_tool_that_observes_works_inside_and_outside(
    kind: str, tool: Tool, is_inside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    x = device(8, 8, dtype=torch.float16)
    observer = getattr(op_tools, kind)(ops="torch.mm")
    with observer if is_inside else tool(), tool() if is_inside else observer:
        torch.mm(x, x)
        assert observer.started.applied == 1
    assert tool_errors.problems() == [] and "No call was made" not in capsys.readouterr().out


def test_kernels_are_seen_inside_of_a_cast_function() -> None:
    x = device(8, 8, dtype=torch.float16)
    with op_tools.OpTimeMeasure(ops="aten.mm", level="aten") as clock, OpDtypeCast(ops="torch.mm"):
        torch.mm(x, x)
    assert [(line.name, line.calls) for line in clock.summary()] == [("aten.mm.default", 1)]


@pytest.mark.parametrize("function", ["cumsum", "softmax", "log_softmax", "cumprod"])
def test_a_gradient_under_autocast_is_computed_in_the_type_of_the_argument(function: str) -> None:
    values = torch.randn(6, 8, dtype=torch.float16)

    def gradient() -> Tensor:
        x = values.to("dipu").requires_grad_()
        with torch.autocast("dipu", dtype=torch.float16):
            made = getattr(x, function)(0)
        made.backward(torch.linspace(-1, 1, 48).view(6, 8).to("dipu"))
        assert x.grad is not None
        return x.grad.cpu()

    wanted = gradient()
    with OpFallback() as tool:
        found = gradient()
    assert torch.equal(found, wanted)
    assert tool.hits[f"torch.Tensor.{function}"] == 1
