"""OpOverflowCheck: the first NaN or Inf by its maker, and none that was meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import op_tools
from op_tools.core import native_library, tool_errors
from op_tools.core.call import Level
from tests.op_tools import small


def test_the_maker_is_named_with_line_module_and_inputs() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x - 2)  # the faulty line

    model = nn.Sequential(nn.Identity(), Bad())
    with op_tools.OpOverflowCheck() as tool:
        (model(torch.tensor([1.0, 3.0], device="dipu")) + 1).sum()
    alarm = tool.first
    assert alarm is not None and len(tool.alarms) == 1 and tool.propagated == 2
    assert (alarm.op, alarm.kind, alarm.direction, alarm.module) == (
        "torch.log",
        "NaN",
        "forward",
        "1",
    )
    assert "the faulty line" in alarm.where
    assert (alarm.inputs[0].low, alarm.inputs[0].high, alarm.outputs[0].nans) == (-1.0, 1.0, 1)


def test_the_summary_tells_makers_from_calls_that_pass_it_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.tensor([-1.0, 3.0], device="dipu")
    with op_tools.OpOverflowCheck():
        (torch.log(x) + 1).exp()
    assert (
        "OpOverflowCheck: 3 calls checked, 1 made NaN or Inf of finite arguments, "
        "2 were given NaN or Inf and passed it on"
    ) in capsys.readouterr().out


def test_a_gradient_that_overflows_is_named_by_its_forward() -> None:
    x = torch.zeros(2, device="dipu", requires_grad=True)
    with op_tools.OpOverflowCheck() as tool:
        torch.sqrt(x).sum().backward()
    assert tool.first is not None
    assert (tool.first.op, tool.first.kind, tool.first.direction) == (
        "torch.sqrt",
        "Inf",
        "backward",
    )
    assert "torch.sqrt(x)" in tool.first.where


@pytest.mark.parametrize("level", ["api", "aten"])
def test_masks_are_not_reported(level: str) -> None:
    x = torch.randn(4, 4, device="dipu", requires_grad=True)
    mask = torch.ones(4, 4, device="dipu").triu(1)
    with op_tools.OpOverflowCheck(level=level) as tool:
        a = torch.softmax(x.masked_fill(mask.bool(), float("-inf")), -1)
        b = torch.softmax(x + torch.full((4, 4), float("-inf"), device="dipu").triu(1), -1)
        c = torch.softmax(torch.where(mask.bool(), float("-inf"), x), -1)
        (a + b + c).sum().backward()
    assert tool.alarms == []


def test_softmax_over_a_row_of_minus_inf_is_one() -> None:
    x = torch.full((2, 2), float("-inf"), device="dipu")
    with op_tools.OpOverflowCheck() as tool:
        torch.softmax(x, -1)
    assert tool.first is not None and (tool.first.op, tool.first.kind) == ("torch.softmax", "NaN")


def test_in_place_and_empty_and_half() -> None:
    with op_tools.OpOverflowCheck() as tool:
        torch.zeros(0, device="dipu") + 1
        x = torch.full((2,), 60000.0, device="dipu").half()
        x.mul_(2)
        x.mul_(2)
    assert [alarm.op for alarm in tool.alarms] == ["torch.Tensor.mul_"]
    assert tool.alarms[0].kind == "Inf"


def test_a_healthy_training_has_none() -> None:
    with op_tools.OpOverflowCheck() as tool:
        small.train(2)
    assert tool.alarms == [] and tool.count == 0


def test_a_grad_scaler_is_mentioned() -> None:
    scaler = torch.amp.GradScaler("dipu", init_scale=2.0**16)
    x = torch.full((2,), 100.0, device="dipu").half().requires_grad_()
    with op_tools.OpOverflowCheck() as tool:
        scaler.scale((x * x).sum().float()).backward()
    assert tool.first is not None and tool.first.direction == "backward"
    assert "GradScaler" in tool.first.note


# By the vendor's kernel, and without the native part.


@pytest.fixture(params=["host", "kernel", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What checks the values: the native part on the host, a kernel of the device, or Python."""
    if request.param == "kernel":
        request.getfixturevalue("starts")
    elif request.param == "python":
        monkeypatch.setattr(native_library, "helper", lambda: None)
    return str(request.param)


@pytest.mark.parametrize("level", ["api", "aten"])
def test_calls_are_judged_by_their_values_at_the_call(way: str, level: Level) -> None:
    x = torch.zeros(2, device="dipu", requires_grad=True)
    many = [torch.full((3,), 1e30, device="dipu") for _ in range(4)]
    with op_tools.OpOverflowCheck(level=level) as tool:
        y = x + 1
        torch.sqrt(x).sum().backward()
        torch._foreach_mul_(many, 1e30)
        y.detach().log_().sub_(1).div_(0)
        y.detach().fill_(1)
        torch.log(x - 1)
    found = [
        (alarm.op.split(".")[-1 if level == "api" else 1], alarm.kind) for alarm in tool.alarms
    ]
    gradient = "sqrt" if level == "api" else "div"  # the kernel of its backward pass
    assert found == [(gradient, "Inf"), ("_foreach_mul_", "Inf"), ("div_", "Inf"), ("log", "NaN")]
    assert [alarm.direction for alarm in tool.alarms] == ["backward", *["forward"] * 3]
    assert tool.alarms[-1].inputs[0].low == -1.0
    assert not tool_errors.problems()
