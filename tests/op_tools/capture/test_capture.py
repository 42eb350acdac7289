"""OpCapture: what it takes of a call, what it shows, and that it changes nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import op_tools
from deeplink.errors import SettingError
from op_tools import OpCapture
from op_tools.capture.encoding import Drawing, Opaque, Recorded
from op_tools.core import output_paths, tool_errors
from op_tools.core.call import Call
from op_tools.core.filters import Selection
from op_tools.replay import differences, load_cases, replay
from op_tools.tensors.mutation import marks, written
from tests import warm

FORMATS = ("folders", "packed")


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def captured(name: str = "") -> list[Recorded]:
    """The captured calls, in order; of one operator by its last word."""
    found = [case.load() for case in load_cases("op_tools_results")]
    assert tool_errors.problems() == []
    chosen = [call for call in found if not name or call.name.rpartition(".")[2] == name]
    return sorted(chosen, key=lambda call: int(call.header["id"]))


def test_inputs_are_taken_before_the_call_and_outputs_after(form: str) -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(format=form):
        x.mul_(5)
    (call,) = captured("mul_")
    assert call.args[0].tolist() == [1.0] * 3 and call.args[1] == 5
    assert call.output.tolist() == [5.0] * 3


def test_an_out_argument(form: str) -> None:
    x, out = torch.ones(2, device="dipu"), torch.zeros(2, device="dipu")
    with OpCapture(format=form):
        torch.add(x, 1, out=out)
    (call,) = captured("add")
    assert call.kwargs["out"].tolist() == [0.0, 0.0] and call.output.tolist() == [2.0, 2.0]


def test_an_argument_that_is_written_and_not_returned(form: str) -> None:
    x = torch.zeros(2, 2, device="dipu")
    with OpCapture(format=form):
        x[0, 1:] = 7
    (call,) = captured("__setitem__")
    assert call.args[1] == (0, slice(1, None)) and call.output is None
    assert call.mutated[0].tolist() == [[0.0, 7.0], [0.0, 0.0]]


def test_a_list_is_written_whether_or_not_that_is_counted() -> None:
    lists = [torch.zeros(2)], [torch.ones(2)]  # on some devices nothing counts the write
    for name, places in (("torch._foreach_lerp_", [0]), ("torch._foreach_lerp", [])):
        call = Call(1, name, torch._foreach_lerp_, (*lists, 0.5), {})
        assert list(written(call, call.inputs, marks(call, call.inputs))) == places


def test_running_statistics_of_batch_norm(form: str) -> None:
    norm = nn.BatchNorm1d(2).to("dipu")
    with OpCapture(format=form):
        norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]], device="dipu"))
    (call,) = captured("batch_norm")
    assert call.args[1].tolist() == [0.0, 0.0]
    assert call.mutated[1].tolist() == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("form", ["folders", "packed", "statistics"])
def test_copies_to_the_device_are_captured_and_calls_on_the_host_are_not(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x, device = torch.ones(3), torch.device("dipu")
    chosen: dict[str, Any] = {"mode": form} if form == "statistics" else {"format": form}
    with OpCapture(**chosen):
        x.to("dipu"), x.to(device), x.to(0), x.to(device="dipu", dtype=torch.float64)
        nn.Linear(2, 2, bias=False).to(device)
        torch.zeros_like(x, device=device)
        x.add(1), x.to(torch.float64), x.to("cpu")
    assert "OpCapture: 6 calls of 2 operators" in capsys.readouterr().out


CUDA_CODE = """
import torch, ditorch
from op_tools import OpCapture
with OpCapture():
    torch.ones(3).cuda(), torch.ones(3).to("cuda"), torch.nn.Linear(2, 2, bias=False).cuda()
