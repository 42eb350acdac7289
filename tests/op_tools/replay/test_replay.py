"""Captured calls made again: values, gradients, devices, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from op_tools import OpAutoCompare, OpCapture
from op_tools.capture.encoding import Recorded
from op_tools.replay import Case, ReplayError, differences, load_cases, replay
from tests import warm

HEADER = {"id": 1, "name": "", "time": "", "level": "api", "device": "dipu:0"}


@pytest.fixture(params=["folders", "packed"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cases(name: str = "") -> list[Case]:
    found = load_cases("op_tools_results")
    return [case for case in found if not name or case.load().name.rpartition(".")[2] == name]


def wrong(case: Case, device: str | None = None) -> list[str]:
    recorded = case.load()
    rows = differences(recorded, replay(recorded, device))
    assert rows
    return [f"{row.path}: {row.message}" for row in rows if not row.close or row.max_abs > 0]


def model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 5), nn.GELU()),
    )


def test_every_call_of_a_training_step_comes_back_bit_by_bit(form: str) -> None:
    torch.manual_seed(0)
    net = model().to("dipu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, labels = torch.randn(2, 1, 8, 8, device="dipu"), torch.tensor([1, 2], device="dipu")
    with OpCapture(format=form):
        loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
    found = cases()
    assert len(found) > 10
    assert [text for case in found for text in wrong(case)] == []
    with_gradients = [case for case in found if replay(case).gradients]
    assert len(with_gradients) >= 9


def test_gradients_through_a_write_in_place(form: str) -> None:
    x = torch.randn(5, device="dipu", requires_grad=True)
    with OpCapture(format=form):
        y = x * 2
        y.mul_(y.detach() + 1).sum().backward()
    (case,) = cases("mul_")
    assert wrong(case) == []
    again = replay(case)
    assert again.gradients is not None and again.gradients[0] is not None
    assert torch.equal(again.gradients[0].cpu(), (x * 2 + 1).detach().cpu())


def test_a_tensor_that_is_given_twice(form: str) -> None:
    x = torch.tensor([3.0], device="dipu", requires_grad=True)
    with OpCapture(format=form):
        torch.mul(x, x).backward()
    again = replay(cases("mul")[0])
    assert again.gradients is not None
    assert [g if g is None else g.tolist() for g in again.gradients] == [[6.0], None]


def test_writes_are_compared_too(form: str) -> None:
    x = torch.zeros(3, device="dipu")
    with OpCapture(format=form):
        x[1] = 4
    (case,) = cases("__setitem__")
    recorded = case.load()
    again = replay(recorded)
    assert again.mutated[0].tolist() == [0.0, 4.0, 0.0]
    again.mutated[0][2] = 9
    assert [row.path for row in differences(recorded, again) if not row.close] == ["argument[0]"]


def test_on_another_device(form: str) -> None:
    x = torch.randn(4, 4, device="dipu")
    with OpCapture(format=form):
        torch.zeros(2, device="dipu")
        x @ x
    (zeros,), (product,) = cases("zeros"), cases("matmul")
    assert replay(zeros, "cpu").result.device.type == "cpu"
    assert replay(zeros).result.device.type == "dipu"
    recorded = product.load()
    rows = differences(recorded, replay(recorded), replay(recorded, "cpu"))
    assert [row.close for row in rows] == [True]


def test_a_tensor_that_lay_on_the_host_stays_there(form: str) -> None:
    x, index = torch.arange(4.0, device="dipu"), torch.tensor([2, 0])
    with OpCapture(format=form):
        x[index]
    again = replay(cases("__getitem__")[0])
    assert again.result.tolist() == [2.0, 0.0] and again.result.device.type == "dipu"


def test_autocast_is_as_it_was(form: str) -> None:
    x = torch.randn(4, 4, device="dipu")
    with OpCapture(format=form), torch.autocast("dipu", torch.bfloat16):
        torch.nn.functional.linear(x, x)
    assert replay(cases("linear")[0]).result.dtype == torch.bfloat16


def test_random_numbers_are_noticed_where_they_are_generated(form: str) -> None:
    x = torch.ones(64, device="dipu")
    with OpCapture(format=form):
        nn.functional.dropout(x, 0.5)
        nn.functional.dropout(x, 0.5, training=False)
    assert [replay(case).random for case in cases("dropout")] == [True, False]


def test_a_generator_starts_as_it_did(form: str) -> None:
    generator = torch.Generator("dipu").manual_seed(3)
    torch.rand(5, generator=generator, device="dipu")
    with OpCapture(format=form):
        made = torch.rand(3, generator=generator, device="dipu")
    again = replay(cases("rand")[0])
    assert torch.equal(again.result, made)


def test_the_kernel_level(form: str) -> None:
    x = torch.randn(3, 3, device="dipu", requires_grad=True)
    with OpCapture(format=form, level="aten"):
        (x @ x).relu().sum().backward()
    assert len(cases()) >= 6
    assert [text for case in cases() for text in wrong(case)] == []


def recorded(name: str, *args: Any, **header: Any) -> Recorded:
    return Recorded({**HEADER, "name": name, **header}, args, {}, [])


@pytest.mark.parametrize(
    "name",
    """
    os.system torch.os.system torch.load torch.hub.load torch.nn.functional.warnings.warn
    torch.utils.data.DataLoader torch.ops.load_library torch.from_file subprocess.run
    """.split(),
)
def test_only_operators_are_called(name: str, tmp_path: Path) -> None:
    with pytest.raises(ReplayError):
        replay(recorded(name, f"touch {tmp_path}/ran"), "cpu")
    assert list(tmp_path.glob("ran")) == []


def test_a_package_may_be_trusted() -> None:
    call = recorded("math.sqrt", 9.0)
    with pytest.raises(ReplayError, match="--trust math"):
        replay(call, "cpu")
    assert replay(call, "cpu", trust=["math"]).result == 3.0


def test_a_module_is_not_made_again() -> None:
    with pytest.raises(ReplayError, match="its code is not in the capture"):
        replay(recorded("torch.nn.modules.linear.Linear", level="module"), "cpu")


def test_an_unknown_operator_has_a_suggestion() -> None:
    with pytest.raises(ReplayError, match=r"did you mean 'torch\.nn\.functional\.linear'"):
        replay(recorded("torch.nn.functional.linera"), "cpu")


def test_a_device_argument_is_mapped_on_a_machine_without_that_device(form: str) -> None:
    device = torch.device("dipu:1")
    with OpCapture(format=form):
        torch.zeros(2, device=device)
        torch.ones(2, device="dipu").to(device, torch.float64)
        torch.ones(2, device="dipu").to("dipu:1")
        torch.ones(2, device="dipu").to(device="cpu")
    without = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "DEEPLINK_VENDOR": "cpu"}
    words = ["-m", "op_tools.run_op_from_data", "op_tools_results", "--run_times", "1"]
    done = warm.run(words, without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 cases: 7 ok; 7 bit by bit" in done.stdout


def test_only_the_host_stays_the_host_in_a_device_argument(form: str) -> None:
    with OpCapture(format=form, ops="torch.Tensor.to"):
        torch.ones(2, device="dipu").to("dipu:0", torch.float64)
        torch.ones(2, device="dipu").to(device="cpu")
    there, back = sorted(cases(), key=lambda case: case.load().header["id"])
    assert replay(there, "dipu:1").result.device == torch.device("dipu:1")
    assert replay(back, "dipu:1").result.device == torch.device("cpu")


def test_nothing_to_replay_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="no captured call at"):
        load_cases(tmp_path)
    with pytest.raises(ReplayError, match="there is nothing at"):
        load_cases(tmp_path / "none")


class Pickled:
    """Pickled as a torch.device of another machine is."""

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.device, ("npu", 0)


def test_a_device_that_the_published_tool_pickled_is_mapped(tmp_path: Path) -> None:
    held = {"name": "torch.Tensor.to", "args": (torch.ones(2), Pickled()), "kwargs": {}}
    torch.save({**held, "identifier": "7"}, tmp_path / "input.pth")
    (case,) = load_cases(tmp_path)
    assert case.load().args[1] == "npu:0"
    assert replay(case, "dipu").result.device.type == "dipu"


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("nope", "torch has no device of this name"),
        ("dipu:99", "invalid device ordinal 99"),
        ("meta", "tensors of 'meta' have no values"),
    ],
)
def test_a_device_that_is_not_here_is_refused(device: str, why: str) -> None:
    with pytest.raises(ReplayError, match=f"device '{device}' cannot be used: .*{why}"):
        replay(recorded("torch.neg", torch.ones(2)), device)


def test_captures_of_the_published_tool_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "torch.Tensor.div/123/autocompare/7/2024-10-09-11-42-15/device"
    folder.mkdir(parents=True)
    x = torch.tensor([4.0], requires_grad=True)
    for kind, args in {
        "input": (x, 2), "output": (x.detach() / 2,), "grad_outputs": ((torch.ones(1),),),
        "grad_inputs": ((torch.full((1,), 0.5), None),),
    }.items():  # fmt: skip
        held = {"name": "torch.Tensor.div", "args": args, "kwargs": {}, "identifier": "7"}
        torch.save(held, folder / f"{kind}.pth")
    (case,) = load_cases(tmp_path)
    assert wrong(case, "cpu") == []
    again = replay(case, "dipu")
    assert again.result.device.type == "dipu" and again.gradients is not None
    assert again.gradients[0].tolist() == [0.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_failed_call_in_place_is_saved_as_it_was_before_the_write(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.tensor([1, 2, 3], dtype=dtype, device="dipu")
    with OpAutoCompare() as tool, torch.dipu.quirk("nan", "mul_"):  # type: ignore[attr-defined]
        x.mul_(2)
    assert len(tool.failures) == 1
    cpu, device = sorted(load_cases(tmp_path), key=lambda case: case.where)
    assert wrong(cpu, "cpu") == []
    assert any("nan" in line for line in wrong(device, "cpu"))
    with torch.dipu.quirk("nan", "mul_"):  # type: ignore[attr-defined]
        assert any("nan" in line for line in wrong(cpu, "dipu"))
