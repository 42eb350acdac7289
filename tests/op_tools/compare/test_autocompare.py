"""OpAutoCompare: what it compares, how it judges, what it writes, and what it leaves alone."""

from __future__ import annotations

import csv
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import op_tools
from deeplink.errors import SettingError
from op_tools import OpAutoCompare
from op_tools.compare import eligibility, inputs
from op_tools.core import graph_capture, native_library, tool_errors
from op_tools.core.call import Call

CSV = "op_tools_results/op_autocompare_result"


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).to("dipu")


def leaf(*shape: int) -> Tensor:
    return on_device(*shape).requires_grad_()


def healthy(tool: OpAutoCompare) -> None:
    assert tool.failures == []
    assert tool_errors.problems() == []


def rows() -> list[dict[str, str]]:
    (path,) = Path(CSV).glob("*.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


# Every kind of call, right on a healthy device; each returns what is then differentiated.


def _inplace() -> Tensor:
    x = leaf(4, 4) * 1
    x.mul_(2).add_(x, alpha=0.5)
    return x


def _inplace_that_begins_to_need_a_gradient() -> Tensor:
    x = on_device(3)
    x.mul_(leaf(3))
    return x


def _out() -> Tensor:
    out = torch.empty(4, device="dipu")
    torch.add(on_device(4), 1, out=out)
    torch.add(out, 1, out=out)
    return out


def _setitem() -> Tensor:
    x = leaf(4, 4) * 1
    x[0] = 7
    x[1:3, ::2] = on_device(2, 2)
    x[x > 1] = 0.5
    return x


def _views() -> Tensor:
    x = leaf(4, 6)
    first = x.as_strided((3,), (2,), 1) + x[0, ::2]
    return (
        first.sum() + x.t().reshape(-1).view(2, 12).expand(3, 2, 12).sum() + x.narrow(0, 1, 2).sum()
    )


def _cut_where_a_tensor_says() -> Tensor:
    x = leaf(4, 6)
    parts = x.tensor_split(torch.tensor([1, 3])) + x.tensor_split(torch.tensor(3))
    return torch.cat(parts) * x.narrow(1, torch.tensor(2), 1)[0]


def _several_results() -> Tensor:
    q, k, v = leaf(2, 6, 3).unbind(2)
    a, b = (q * k).chunk(2, dim=1)
    values, _ = torch.max(a + b, dim=1)
    sorted_ = torch.sort(v, dim=1, descending=True)
    return values.sum() + sorted_.values[:, 0].sum() + torch.topk(q, 2).values.sum()


def _only_keywords() -> Tensor:
    return functional.linear(input=leaf(2, 3), weight=leaf(4, 3), bias=leaf(4))


def _containers() -> Tensor:
    parts = [leaf(2, 3), leaf(1, 3)]
    torch._foreach_mul([p.detach() for p in parts], 2.0)
    return torch.cat(parts, dim=0) + torch.stack([leaf(3), leaf(3), leaf(3)])


def _nothing_in_it() -> Tensor:
    x = torch.empty(0, 4, device="dipu", requires_grad=True)
    return (x * 2).sum() + x.relu().sum(0).sum()


def _twice_the_same() -> Tensor:
    x = leaf(3, 3)
    return x * x + x @ x


def _other_types() -> Tensor:
    i = torch.arange(6, device="dipu")
    assert (i // 2 + i % 3).sum().item() == 12
    mask = (i > 2) & (i < 5)
    z = torch.randn(4, dtype=torch.complex64).to("dipu").requires_grad_()
    return (z * z.conj()).real.sum() + i[mask].sum()


def _returned_as_it_is() -> Tensor:
    x = leaf(3, 3) * 2
    return functional.dropout(x.contiguous().to("dipu").float(), 0.5, training=False)


def _no_dropout() -> Tensor:
    return functional.dropout(leaf(5), 0.0, training=True)


def _to_the_host() -> Tensor:
    return leaf(3).double().cpu() + on_device(3).to("cpu", torch.float64, non_blocking=True)


def _noncontiguous() -> Tensor:
    x = leaf(6, 4).t()[::2]
    return (x + 1).sum(dim=0) @ x.t().contiguous() + functional.softmax(x, 0).sum(0) @ x.t()


def _checkpointed() -> Tensor:
    x = leaf(3, 3)
    out = checkpoint(lambda y: (y @ y).tanh(), x, use_reentrant=False)
    assert isinstance(out, Tensor)
    return out


def _made_of_nothing() -> Tensor:
    made = torch.zeros(3, device="dipu") + torch.arange(3, device="dipu") + torch.ones(3).to("dipu")
    return made + torch.full((3,), 0.1, device="dipu") + torch.tensor([1.0, 2, 3], device="dipu")


def _attention() -> Tensor:
    q, k, v = (leaf(2, 2, 8, 4) for _ in range(3))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


CALLS: list[Callable[[], Tensor]] = [
    *(_inplace, _inplace_that_begins_to_need_a_gradient, _out, _setitem, _views, _several_results),
    *(_only_keywords, _containers, _nothing_in_it, _twice_the_same, _other_types),
    *(_returned_as_it_is, _no_dropout, _to_the_host, _noncontiguous, _checkpointed),
    *(_made_of_nothing, _attention, _cut_where_a_tensor_says),
]


@pytest.mark.parametrize("level", ("api", "aten"))
@pytest.mark.parametrize("made", CALLS, ids=lambda made: made.__name__.strip("_"))
def test_a_healthy_call_is_right(made: Callable[[], Tensor], level: str) -> None:
    with OpAutoCompare(level=level) as tool:  # type: ignore[arg-type]
        out = made()
        if out.requires_grad:
            out.sum().backward()
    assert tool.compared > 0
    healthy(tool)


@pytest.mark.parametrize("made", CALLS, ids=lambda made: made.__name__.strip("_"))
def test_nothing_of_the_program_is_changed(made: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    plain = made().detach().cpu()
    state = torch.get_rng_state(), torch.dipu.get_rng_state()
    torch.manual_seed(0)
    with OpAutoCompare():
        seen = made().detach().cpu()
    assert torch.equal(plain, seen)
    assert torch.equal(state[0], torch.get_rng_state())
    assert torch.equal(state[1], torch.dipu.get_rng_state())


def test_gradients_are_those_of_the_arguments() -> None:
    x, w, b = leaf(2, 3, 4), leaf(5, 4), leaf(5)
    with OpAutoCompare(ops="torch.nn.functional.linear") as tool:
        functional.linear(x, w, b).square().sum().backward()
    names = [row["name"] for row in rows()]
    assert [name for name in names if "grad" in name] == [
        f"torch.nn.functional.linear grad[{i}]" for i in range(3)
    ]
    healthy(tool)


def test_a_second_backward_and_a_double_backward_do_no_harm() -> None:
    x = leaf(4)
    with OpAutoCompare() as tool:
        y = (x**3).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        first.sum().backward()
        y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 6 * x.detach() + 3 * x.detach() ** 2)
    healthy(tool)


def test_the_graph_is_not_kept_alive() -> None:
    gc.collect()  # what earlier tests left
    with OpAutoCompare():
        x = leaf(1000)
        before = torch.dipu.memory_allocated()
        for _ in range(3):
            y = (x * 2).mul_(3).exp()
            del y
        gc.collect()
        assert torch.dipu.memory_allocated() == before


# Calls that cannot be compared are reported.


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: torch.rand(3, device="dipu") * 1, "random operators cannot be compared"),
        (lambda: functional.dropout(on_device(3), 0.5), "random operators cannot be compared"),
        (lambda: on_device(3).normal_(), "random operators cannot be compared"),
        (lambda: torch.empty(3, device="dipu"), "left as the memory was"),
        (lambda: on_device(3, 3).to_sparse().coalesce(), "layout sparse_coo"),
        (
            lambda: functional.scaled_dot_product_attention(
                *(on_device(1, 1, 4, 4) for _ in range(3)), dropout_p=0.5
            ),
            "random operators cannot be compared",
        ),
    ],
    ids=("rand", "dropout", "normal_", "empty", "sparse", "inside"),
)
def test_what_is_not_compared_has_a_reason(made: Callable[[], Tensor], reason: str) -> None:
    with OpAutoCompare(disable="") as tool:
        made()
    assert any(reason in why for why, _ in tool.skipped), tool.skipped
    healthy(tool)