"""


def test_copies_by_cuda_code_are_captured() -> None:
    done = warm.run(["-c", CUDA_CODE], os.environ, warn="ignore")
    assert "OpCapture: 3 calls of 1 operator" in done.stdout, done.stdout + done.stderr


def test_a_copy_to_the_device_says_where_its_tensor_was(form: str) -> None:
    with OpCapture(format=form):
        torch.ones(3).to("dipu:1")
    (call,) = (case.load() for case in load_cases("op_tools_results"))
    assert (call.header["device"], call.devices) == ("dipu:1", ["cpu"])
    again = replay(call)
    assert again.result.device == torch.device("dipu:1")
    assert [row.max_abs for row in differences(call, again)] == [0.0]


def test_what_a_fused_optimizer_writes_is_captured(form: str) -> None:
    parameter = nn.Parameter(torch.ones(3, device="dipu"))
    parameter.grad = torch.ones(3, device="dipu")
    optimizer = torch.optim.AdamW([parameter], lr=0.5, fused=True)
    with OpCapture(format=form, ops="torch._fused_adamw_"):
        optimizer.step()
    (call,) = captured()
    assert torch.equal(call.mutated[0], parameter.detach().cpu())
    rows = differences(call, replay(call))
    assert len(rows) > 4 and all(row.close for row in rows)


def test_what_unscaling_writes_is_captured(form: str) -> None:
    gradient, found = torch.full((2,), 8.0, device="dipu"), torch.zeros(1, device="dipu")
    with OpCapture(format=form):
        torch._amp_foreach_non_finite_check_and_unscale_(
            [gradient], found, torch.full((1,), 0.25, device="dipu")
        )
    (call,) = captured("_amp_foreach_non_finite_check_and_unscale_")
    assert call.mutated[0].tolist() == [2.0, 2.0]
    assert call.mutated[1].tolist() == [0.0]


def test_tensors_in_keywords_and_containers(form: str) -> None:
    x = torch.ones(2, 3, device="dipu")
    with OpCapture(format=form):
        torch.nn.functional.linear(input=x, weight=x)
        torch.stack([x, x + 1], dim=1)
    assert captured("linear")[0].kwargs["weight"].shape == (2, 3)
    (call,) = captured("stack")
    assert [t[0, 0].item() for t in call.args[0]] == [1.0, 2.0] and call.kwargs == {"dim": 1}


def test_many_outputs_and_named_ones(form: str) -> None:
    x = torch.arange(6.0, device="dipu").view(2, 3)
    with OpCapture(format=form):
        x.unbind(1)
        x.max(dim=1)
    (unbind,), (most,) = captured("unbind"), captured("max")
    assert isinstance(unbind.output, tuple)
    assert [t.tolist() for t in unbind.output] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert type(most.output) is torch.return_types.max and most.output.indices.tolist() == [2, 2]


def test_the_gradients_are_of_the_arguments(form: str) -> None:
    x = torch.randn(2, 3, 4, device="dipu", requires_grad=True)
    weight = torch.randn(5, 4, device="dipu", requires_grad=True)
    with OpCapture(format=form, ops="torch.nn.functional.linear"):
        torch.nn.functional.linear(x, weight).sum().backward()
    (call,) = captured()
    assert call.complete and x.grad is not None and weight.grad is not None
    assert torch.equal(call.grad_inputs[0], x.grad.cpu())  # type: ignore[index, arg-type]
    assert torch.equal(call.grad_inputs[1], weight.grad.cpu())  # type: ignore[index, arg-type]
    assert torch.equal(call.grad_outputs[0], torch.ones(2, 3, 5))  # type: ignore[index, arg-type]


def test_an_operator_that_returns_its_argument_has_no_gradients_of_its_own(form: str) -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    with OpCapture(format=form):
        (x * 3).contiguous().sum().backward()
    (call,) = captured("contiguous")
    assert call.grad_inputs is None and captured("mul")[0].grad_inputs[0].tolist() == [3.0, 3.0]  # type: ignore[index, union-attr]


def test_in_place_gradients_are_of_what_was_before(form: str) -> None:
    x = torch.tensor([2.0], device="dipu", requires_grad=True)
    with OpCapture(format=form):
        y = x * 1
        y.mul_(4).sum().backward()
    (call,) = captured("mul_")
    assert call.args[0].tolist() == [2.0] and call.grad_inputs[0].tolist() == [4.0]  # type: ignore[index, union-attr]


def test_whole_numbers_complex_and_empty_ones(form: str) -> None:
    with OpCapture(format=form):
        torch.tensor([1, 2], device="dipu") << 1
        torch.tensor([1 + 2j], device="dipu") * 2j
        torch.zeros(0, 4, device="dipu").sum()
        torch.tensor([True], device="dipu").logical_not()
    assert captured("__lshift__")[0].output.tolist() == [2, 4]
    assert captured("mul")[0].output.tolist() == [-4 + 2j] and captured("mul")[0].args[1] == 2j
    assert captured("sum")[0].args[0].shape == (0, 4)
    assert captured("logical_not")[0].output.tolist() == [False]


def test_types_devices_and_generators(form: str) -> None:
    generator = torch.Generator("dipu").manual_seed(3)
    state = generator.get_state()
    with OpCapture(format=form):
        x = torch.zeros(2, dtype=torch.bfloat16, device=torch.device("dipu", 0))
        x.to(torch.float32, memory_format=torch.preserve_format)
        torch.rand(2, generator=generator, device="dipu")
    assert captured("zeros")[0].kwargs["dtype"] is torch.bfloat16
    assert captured("zeros")[0].kwargs["device"] == torch.device("dipu", 0)
    assert captured("to")[0].kwargs["memory_format"] is torch.preserve_format
    drawing = captured("rand")[0].kwargs["generator"]
    assert isinstance(drawing, Drawing) and torch.equal(drawing.state, state)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_sparse_and_nested_tensors_are_kept(form: str) -> None:
    sparse = torch.tensor([[0.0, 3.0]]).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    with OpCapture(format=form, devices=["cpu"]):
        sparse * 2
        nested * 2
    first, second = captured("mul")
    assert first.output.to_dense().tolist() == [[0.0, 6.0]]
    assert [part.tolist() for part in second.output.unbind()] == [[2.0, 2.0], [0.0, 0.0, 0.0]]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_a_quantized_tensor_is_left_out_with_a_reason(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with OpCapture(format=form, devices=["cpu"]):
        x.dequantize()
        torch.ones(1) + 1
    assert "1 call not captured: a quantized tensor" in capsys.readouterr().out
    assert captured("add")[0].output.tolist() == [2.0]


def test_what_cannot_be_written_is_written_as_text() -> None:
    from op_tools.capture.encoding import decode, encode

    assert decode(encode(object, lambda tensor: tensor)) == Opaque("<class 'object'>")


def test_autocast_is_noted(form: str) -> None:
    x = torch.randn(4, 4, device="dipu")
    with OpCapture(format=form), torch.autocast("dipu", torch.bfloat16):
        torch.nn.functional.linear(x, x)
    (call,) = captured("linear")
    assert call.header["autocast"] == ["dipu", "bfloat16"]
    assert call.args[0].dtype == torch.float32 and call.output.dtype == torch.bfloat16


def test_the_kernel_level(form: str) -> None:
    x = torch.ones(2, 2, device="dipu", requires_grad=True)
    with OpCapture(format=form, level="aten"):
        (x @ x).sum().backward()
    found = captured()
    names = [call.name for call in found]
    assert names.count("aten.mm.default") == 3
    assert {call.header["direction"] for call in found} == {"forward", "backward"}


class Small(nn.Module):
    """Convolution, normalisation, dropout, an addition in place, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu(self.norm(self.conv(x)), inplace=True).transpose(1, 2)
        y = y + self.dropout(self.attention(y, y, y)[0])
        y += 1
        logits: torch.Tensor = self.head(y.mean(dim=1))
        return logits


