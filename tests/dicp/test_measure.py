"""A graph that loses by being compiled stays eager, as its first calls show."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dicp.dynamo_bridge import measure, report
from tests.dicp import toy

FIRST = measure.BLOCK * (measure.ROUNDS + 1)  # calls of each


class Clock:
    """Time goes on by what is run, not by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def runs(self, name: str, *seconds: float) -> Any:
        """Takes as long as the numbers say, over and over."""
        calls = 0

        def run(*args: Any) -> str:
            nonlocal calls
            self.now += seconds[calls % len(seconds)]
            calls += 1
            return name

        return run


def decision(
    monkeypatch: pytest.MonkeyPatch, eager: tuple[float, ...], **seconds: tuple[float, ...]
) -> tuple[list[str], list[str]]:
    """Who ran in each of the first calls and the one after; what was told."""
    clock, told = Clock(), list[str]()
    monkeypatch.setattr(measure, "_now", lambda args: clock.now)
    runs = {name: clock.runs(name, *takes) for name, takes in seconds.items()}
    choice = measure.Choice(runs, clock.runs("eager", *eager), lambda made: told.append(str(made)))
    names = []
    while not told:
        names.append(choice(torch.ones(2)))
    return [*names, choice(torch.ones(2))], told


def test_the_fastest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    names, told = decision(monkeypatch, (3.0,), slow=(2.0,), fast=(1.0,))
    assert names[:-1] == (["slow"] * 3 + ["fast"] * 3 + ["eager"] * 3) * (FIRST // 3)
    assert names[-1] == "fast"
    assert told == ["fast; us a call: slow 2000000, fast 1000000, eager 3000000"]


def test_who_loses_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decision(monkeypatch, (1.0,), compiled=(2.0,))[0][-1] == "eager"


def test_who_is_near_is_measured_longer_and_has_to_win(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _ = decision(monkeypatch, (1.0,), compiled=(1.0,))
    assert len(names) - 1 == 2 * measure.BLOCK * (measure.MOST + 1)
    assert names[-1] == "eager"


def test_what_others_take_of_the_machine_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = (1.0, 1.0, 9.0, 1.0, 9.0, 1.0, 1.0, 9.0)
    assert decision(monkeypatch, (1.5,), compiled=disturbed)[0][-1] == "compiled"


class Small(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.inner, self.breaks = nn.Linear(2, 2), breaks

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return x + x


def called(monkeypatch: pytest.MonkeyPatch, module: nn.Module, times: int) -> Any:
    """A compiled module after some calls, none of them faster than another."""
    monkeypatch.setenv("DICP_MEASURE", "1")
    monkeypatch.setattr(measure, "_now", lambda args: 0.0)
    with torch.no_grad():
        compiled = torch.compile(module, backend=toy.make(), dynamic=False)
        for _ in range(times):
            torch.testing.assert_close(compiled(torch.ones(1, 2)), module(torch.ones(1, 2)))
    return compiled


def test_a_small_module_that_stays_eager_goes_past_torch_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = called(monkeypatch, Small(), 4 * FIRST)
    assert report.RECORDS[-1].decision == (
        "eager; us a call: compiled 0, eager 0, with torch.compile's own part; "
        "the graph alone: eager; us a call: compiled 0, eager 0"
    )
    torch.compiler.reset()
    around = torch.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(around(torch.ones(1, 2)), compiled(torch.ones(1, 2)) + 1)
    torch.compiler.reset()
    with torch.compiler.set_stance("fail_on_recompile"):
        with torch.no_grad():
            compiled(torch.ones(1, 2))
            with pytest.raises(RuntimeError, match="recompile"):  # other sizes are to be compiled
                compiled(torch.ones(2, 2))
        with pytest.raises(RuntimeError, match="recompile"):
            compiled(torch.ones(1, 2))  # and so is what has gradients


def test_a_module_compiled_in_place_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_MEASURE", "1")
    monkeypatch.setattr(measure, "_now", lambda args: 0.0)
    module = Small()
    module.compile(backend=toy.make(), dynamic=False)
    with torch.no_grad():
        for _ in range(4 * FIRST):
            module(torch.ones(1, 2))
        torch.compiler.reset()
        with torch.compiler.set_stance("fail_on_recompile"):
            module(torch.ones(1, 2))


def test_a_module_in_several_graphs_stays_with_torch_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = called(monkeypatch, Small(breaks=True), 3 * FIRST)
    decisions = [record.decision for record in report.RECORDS[-2:]]
    assert decisions == ["eager; us a call: compiled 0, eager 0"] * 2
    torch.compiler.reset()
    refused = pytest.raises(RuntimeError, match="recompile")
    with torch.compiler.set_stance("fail_on_recompile"), torch.no_grad(), refused:
        compiled(torch.ones(1, 2))