def _multiplied_by_itself() -> None:
    x = on_device(16)
    x.mul_(x.detach())


def _part_added_to_itself() -> None:
    x = on_device(16)
    x.view(-1)[1:].add_(x.view(-1)[1:])


def _views_that_interleave() -> None:
    x = on_device(16)
    x[::2].add_(x[1::2])


def _leaf_and_its_values() -> None:
    x = leaf(16)
    with torch.no_grad():
        x.sub_(x.detach(), alpha=0.5)


def _views_in_the_graph() -> None:
    x = leaf(16) * 2
    x.add_(x.view(-1))
    x.sum().backward()


def _lists_of_the_same_values() -> None:
    x = on_device(16)
    torch._foreach_mul_([x], [x.detach()])


@pytest.mark.parametrize(
    "made",
    [
        *(_multiplied_by_itself, _part_added_to_itself, _views_that_interleave),
        *(_leaf_and_its_values, _views_in_the_graph, _lists_of_the_same_values),
    ],
)
def test_arguments_that_overlap_in_memory_are_not_reported(made: Callable[[], None]) -> None:
    with OpAutoCompare() as tool:
        made()
    healthy(tool)
    assert any("input[1]" in row["name"] for row in rows())


def test_a_wrong_in_place_result_is_reported_where_arguments_overlap() -> None:
    x = on_device(16)
    with torch.dipu.quirk("nan", "mul_"), OpAutoCompare() as tool:
        x.mul_(x.detach())
    assert ("torch.Tensor.mul_", "output") in {(f.name, f.item) for f in tool.failures}


