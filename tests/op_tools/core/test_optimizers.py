"""Of an optimizer a tool sees the operators, and no query of an attribute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from op_tools.timing.tool import OpTimeMeasure
from tests.op_tools.core.test_engine import Watcher


def optimizer() -> torch.optim.Optimizer:
    torch.manual_seed(0)
    made = torch.optim.AdamW(nn.Linear(3, 2).to("dipu").parameters(), foreach=True)
    for parameter in made.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    return made


def test_operators_are_seen_and_queries_are_not() -> None:
    made = optimizer()
    with Watcher() as seen:
        made.step()
        first, seen.calls = seen.names, []
        made.step()
        made.zero_grad()
    assert "torch.zeros_like" in first  # the state, which the first step makes
    assert "torch._foreach_lerp_" in seen.names and "torch._foreach_addcdiv_" in seen.names
    assert not any("__" in name or name.endswith("item") for name in seen.names)


def test_gradients_that_are_set_to_zero_are_seen() -> None:
    with Watcher() as seen:
        optimizer().zero_grad(set_to_none=False)
    assert "torch._foreach_zero_" in seen.names


def test_a_tool_that_watches_the_cpu_sees_its_count_of_steps() -> None:
    with Watcher(devices=["cpu", "dipu"]) as seen:
        optimizer().step()
    assert "torch.Tensor.item" in seen.names


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_step_is_timed_as_the_one_before(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_NATIVE", native)
    made = optimizer()
    with OpTimeMeasure() as tool:
        for _ in range(2):
            made.step()
        kinds = len(tool.summary("shape"))
        for _ in range(3):
            made.step()
        assert len(tool.summary("shape")) == kinds  # the bias correction is another number
