"""A training under each tool that observes: the same bits in every loss, gradient and weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import op_tools
from op_tools.core import tool_errors
from tests.op_tools import small
from tests.op_tools.core.test_engine import Watcher

OBSERVERS = {
    "interception": lambda: Watcher(),
    "aten": lambda: Watcher(level="aten"),
    "module": lambda: Watcher(level="module"),
    **{
        name: getattr(op_tools, name, None)
        for name in ("OpCapture", "OpAutoCompare", "OpTimeMeasure", "OpObserve", "OpOverflowCheck")
    },
}


@pytest.fixture(scope="module")
def plain() -> dict[tuple[int, bool], dict[str, object]]:
    return {}


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "amp"])
@pytest.mark.parametrize("name", OBSERVERS)
@pytest.mark.parametrize("steps", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_the_same_bits(
    name: str, amp: bool, steps: int, plain: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make = OBSERVERS[name]
    assert make is not None
    if (steps, amp) not in plain:
        plain[steps, amp] = small.train(steps, small.CARD, amp)
    with make():
        mine = small.train(steps, small.CARD, amp)
    wanted = plain[steps, amp]
    assert mine["losses"] == wanted["losses"]
    for part in ("gradients", "weights", "random"):
        for a, b in zip(mine[part], wanted[part], strict=True):  # type: ignore[call-overload]
            assert torch.equal(a, b), part
    assert tool_errors.problems() == []