def test_tangents_are_not_compared() -> None:
    with OpAutoCompare() as tool, forward_ad.dual_level():
        # forward_ad.make_dual() compiles decompositions first, which takes long
        dual = torch._make_dual(on_device(4), on_device(4), level=0)
        assert forward_ad.unpack_dual(dual * 2).tangent is not None
    healthy(tool)
    assert ("it reads a tangent of forward-mode differentiation", "torch._unpack_dual") in (
        tool.skipped
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_rms_norm_without_epsilon_takes_the_same_one_in_float64(dtype: torch.dtype) -> None:
    x = (on_device(8, 64).to(dtype) / 20).requires_grad_()
    norm = nn.RMSNorm(64).to("dipu", dtype)  # it gives its epsilon, None, by place
    with OpAutoCompare() as tool:
        norm(x).sum().backward()
    healthy(tool)


def test_a_linear_of_a_part_of_a_tensor_may_round_before_its_bias() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(64, 8).bfloat16(), torch.full((64,), -3.0).bfloat16()
    x = torch.rand(2, 16, 24).bfloat16()
    weight, bias, x = (value.to("dipu") for value in (weight, bias, x))
    with OpAutoCompare() as tool:
        functional.linear(x[..., :8], weight, bias)  # torch multiplies, then adds
    healthy(tool)


def test_sparse_gradients_are_compared() -> None:
    embedding = nn.Embedding(11, 8, sparse=True).to("dipu")
    words = on_device(1).new_tensor([1, 1, 2, 5], dtype=torch.int64)
    with OpAutoCompare() as tool:
        (embedding(words) * 3).sum().backward()
    healthy(tool)
    names = [row["name"] for row in rows()]
    assert any(name.startswith("torch.nn.functional.embedding grad") for name in names)


def test_calls_of_a_graph_that_is_being_captured_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = on_device(3)
    with OpAutoCompare() as tool:
        monkeypatch.setattr(graph_capture, "is_capturing", lambda: True)
        x + 1
        monkeypatch.undo()
    assert [why for why, _ in tool.skipped] == [
        "a graph is being captured, and no value is computed"
    ]
    assert tool.compared == 0


def test_what_the_cpu_cannot_do_is_said() -> None:
    class Particular(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.device.type == "dipu", "here only"
            return x + 1

    with OpAutoCompare(level="module") as tool:
        Particular()(on_device(2))
    assert [why for why, _ in tool.skipped] == ["the CPU cannot do it: here only"]
    healthy(tool)


def test_in_inference_mode() -> None:
    with OpAutoCompare() as tool, torch.inference_mode():
        x = on_device(4, 4)
        y = (x @ x).softmax(-1)
        y.mul_(2)
        torch.add(x, y, out=y)
    assert tool.compared >= 4
    healthy(tool)


def test_from_several_threads() -> None:
    with OpAutoCompare() as tool, ThreadPoolExecutor(3) as pool:
        work = [pool.submit(lambda: (leaf(8, 8) @ leaf(8, 8)).sum().backward()) for _ in range(6)]
        for done in work:
            done.result()
    assert tool.compared >= 12
    healthy(tool)


def test_under_a_default_device() -> None:
    torch.set_default_device("dipu")
    try:
        with OpAutoCompare() as tool:
            made = torch.ones(3) * 2 + torch.arange(3) + torch.linspace(0, 1, 3).exp()
    finally:
        torch.set_default_device(None)
    assert made.device.type == "dipu"
    assert tool.compared == 7
    healthy(tool)


# Verdicts.


def test_one_wrong_element_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    x = on_device(8, 8)
    with torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=2), OpAutoCompare() as tool:
        x * 3  # the faulty line
        x + 3
    (failure,) = tool.failures
    assert (failure.name, failure.item, failure.direction) == (
        "torch.Tensor.mul",
        "output",
        "forward",
    )
    assert "the faulty line" in failure.where
    assert failure.verdict.wrong == 1 and failure.verdict.ratio > 1
    shown = capsys.readouterr().out
    assert "torch.Tensor.mul" in shown and "test_autocompare.py:" in shown


def test_a_wrong_gradient_is_named_by_its_forward_call() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    with torch.dipu.quirk("bf16_accumulate", "mm"), OpAutoCompare(ops=".*linear") as tool:
        with torch.no_grad():
            bias = torch.zeros(64, device="dipu")
        functional.linear(x, w, bias).sum().backward()
    assert {f.name for f in tool.failures} == {"torch.nn.functional.linear"}
    assert {f.item for f in tool.failures} == {"grad[0]", "grad[1]"}
    assert {f.direction for f in tool.failures} == {"backward"}


def test_an_argument_that_is_changed_is_found() -> None:
    room = torch.zeros(256, device="dipu")
    ones = torch.ones(2, device="dipu")
    with torch.dipu.quirk("overrun", "add", nbytes=8), OpAutoCompare() as tool:
        torch.add(ones, ones, out=room[:2])
    (failure,) = tool.failures
    assert (failure.name, failure.item) == ("torch.add", "memory")
    assert failure.verdict.message == "8 bytes behind the result were written"


def test_neighbours_that_are_written_together_are_no_overrun() -> None:
    flat = torch.zeros(20, device="dipu")
    with OpAutoCompare() as tool:
        torch._foreach_add_([flat[:10], flat[10:]], 1.0)
        flat[:10].mul_(2)
    healthy(tool)


def test_among_ties_any_index_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, 5, device="dipu")
    with OpAutoCompare() as tool:
        torch.argmax(x, dim=1)
        x.sort(dim=1)
        torch.topk(x, 3)
    healthy(tool)