def train(autocast: bool) -> list[Any]:
    """Three steps: losses, weights, gradients and the state of the random numbers."""
    torch.manual_seed(5)
    model = Small().to("dipu")
    data, labels = torch.randn(3, 6, 4, 10).to("dipu"), torch.randint(0, 3, (3, 6)).to("dipu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen: list[Any] = []
    for x, y in zip(data, labels, strict=True):
        with torch.autocast("dipu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().cpu())
    seen += [value.cpu() for value in model.state_dict().values()]
    seen += [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    return [*seen, torch.get_rng_state(), torch.dipu.get_rng_state()]


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("mode", ["tensors", "statistics", "hash"])
def test_training_is_the_same_bit_by_bit(mode: str, level: Any) -> None:
    plain = train(autocast=level == "api")
    with OpCapture(format="packed", mode=mode, level=level) as tool:
        seen = train(autocast=level == "api")
    assert tool._run.calls > 100
    assert all(map(torch.equal, seen, plain)) and len(seen) == len(plain)
    assert tool_errors.problems() == []


# Safe to use.


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "file" / "inside"))
    tool = OpCapture(format=form)
    with pytest.raises(SettingError, match="set OP_TOOLS_RESULTS to a folder"):
        tool.start()
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "good"))
    with tool:  # it can be started once it is fixed
        torch.ones(1, device="dipu") + 1
    assert len(load_cases(tmp_path / "good")) == 2


