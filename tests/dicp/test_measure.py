"""A graph that loses by being compiled stays eager, as its first calls show."""

from typing import Any

import pytest
import torch
from torch import nn

from dicp.dynamo_bridge import measure, report
from tests.dicp import toy


class Clock:
    """Time goes on by what is run, not by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def runs(self, name: str, seconds: float) -> Any:
        def run(*args: Any) -> str:
            self.now += seconds
            return name

        return run


@pytest.mark.parametrize(("seconds", "winner"), [(2.0, "eager"), (1.0, "compiled")])
def test_the_first_calls_decide(
    monkeypatch: pytest.MonkeyPatch, seconds: float, winner: str
) -> None:
    clock, told = Clock(), list[str]()
    monkeypatch.setattr(measure, "_now", lambda args: clock.now)
    choice = measure.Choice(clock.runs("compiled", seconds), clock.runs("eager", 1.0), told.append)
    names = [choice(torch.ones(2)) for _ in range(14)]
    assert set(names) == {"compiled", "eager"}
    assert {choice(torch.ones(2)) for _ in range(4)} == {winner}
    assert told == (["eager: 1000000 us a call, compiled 2000000"] if winner == "eager" else [])


def test_the_decision_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_MEASURE", "1")
    ticks = iter(range(1000))
    monkeypatch.setattr(measure, "_now", lambda args: next(ticks) % 4 * 0.001)  # 1 or, odd, 1
    model = nn.Linear(2, 2)
    with torch.no_grad():
        compiled = torch.compile(model, backend=toy.make())
        for _ in range(20):
            torch.testing.assert_close(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert report.RECORDS[-1].decision == ""