def test_the_tolerance_of_the_operator_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_device(8, 8)

    def failures(**variables: str) -> int:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with torch.dipu.quirk("nan", "add"), OpAutoCompare() as tool:
                functional.linear(x, x)
            assert tool.failures == []
            with torch.dipu.quirk("bf16_accumulate", "mm", chunk=2), OpAutoCompare() as tool:
                functional.linear(x, x)
            return len(tool.failures)

    assert failures() == 1
    assert failures(AUTOCOMPARE_ERROR_TOLERANCE="9,9") == 0
    assert failures(AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32="9,9") == 0
    assert failures(LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32="9,9") == 0
    assert failures(MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32="9,9") == 1
    assert failures(LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16="9,9") == 1
    assert (
        failures(
            AUTOCOMPARE_ERROR_TOLERANCE="9,9",
            LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32="1e-6,1e-6",
        )
        == 1
    )


def test_the_reference_has_the_type_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    monkeypatch.setenv("MUL_OP_DTYPE_CAST_DICT", "torch.float16->torch.float32")
    x = on_device(3, dtype=torch.float16)
    lines: list[str] = []
    monkeypatch.setattr("op_tools.core.terminal.write", lines.append)
    with OpAutoCompare():
        x * x
        x + x
    text = "\n".join(lines)
    assert "cpu_dtype_cast_info(from:to): {torch.float16: torch.float32}" in text
    assert "cpu_dtype_cast_info(from:to): {torch.float16: torch.float64}" in text