def test_a_wrong_option_is_reported_at_the_start() -> None:
    with pytest.raises(SettingError, match="did you mean 'format'"):
        OpCapture(fromat="packed").start()
    with pytest.raises(SettingError, match="folders"):
        OpCapture(format="zip").start()


def test_the_budget_leads_from_tensors_to_statistics_to_nothing(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_paths, "budget", output_paths.Budget())
    monkeypatch.setenv("OP_TOOLS_DISK_BUDGET", "300kB")
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "1")
    x = torch.zeros(5000, device="dipu")
    with OpCapture(format=form):
        for i in range(900):
            x = x + i
    assert x[0].item() == sum(range(900))
    said = capsys.readouterr().out
    assert re.search(
        r"OP_TOOLS_DISK_BUDGET of 300.0 kB: after \d+ calls only statistics were written, "
        r"after \d+ calls nothing was written",
        said,
    )
    size = sum(path.stat().st_size for path in Path("op_tools_results").rglob("*.*"))
    assert 200_000 < size < 330_000


def test_tensors_take_a_share_of_the_free_space_at_most(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_paths, "budget", output_paths.Budget())
    monkeypatch.setattr(output_paths, "free_space", lambda: 20 * 300_000)
    x = torch.zeros(5000, device="dipu")
    with OpCapture(format=form):
        for i in range(100):
            x = x + i
    said = capsys.readouterr().out
    assert "reach the limit of 293.0 kB. Hint: OP_TOOLS_DISK_BUDGET sets another one.\n" in said
    assert re.search(r"limit of 293.0 kB \(5% of the free space\): after \d+ calls only sta", said)
    size = sum(path.stat().st_size for path in Path("op_tools_results").rglob("*.*"))
    assert 200_000 < size < 330_000


def test_no_limit_is_one_that_was_requested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_paths, "free_space", lambda: 0)
    monkeypatch.setenv("OP_TOOLS_DISK_BUDGET", "0")
    with OpCapture(format="packed"):
        torch.ones(5000, device="dipu") + 1
    assert len(captured()) == 2 and "limit" not in capsys.readouterr().out


def test_after_the_first_step_it_is_forecast_how_much_will_be_written(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_paths, "budget", output_paths.Budget())
    monkeypatch.setattr(output_paths, "free_space", lambda: 20 * (10 << 20))
    x = torch.randn(1 << 16, device="dipu")
    with OpCapture(format=form):
        for _ in range(3):
            x = x.exp()
            op_tools.step()
    assert re.search(
        r"OpCapture: 5\d\d.\d kB in the first step, to op_tools_results/\S+; 200.0 MB are free "
        r"there, of which tensors may take 9.0 MB \(OP_TOOLS_DISK_BUDGET\): about 1[67] steps",
        capsys.readouterr().out,
    )


