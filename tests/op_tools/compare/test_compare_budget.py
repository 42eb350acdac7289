"""The budget of OpAutoCompare: the share of a step's time that it may take."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deeplink import settings
from deeplink.errors import SettingError
from op_tools import OpAutoCompare
from op_tools.compare import budget as module
from op_tools.compare import options
from op_tools.compare.budget import Budget, Pace
from op_tools.compare.tool import BEYOND
from op_tools.core.call import Call
from op_tools.core.options import Options
from op_tools.core.worker import Background


class Clock:
    """Steps of 1 s with 200 calls, each of which takes `cost` seconds more to be judged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float, in_background: float) -> None:
        self.now, self.step, self.cost, self.in_background = 0.0, 0, cost, in_background
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(module, "step_counter", SimpleNamespace(current=lambda: self.step))

    def run(self, budget: Budget, steps: int) -> list[tuple[float, int]]:
        """The seconds and the judged calls of each step."""
        found = []
        for _ in range(steps):
            begun, judged = self.now, 0
            for _ in range(200):
                self.now += 1 / 200
                if budget.wants("exp"):
                    judged += 1
                    self.now += self.in_background
                    with budget.counted():
                        self.now += self.cost
            self.step += 1
            found.append((self.now - begun, judged))
        return found


@pytest.mark.parametrize(("cost", "in_background"), [(0.01, 0.0), (0.001, 0.009), (0.1, 0.0)])
def test_steps_take_the_share_that_they_may(
    cost: float, in_background: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, budget = Clock(monkeypatch, cost, in_background), Budget(0.25)
    found = clock.run(budget, 200)[40:]
    assert 1.1 < statistics.mean(seconds for seconds, _ in found) < 1.28
    assert sum(judged == 0 for _, judged in found) >= 2  # left alone, and measured


def test_cheap_calls_are_all_judged_and_by_larger_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, budget = Clock(monkeypatch, 0.0001, 0.0), Budget(0.25)
    found = clock.run(budget, 60)
    assert found[-1][1] == 200 and budget.scale == module.LARGEST


def test_a_program_without_steps_is_within_its_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, budget = Clock(monkeypatch, 0.1, 0.0), Budget(0.1)
    monkeypatch.setattr(module, "step_counter", SimpleNamespace(current=lambda: 0))
    found = clock.run(budget, 50)
    assert 1.02 < statistics.mean(seconds for seconds, _ in found[10:]) < 1.2


def test_what_is_beyond_the_budget_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare(budget="0.1%") as tool:
        for _ in range(50):
            torch.exp(x)
    assert tool.compared + tool.skipped[BEYOND, "torch.exp"] == 50 and tool.compared < 50
    printed = capsys.readouterr().out
    assert ": beyond the budget" in printed and "a budget of 0.1% of the step" in printed


def test_where_too_many_calls_are_pending_operators_are_judged_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Background, "pending", lambda own: module.WAITING - 1)
    pace = Pace(None)
    calls = {name: Call(1, name, lambda: None, (), {}) for name in ("often", "rare")}
    order = ["often"] * 9 + ["rare"]
    judged = Counter(name for name in order * 20 if pace.wants(calls[name]))
    pace.background.close()
    assert judged["rare"] == 20 and 20 <= judged["often"] <= 21


def test_a_program_that_waited_its_share_leaves_calls_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(Background, "pending", lambda own: module.WAITING)
    pace = Pace(None)
    call = Call(1, "exp", lambda: None, (), {})

    def offered(own: Background, work: object, seconds: float | None) -> bool:
        nonlocal now
        now += seconds or 0.0
        return False

    monkeypatch.setattr(Background, "offer", offered)
    now = 10.0
    assert pace.wants(call)
    assert not pace.offer("exp", lambda: None, waits=False)
    assert now == pytest.approx(11.0)  # 10 % of its own time
    assert not pace.wants(call)
    pace.background.close()


def test_rare_operators_are_judged_as_often_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    _, budget = Clock(monkeypatch, 0.0, 0.0), Budget(0.25)
    budget.rate = 0.02
    judged = Counter(name for name in (["often"] * 99 + ["rare"]) * 100 if budget.wants(name))
    assert 60 <= judged["rare"] <= 100 and 60 <= judged["often"] <= 140


def test_a_device_that_the_host_cannot_read_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_of().budget is None
    monkeypatch.setattr(options, "is_remote", lambda: True)
    assert how_of().budget == options.BUDGET
    assert how_of(budget="none").budget is None
    assert how_of(mode="signature").budget is None
    monkeypatch.setenv("OP_AUTOCOMPARE_BUDGET", "none")
    assert how_of().budget is None


def how_of(**more: Any) -> options.CompareOptions:
    return options.read_options(Options(ops=(".*",), more=more))


def test_an_expensive_operator_does_not_delay_the_others() -> None:
    pace, going_on = Pace(0.0, most=0.0), threading.Event()
    calls = {name: Call(1, name, lambda: None, (), {}) for name in ("slow", "quick")}
    assert pace.offer("slow", lambda: None, waits=False)
    pace.background._wait()
    assert pace.wants(calls["slow"])
    assert pace.offer("slow", going_on.wait, waits=False)
    assert not pace.wants(calls["slow"])
    assert pace.wants(calls["quick"])
    going_on.set()
    pace.background.close()
    assert pace.wants(calls["slow"])


@pytest.mark.parametrize("given", ["a lot", "-5%", 0, "nan"])
def test_a_budget_that_is_no_share_is_refused(given: str | float) -> None:
    with pytest.raises(SettingError, match=r"a share of the step, as 25% or 0\.25, or none"):
        OpAutoCompare(budget=given).start()


def test_the_setting_is_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_AUTOCOMPARE_BUDGET", "25%")
    assert settings.OP_AUTOCOMPARE_BUDGET.get() == 0.25
    with OpAutoCompare() as tool:
        assert tool.budget is not None and tool.budget.share == 0.25