@pytest.mark.parametrize("standard", ("calibrated", "allclose", "torch", "ascend", "ulp"))
def test_a_standard_can_be_chosen(standard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_AUTOCOMPARE_STANDARD", standard)
    x = leaf(16, 16)
    with OpAutoCompare() as tool:
        functional.gelu(x @ x).sum().backward()
    healthy(tool)
    with torch.dipu.quirk("nan", "gelu"), OpAutoCompare() as tool:
        functional.gelu(x)
    assert [f.name for f in tool.failures] == ["torch.nn.functional.gelu"]


def _normed(x: Tensor) -> Tensor:
    weight, bias = (torch.full((8,), value, device="dipu") for value in (1.001, 0.0))
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def _scaled(x: Tensor) -> Tensor:
    return x * torch.tensor(1.003, device="dipu")


def _added_in_place(x: Tensor) -> Tensor:
    return x.clone().add_(torch.full((64, 8, 16), 1.003, device="dipu"))


@pytest.mark.parametrize("made", (_normed, _scaled, _added_in_place))
def test_what_autocast_leaves_alone_is_not_rounded(made: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x = on_device(64, 8, 16, dtype=torch.bfloat16)
    with OpAutoCompare(bitwise=False) as tool, torch.autocast("dipu", torch.bfloat16):
        assert made(x).dtype == torch.bfloat16
    healthy(tool)


def test_autocast_is_taken_into_account() -> None:
    x, w = leaf(16, 64), leaf(32, 64)
    with OpAutoCompare() as tool, torch.autocast("dipu", torch.bfloat16):
        y = functional.linear(x, w)
        assert y.dtype == torch.bfloat16
        functional.layer_norm(y, (32,)).sum().backward()
    healthy(tool)


def test_modules_are_compared_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8)).to("dipu")
    with OpAutoCompare(level="module") as tool:
        model(on_device(4, 8)).sum().backward()
    healthy(tool)
    with torch.dipu.quirk("nan", "relu|clamp_min"), OpAutoCompare(level="module") as tool:
        model(on_device(4, 8))
    assert "torch.nn.modules.activation.ReLU" in {f.name for f in tool.failures}
    assert next(f.module for f in tool.failures if f.name.endswith("ReLU")) == "1"


