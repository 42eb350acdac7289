"""Verdicts of a device on results that are right, and the lines that are written about them."""

from __future__ import annotations

import math

import pytest
import torch

from op_tools.accepted import Accepted
from op_tools.call import Call, Site
from op_tools.comparison import Item
from op_tools.comparison_report import Rows, detail, row
from op_tools.device_pairs import Figures, Measured
from op_tools.device_verdicts import Result, Right, worst_of

SITE = Site("train.py", 3, "step")
FOUND = {
    "equal": Figures(size=4.0, mine=4.0),
    "near": Figures(0.4, 1e-9, 1.5e-8, 2.5e-7, -1.0, 0.1, 1e-18, 4.0, 4.0, 0.0),
    "infinite": Figures(gap=math.inf, relative=math.nan, size=math.inf, mine=math.inf),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", FOUND)
def test_the_lines_on_what_is_right_are_those_of_any_other_verdict(
    name: str, direction: str
) -> None:
    call = Call(7, "torch.nn.functional.gelu", torch.nn.functional.gelu, (), {}, step=2, site=SITE)
    right = Right("grad[1]", torch.Size([3, 4]), torch.float32, "spacing", FOUND[name])
    rows = Rows()
    rows.add(call, direction, [right, Item(right.label, right.verdict)])
    assert rows._waiting[0] == rows._waiting[1] == (7, *row(call, right))
    assert rows._details[0] == rows._details[1] == detail(call, direction, right)


def test_the_worst_of_many_is_told_and_one_beyond_a_step_has_to_be_looked_at() -> None:
    numbers = [(0.4, 1e-9, 1e-8, r, b, 0.1, 1e-18, 4.0, 4.0, 0.0) for r, b in ((1, -1), (3, -2))]
    measured = Measured(torch.tensor(numbers, dtype=torch.float64).numpy())
    assert measured.worst_within() == 1 and measured.of(1).relative == 3
    result = Result(torch.Size([2]), torch.float32, torch.float32, "a kind")
    worst = worst_of("input[0] to input[1]", ((result, f) for f in measured), Accepted())
    assert worst is not None and worst.found.relative == 3 and worst.rule == "spacing"
    beyond = torch.tensor([(9.0, 1.0, 1.0, 1.0, 0.5, 9.0, 1.0, 4.0, 4.0, 0.0)], dtype=torch.float64)
    assert Measured(beyond.numpy()).worst_within() is None
    nan = torch.full((1, 10), math.nan, dtype=torch.float64)
    assert Measured(nan.numpy()).worst_within() is None
    assert Measured(torch.empty(0, 10, dtype=torch.float64).numpy()).worst_within() is None
