"""The pipeline end to end, on a toy backend."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from deeplink.errors import CompileError, MissingCompilerError, NoBackendError, SettingError
from dicp import Backend
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.compile_fx import compile_fx
from tests.dicp import blocks, toy


def run(backend: Backend, model: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with torch.no_grad():
        return torch.compile(model, backend=backend, options=options)(*args)


def ops_of(backend: Backend) -> list[str]:
    """The functions of the last blob that a toy backend was given."""
    return [line[1] for line in backend.programs[-1]["lines"]]  # type: ignore[attr-defined]


def test_a_model_runs_on_the_backend_and_gives_what_eager_gives() -> None:
    backend = toy.make()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(5, 4)
    result = run(backend, model, x)
    assert torch.equal(result, model(x))
    assert ops_of(backend) == ["linear", "linear"]


def test_a_llama_layer_becomes_fused_ops_in_one_partition() -> None:
    backend = toy.make()
    model, args = blocks.llama()
    result = run(backend, model, *args, verify=True)
    torch.testing.assert_close(result, model(*args))
    ops = ops_of(backend)
    assert report.RECORDS[-1].eager == []
    assert [ops.count(name) for name in ("rms_norm", "rope", "sdpa", "swiglu")] == [2, 2, 1, 1]
    assert ops.count("linear") == 4  # q/k/v are one, gate/up are one
    assert not {"mm", "silu", "cat"} & set(ops)


def test_torch_s_own_rms_norm_and_heads_that_are_shared_are_known() -> None:
    backend, norm = toy.make(), nn.RMSNorm(8)

    def model(q: Tensor, k: Tensor) -> Tensor:
        k = norm(k)
        return nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    args = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    torch.testing.assert_close(run(backend, model, *args, verify=True), model(*args))
    assert ops_of(backend)[-1] == "sdpa"
    assert "rms_norm" in [line[1] for p in backend.programs for line in p["lines"]]  # type: ignore[attr-defined]


def test_a_convolution_takes_its_norm_and_activation_in() -> None:
    backend = toy.make()
    model, args = blocks.convolutions()
    result = run(backend, model, *args, verify=True)
    torch.testing.assert_close(result, model(*args))
    assert ops_of(backend) == ["conv"]


def test_between_convolutions_in_another_layout_no_permute_is_left() -> None:
    first, args = blocks.convolutions()
    second = nn.Conv2d(8, 8, 3, padding=1)
    backend = toy.make(layout="NHWC")

    def model(x: Tensor) -> Tensor:
        y = first(x)
        return torch.relu(second(y) + y)

    result = run(backend, model, *args, verify=True)
    torch.testing.assert_close(result, model(*args))
    ops = ops_of(backend)
    assert ops == ["permute", "conv_nhwc", "conv_nhwc", "add", "relu", "permute"]


def test_what_is_not_converted_stays_eager_with_its_reason_and_line() -> None:
    backend = toy.make("add", "mul", supports=_not_big)

    def model(x: Tensor) -> Tensor:
        y = torch.sin(x + x)
        return y * y + torch.cat([y, y]).add(1)[:2]

    x = torch.randn(2, 3)
    torch.testing.assert_close(run(backend, model, x), model(x))
    record = report.RECORDS[-1]
    rows = {row["op"]: (row["reason"], row["line"]) for row in record.eager}
    assert rows["aten.sin.default"][0] == "no conversion"
    assert os.path.basename(__file__) in rows["aten.sin.default"][1]
    assert rows["aten.add.Tensor"][0] == "4 rows are too many"
    assert (record.parts, record.taken) == (2, 3)


def test_what_is_eager_and_needs_inputs_alone_splits_nothing() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return (x + x) * torch.sin(y)

    x = torch.randn(2, 3)
    torch.testing.assert_close(run(toy.make("add", "mul"), model, x, x), model(x, x))
    assert report.RECORDS[-1].parts == 1


def _not_big(node: torch.fx.Node) -> str | None:
    return "4 rows are too many" if node.meta["val"].shape[0] > 3 else None


def test_a_weight_that_is_written_or_replaced_is_taken_anew() -> None:
    model = nn.Linear(3, 3, bias=False)
    x = torch.eye(3)
    compiled = torch.compile(model, backend=toy.make())
    with torch.no_grad():
        assert torch.equal(compiled(x), model.weight.T)
        model.weight.mul_(2)
        assert torch.equal(compiled(x), model.weight.T)
        model.weight.data = torch.randn(3, 3)
        assert torch.equal(compiled(x), model.weight.T)
    assert report.RECORDS[-1].refreshed == 2


def test_a_buffer_that_the_model_writes_in_each_call_is_no_constant_for_long() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x * self.count

    compiled = torch.compile(Counter(), backend=toy.make())
    with torch.no_grad():
        for number in range(1, 7):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(number)))
    assert report.RECORDS[-1].refreshed == 3


@pytest.mark.parametrize("dynamic", ["native", "specialize"])
def test_one_compile_serves_all_sizes(dynamic: str) -> None:
    backend = toy.make(dynamic=dynamic)
    model, _ = blocks.llama()
    begun = len(report.RECORDS)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for length, batch in ((6, 2), (9, 3), (17, 5), (6, 2)):
            _, args = blocks.llama(length, batch)
            torch.testing.assert_close(compiled(*args), model(*args))
    assert len(report.RECORDS) == begun + 1
    assert len(backend.loads) == (1 if dynamic == "native" else 3)  # type: ignore[attr-defined]


def test_a_backend_is_queried_for_fixed_sizes_and_may_refuse_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def supports(node: fx.Node) -> str | None:
        rows = node.meta["val"].shape[0]
        if not isinstance(rows, int):
            return "a size that changes"
        return "five rows" if rows == 5 else None

    def model(x: Tensor) -> Tensor:
        return (x * 2 + 1) * x

    backend = toy.make("add", "mul", dynamic="specialize", supports=supports)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 5, 2):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert (report.RECORDS[-1].taken, report.RECORDS[-1].eager) == (3, [])
    assert len(backend.loads) == 2  # type: ignore[attr-defined]
    assert "runs eagerly at these sizes: aten.mul.Tensor(float32[5, 4], 2)" in caplog.text
    assert "five rows" in caplog.text


def test_results_have_the_strides_of_eager_and_are_no_inputs() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1).t(), x.clone()

    x = torch.randn(2, 3)
    turned, copied = run(toy.make(), model, x)
    assert turned.stride() == (1, 3)
    assert copied.data_ptr() != x.data_ptr()


def test_training_on_a_backend_for_it_gives_the_gradients_of_eager() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(5, 4)
    torch.compile(model, backend=toy.make(training=True))(x).sum().backward()
    mine = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    for got, parameter in zip(mine, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad)
    assert [r.kind for r in report.RECORDS[-2:]] == ["forward", "backward"]


def test_a_backend_for_inference_leaves_training_eager_and_says_so() -> None:
    model = nn.Linear(4, 2)
    torch.compile(model, backend=toy.make())(torch.randn(3, 4)).sum().backward()
    assert model.weight.grad is not None
    assert report.RECORDS[-1].decision == "eager: it compiles inference only"


def test_an_error_of_a_conversion_names_the_op_and_the_line() -> None:
    backend = toy.make()

    @backend.conversions.register_conversion([torch.ops.aten.add.Tensor])
    def add(emitter: Any, node: torch.fx.Node, *args: Any) -> Any:
        raise ValueError("no adder")

    with pytest.raises(Exception, match=r"cannot convert aten.add.Tensor") as caught:
        run(backend, lambda x: x + x, torch.ones(2))
    text = str(caught.value)
    assert "float32[2]" in text and "no adder" in text and os.path.basename(__file__) in text


def test_an_error_of_the_compiler_is_traced_to_the_op() -> None:
    def compile_blob(blob: bytes) -> bytes:
        if b'"mul"' in blob:
            raise RuntimeError("error 3")
        return blob

    backend = toy.make(compile=compile_blob)
    with pytest.raises(Exception, match=r"cannot compile aten.mul.Tensor.*error 3") as caught:
        run(backend, lambda x: (x + x) * x, torch.ones(2))
    assert os.path.basename(__file__) in str(caught.value)


def test_a_missing_compiler_is_reported_before_any_work() -> None:
    def version() -> str:
        raise MissingCompilerError("the ACME compiler is not installed", "pip install acme.")

    with pytest.raises(Exception, match="Hint: pip install acme"):
        run(toy.make(version=version), torch.sin, torch.ones(2))


def test_an_unknown_backend_or_option_is_reported_with_a_suggestion() -> None:
    gm = torch.fx.symbolic_trace(nn.Identity())
    with pytest.raises(NoBackendError, match="no backend 'nothinggraph'"):
        compile_fx(gm, [], "nothinggraph")
    with pytest.raises(SettingError, match="did you mean 'verify'"):
        compile_fx(gm, [], toy.make(), options={"verfy": True})
    assert issubclass(CompileError, RuntimeError)


@pytest.mark.parametrize("target", [torch.ops.aten.view, torch.ops.aten._unsafe_view])
def test_a_conversion_for_another_spelling_of_reshape_serves_it(target: Any) -> None:
    backend = toy.make("add")

    @backend.conversions.register_conversion([target.default, target])
    def view(emitter: Any, node: fx.Node, x: Any, size: Any) -> Any:
        return emitter.op("reshape", [x, size], {})

    x = torch.randn(2, 3)
    result = run(backend, lambda x: (x + x).view(3, 2) + 1, x)
    torch.testing.assert_close(result, (x + x).view(3, 2) + 1)
    assert ops_of(backend) == ["add", "reshape", "add"]
    assert report.RECORDS[-1].eager == []


def test_a_graph_of_which_nothing_is_compiled_is_reported_at_the_first_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = toy.make("mul", name="nosingraph")
    run(backend, torch.sin, torch.ones(2))
    assert (
        "nosingraph compiled 0 of 1 operators of a graph, which runs eagerly; "
        "aten.sin.default: no conversion. Hint: `deeplink compile-report`" in caplog.text
    )