def test_what_a_module_writes_on_itself_is_its_first_run() -> None:
    class Remembers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = x * 2
            self.calls = getattr(self, "calls", 0) + 1
            return self.seen + 1

    model = Remembers()
    with OpAutoCompare(level="module") as tool:
        model(on_device(3))
    assert (model.seen.device.type, model.seen.dtype, model.calls) == ("dipu", torch.float32, 1)
    assert tool.compared == 1
    healthy(tool)


# Modes.


def test_one_call_of_each_signature() -> None:
    x = on_device(4, 4)
    with OpAutoCompare(mode="signature", ops="torch.Tensor.mul") as tool:
        for number in range(5):
            x * (number + 0.5)
        x[:2] * 2.0
    assert tool.compared == 2


def test_a_call_of_a_known_signature_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")
    x, looked = leaf(4, 4), []
    chosen = OpAutoCompare._chosen
    watched = lambda tool, call: looked.append(call.name) or chosen(tool, call)  # noqa: E731
    monkeypatch.setattr(OpAutoCompare, "_chosen", watched)
    with OpAutoCompare(mode="signature") as tool:
        for _ in range(4):
            (x * 2.5).sin().sum().backward()
        x.t() * 2.5  # other strides
        with torch.no_grad():
            x * 2.5
    assert looked.count("torch.Tensor.sin") == 1 and looked.count("torch.Tensor.mul") == 3
    assert tool.compared == len([name for name in looked if "backward" not in name])


def test_a_sample() -> None:
    x = on_device(4)
    with OpAutoCompare(mode="sample", sample=4) as tool:
        for _ in range(9):
            x * 2
    assert tool.compared == 3


def test_in_the_background_the_same_is_found() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    found = []
    for background in (False, True):
        with (
            torch.dipu.quirk("bf16_accumulate", "mm"),
            OpAutoCompare(background=background) as tool,
        ):
            functional.linear(x, w).relu().sum().backward()
        found.append([(f.name, f.item, f.verdict.ratio) for f in tool.failures])
    assert found[0] == found[1] != []
    assert tool_errors.problems() == []


@pytest.mark.parametrize("background", (False, True))
def test_a_backward_after_the_end_is_still_compared(background: bool) -> None:
    x = leaf(3)
    with OpAutoCompare(background=background) as tool:
        y = (x * 2).sum()
    y.backward()
    assert [row["name"] for row in rows()][-1] == "torch.Tensor.mul grad[0]"
    healthy(tool)


def test_a_part_of_a_backward_is_not_compared() -> None:
    x = leaf(3, 3)
    with OpAutoCompare(ops=".*bilinear") as tool:
        y = functional.bilinear(x, x, leaf(2, 3, 3), leaf(2))
        torch.autograd.grad(y.sum(), x)
    healthy(tool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "often"}, "'often' is not allowed"),
        ({"standard": "mine"}, "'mine' is not allowed"),
        ({"speed": 3}, "takes no speed"),
        ({"sample": 0}, "sample 0"),
    ],
)
def test_a_bad_option_is_reported_at_the_start(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        OpAutoCompare(**options).start()  # type: ignore[arg-type]


def test_a_bad_tolerance_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "1e-3")
    with pytest.raises(SettingError, match="two numbers"):
        OpAutoCompare().start()


# What is written.


def test_the_csv_has_one_header_and_a_row_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "2")
    x = leaf(3)
    with OpAutoCompare():
        (x * 2).sum().backward()
    found = rows()
    assert [row["name"] for row in found] == [
        "torch.Tensor.mul input[0]",
        "torch.Tensor.mul output",
        "torch.Tensor.sum input",
        "torch.Tensor.sum output",
        "torch.Tensor.sum grad",
        "torch.Tensor.mul grad[0]",
    ]
    assert list(found[0]) == [
        *("forward_id", "name", "allclose", "cosine_similarity", "max_abs_diff"),
        *("max_relative_diff", "atol", "rtol", "error_info"),
    ]
    assert {row["allclose"] for row in found} == {"True"}
    assert len({row["forward_id"] for row in found}) == 2