def test_a_call_is_of_one_signature_whatever_its_scalars() -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(ops="torch.Tensor.mul", select=Selection(first=1)):
        for i in range(4):
            x.mul(0.5 + i)
    assert len(captured()) == 1


def test_a_signature_counts_anew_in_the_backward_pass() -> None:
    x, y = torch.ones(3, device="dipu", requires_grad=True), torch.ones(3, device="dipu")
    with OpCapture(level="aten", ops="aten.mul.Tensor", select=Selection(first=1)):
        for _ in range(3):
            y * y
            (x * y).sum().backward()
    plain = [call.header["direction"] for call in captured() if not call.args[0].requires_grad]
    assert plain == ["forward", "backward"]


def test_the_summary_says_how_much_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    with OpCapture():
        torch.ones(2, device="dipu") + 1
    said = capsys.readouterr().out
    assert re.search(r"OpCapture: 2 calls of 2 operators, \S+ kB in op_tools_results/op_capt", said)


def test_the_verbose_output_is_the_classic_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    x = torch.randn(2, 3, device="dipu", requires_grad=True)
    with op_tools.OpCapture(ops="torch.Tensor.sort"):
        made, _ = x.sort()
        made.sum().backward()
    said = capsys.readouterr().out
    assert "apply OpCaptureHook on torch.Tensor.sort\n" in said
    assert "skip OpCaptureHook on torch.Tensor.sum\n" in said
    stem = r"op_tools_results/op_capture_results/torch.Tensor.sort/\d+/(\d+)/([\d-]{19})"
    found = re.search(rf"{stem}/input.pth saved\n{stem}/output.pth saved\n", said)
    assert found is not None
    header = rf"torch.Tensor.sort    forward_id:{found[1]}/{found[2]}    \S+test_capture.py:\d+ "
    line = r"test_the_verbose_output_is_the_classic_one: made, _ = x.sort\(\)\n\+-"
    assert re.search(header + line, said)
    for label in ("inputs", "outputs [0][0]", "outputs [0][1]", "grad_output", "grad_inputs"):
        assert f" torch.Tensor.sort {label} " in said
    assert re.search(rf"{stem}/grad_inputs.pth saved\n{stem}/grad_outputs.pth saved\n", said)


def test_a_model_saved_and_restarted_keeps_counting(form: str) -> None:
    tool = OpCapture(format=form, ops="torch.Tensor.add")
    x = torch.ones(1, device="dipu")
    for _ in range(2):
        with tool:
            x + 1
    assert len(captured("add")) == 2


def _module(x: Any) -> Any:
    return nn.Linear(2, 2).to("dipu")(x)


def test_the_module_level_captures_a_module(form: str) -> None:
    with OpCapture(format=form, level="module"):
        _module(torch.ones(1, 2, device="dipu"))
    (call,) = captured()
    assert call.name == "torch.nn.modules.linear.Linear" and set(call.args[0]) == {"weight", "bias"}


def test_a_parameter_can_be_made_while_kernels_are_watched() -> None:
    """A parameter's memory becomes that of a subclass, which a tensor seen by Python cannot."""
    with op_tools.OpCapture(level="aten", format="packed"):
        made = torch.nn.Parameter(torch.ones(2, device="dipu"))
        other = torch.ones(2, device="dipu").as_subclass(torch.nn.Buffer)
    assert isinstance(made, torch.nn.Parameter)
    assert isinstance(other, torch.nn.Buffer)


def test_what_is_only_traced_is_not_captured() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with op_tools.OpCapture(level="aten", format="packed", devices=("cpu",)) as tool:
        with FakeTensorMode():
            torch.ones(4) + 1
        torch.ones(4).neg()
    assert tool._run.operators == {"aten.ones.default", "aten.neg.default"}