def test_a_failed_call_is_saved_on_both_sides() -> None:
    x = leaf(4, 4)
    with torch.dipu.quirk("nan", "exp"), OpAutoCompare() as tool:
        x.exp().sum().backward()
    folder = Path(tool.failures[0].saved)
    kinds = ("input", "output")
    assert folder.parts[:3] == ("op_tools_results", "op_capture_results", "torch.Tensor.exp")
    assert folder.parts[4:6] == ("autocompare", str(tool.failures[0].id))
    for side in ("device", "cpu"):
        for kind in kinds:
            assert (folder / side / f"{kind}.pth.json").exists()
            held = torch.load(folder / side / f"{kind}.pth", weights_only=True)
            assert held["name"] == "torch.Tensor.exp"
    given = torch.load(folder / "device" / "input.pth", weights_only=True)
    assert torch.equal(given["args"][0], x.detach().cpu())
    made = torch.load(folder / "device" / "output.pth", weights_only=True)["args"][0]
    right = torch.load(folder / "cpu" / "output.pth", weights_only=True)["args"][0]
    assert made.isnan().sum() == 1 and right.dtype == torch.float64 and not right.isnan().any()


def test_a_wrong_gradient_saves_the_gradients_too() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    with torch.dipu.quirk("bf16_accumulate", "mm"), OpAutoCompare(ops=".*linear") as tool:
        functional.linear(x, w, torch.zeros(64, device="dipu")).sum().backward()
    folder = Path(tool.failures[0].saved)
    for side in ("device", "cpu"):
        for kind in ("input", "output", "grad_inputs", "grad_outputs"):
            assert (folder / side / f"{kind}.pth").exists()


def test_the_tables_of_the_classic_tools(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    x = leaf(2, 3)
    with OpAutoCompare(ops="torch.Tensor.mul"):
        (x * x).sum().backward()
    shown = capsys.readouterr().out
    assert "apply OpAutoCompareHook on torch.Tensor.mul" in shown
    assert (
        "forward_id: " in shown
        and "cpu_dtype_cast_info(from:to): {torch.float32: torch.float64}" in shown
    )
    for text in (
        *("torch.Tensor.mul inputs[0]", "torch.Tensor.mul inputs(cpu)[1]"),
        *("torch.Tensor.mul outputs(cpu)", "torch.Tensor.mul input[1]", "torch.Tensor.mul output"),
        *("torch.Tensor.mul grad[0]", "max_relative_diff", "error_info", "float64"),
    ):
        assert text in shown, text


def test_an_error_inside_the_tool_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("op_tools.compare.host_verdicts.bit_for_bit", broken)
    with OpAutoCompare() as tool:
        assert (torch.ones(2, device="dipu") * 2).tolist() == [2.0, 2.0]
    assert tool.failures == []
    assert {(problem.tool, problem.message) for problem in tool_errors.problems()} == {
        ("OpAutoCompare", "ZeroDivisionError: inside")
    }


def test_a_disk_that_fills_up_costs_the_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    x = on_device(3)
    with torch.dipu.quirk("nan", "mul"), OpAutoCompare() as tool:
        monkeypatch.setattr("op_tools.capture.folder_store.write", full)
        monkeypatch.setattr(Path, "open", full)
        x * 2
    assert [failure.name for failure in tool.failures] == ["torch.Tensor.mul"]
    assert tool.failures[0].saved == ""
    assert all("No space left on device" in p.message for p in tool_errors.problems())


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "file"))
    with pytest.raises(SettingError, match="cannot be written"):
        OpAutoCompare().start()


def test_it_is_exported() -> None:
    assert op_tools.OpAutoCompare is OpAutoCompare


def test_a_cut_is_a_view_of_which_no_value_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    real = inputs.copied

    def heard(call: Call, copy: Any) -> tuple[Call, frozenset[int]]:
        if copy is not eligibility.outline:  # shapes alone
            copied.append(call.name)
        return real(call, copy)

    monkeypatch.setattr(inputs, "copied", heard)
    words, x = torch.arange(12, device="dipu").view(3, 4), leaf(3, 4)
    places = torch.tensor([2, 0], device="dipu")
    with OpAutoCompare(ops="torch.Tensor.__getitem__") as tool:
        words[:, :-1], words[None, 0, ...], x[1:].sum().backward()
        assert tool.compared == 3 and not copied
        x[places]  # not a view
        assert copied == ["torch.Tensor.__getitem__"]
    assert tool.compared == 4
    healthy(tool)


def test_a_row_has_the_error_against_float64_and_what_was_allowed() -> None:
    x, y = torch.randn(32, 256).to("dipu"), torch.randn(256, 32).to("dipu")
    with OpAutoCompare(bitwise=False, ops="torch.matmul"):
        made = torch.matmul(x, y).cpu()
    output = rows()[-1]
    error = (made - (x.cpu().double() @ y.cpu().double()).float()).abs().max()
    assert float(output["max_abs_diff"]) == pytest.approx(float(error)) != 0.0
    assert float(output["atol"]) >= float(output["max_abs_diff"])
    assert output["error_info"] == "Inconsistent dtypes: torch.float32 torch.float64"


def test_a_row_says_where_no_float64_was_computed() -> None:
    with OpAutoCompare(ops="torch.matmul"):
        torch.matmul(on_device(8, 8), on_device(8, 8))
    output = rows()[-1]
    assert output["max_abs_diff"] == "0.000000000"
    assert output["error_info"] == "equal to the CPU's float32 result"


@pytest.mark.parametrize("standard", ["ascend", "ulp"])
def test_a_row_has_no_tolerance_where_the_standard_has_none(standard: str) -> None:
    with OpAutoCompare(ops="torch.matmul", standard=standard):
        torch.matmul(on_device(32, 256), on_device(256, 32))
    output = rows()[-1]
    assert (output["allclose"], output["atol"], output["rtol"]) == ("True", "", "")


class _OffByATenth(TorchDispatchMode):
    """A mode of the program under which one operator is wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrong = wrong

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.wrong and func.__name__.startswith(self.wrong):
            args[0][0].add_(0.1)
        return result


def _fused(weights: list[nn.Parameter]) -> None:
    torch.optim.AdamW(weights, lr=0.1, fused=True).step()


def _in_lists(weights: list[nn.Parameter]) -> None:
    torch.optim.SGD(weights, lr=0.1, foreach=True).step()


@pytest.mark.parametrize(
    ("step", "operator"), [(_fused, "_fused_adamw_"), (_in_lists, "_foreach_add_")]
)
@pytest.mark.parametrize("wrong", [False, True])
def test_optimizers_are_compared_under_a_dispatch_mode_of_the_program(
    step: Callable[[list[nn.Parameter]], None], operator: str, wrong: bool
) -> None:
    weights = [nn.Parameter(on_device(3)) for _ in range(2)]
    for weight in weights:
        weight.grad = on_device(3)
    with OpAutoCompare() as tool, _OffByATenth(operator if wrong else ""):
        step(weights)
    assert f"torch.{operator} input[0]" in {row["name"] for row in rows()}
    assert {failure.name for failure in tool.failures} == (
        {f"torch.{operator}"} if wrong else set()
    )


def test_a_flop_counter_of_the_program_does_not_count_the_references() -> None:
    x = on_device(8, 8)
    with OpAutoCompare() as tool, FlopCounterMode(display=False) as counter:
        x @ x
    healthy(tool)
    assert counter.get_total_flops() == 2 * 8**3
