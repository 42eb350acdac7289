"""A graph that loses by being compiled stays eager, as its first calls show."""

import contextlib
import copy
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.tuning import autotune, bypass
from tests.dicp import toy

FIRST = autotune.BLOCK * (autotune.ROUNDS + 1)  # calls of each


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
    """Return what ran in each of the first calls and the next one, and the reported decisions."""
    clock, told = Clock(), list[str]()
    monkeypatch.setattr(autotune, "_now", lambda args: clock.now)
    runs = {name: clock.runs(name, *takes) for name, takes in seconds.items()}
    choice = autotune.Choice(runs, clock.runs("eager", *eager), lambda made: told.append(str(made)))
    names = []
    while not told:
        names.append(choice(torch.ones(2)))
    return [*names, choice(torch.ones(2))], told


def test_the_fastest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    names, told = decision(monkeypatch, (3.0,), slow=(2.0,), fast=(1.0,))
    assert names[:-1] == (["slow"] * 3 + ["fast"] * 3 + ["eager"] * 3) * (FIRST // 3)
    assert names[-1] == "fast"
    assert told == ["kept fast: slow 2 s/call, fast 1 s/call, eager 3 s/call"]


BLOCK = autotune.LONG_BLOCK


def test_what_is_brief_has_to_be_the_fastest_once_its_data_lie_in_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = (1e-3,) * autotune.BLOCK  # of the round that warms up
    rounds = ((5e-4,) * (BLOCK // 2) + (2e-4,) * (BLOCK // 2)) * autotune.ROUNDS
    names, told = decision(
        monkeypatch, first + rounds, compiled=first + (3e-4,) * BLOCK * autotune.ROUNDS
    )
    assert told == ["kept eager: compiled 300 us/call, eager 200 us/call"]
    turns = (["compiled"] * BLOCK + ["eager"] * BLOCK) * autotune.ROUNDS
    assert names[2 * autotune.BLOCK : -1] == turns


@pytest.mark.parametrize(
    ("first", "later", "winners"),
    [
        (0.4, 0.4, ["compiled", "compiled"]),
        (0.4, 1.1, ["compiled", "eager"]),  # while others filled the caches, eager was slow
        (1.1, 0.4, ["eager", "eager"]),
        (1.5, 0.4, ["eager"]),
    ],
)
def test_what_is_brief_has_to_win_in_two_looks(
    monkeypatch: pytest.MonkeyPatch, first: float, later: float, winners: list[str]
) -> None:
    names, told = looks(monkeypatch, first * 1e-3, later * 1e-3, 1e-3)
    assert [made.winner for made in told] == winners
    assert names[-1] == winners[-1]
    assert len(names) > autotune.LATER_BRIEF * (len(winners) - 1)


def test_calls_are_distinguished_by_sizes_and_numbers_in_whatever_containers_they_are() -> None:
    choice = autotune.Choice({"one": lambda *_, **__: 0}, lambda *_, **__: 0, lambda made: None)
    for cached in (3, 3, 4):
        for _ in range(4 * autotune.LONG_BLOCK):
            choice([{"past": torch.ones(cached)}], object(), 7, none=None)
    assert len(choice._times["eager"]) == 2


def test_who_loses_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decision(monkeypatch, (1.0,), compiled=(2.0,))[0][-1] == "eager"


def looks(
    monkeypatch: pytest.MonkeyPatch, first: float, later: float, plain: float = 1.0
) -> tuple[list[str], list[autotune.Decision]]:
    """Return what ran each call until the decision, for compiled calls of a given duration."""
    now, told, names = [0.0], list[autotune.Decision](), list[str]()
    monkeypatch.setattr(autotune, "_now", lambda args: now[0])

    def compiled() -> str:
        now[0] += later if told else first
        return "compiled"

    def eager() -> str:
        now[0] += plain
        return "eager"

    choice = autotune.Choice({"compiled": compiled}, eager, told.append)  # type: ignore[arg-type]
    while not (told and told[-1].final):
        names.append(choice())
    return [*names, choice()], told


def test_who_is_near_is_measured_longer_and_has_to_win(monkeypatch: pytest.MonkeyPatch) -> None:
    names, told = looks(monkeypatch, 1.0, 1.0)
    look = 2 * autotune.BLOCK * (autotune.MOST + 1)
    assert names[look : look + autotune.LATER] == ["eager"] * autotune.LATER
    assert [str(made) for made in told] == [
        f"kept eager{words}: compiled 1 s/call, eager 1 s/call" for words in (" for now", "")
    ]
    assert names[-1] == "eager"


@pytest.mark.parametrize(
    ("first", "later", "winners"),
    [
        (0.85, 1.1, ["compiled", "eager"]),
        (1.1, 0.6, ["eager", "compiled"]),
        (0.85, 0.85, ["compiled", "compiled"]),
        (0.5, 2.0, ["compiled"]),  # so much is no noise
        (1.5, 0.5, ["eager"]),
    ],
)
def test_a_decision_that_noise_may_have_made_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, first: float, later: float, winners: list[str]
) -> None:
    names, told = looks(monkeypatch, first, later)
    assert [made.winner for made in told] == winners
    assert names[-1] == winners[-1]


@pytest.mark.parametrize(("most", "winner"), [(40, "compiled"), (100_000, "eager")])
def test_calls_of_ever_other_sizes_are_compared_as_they_came(
    monkeypatch: pytest.MonkeyPatch, most: int, winner: str
) -> None:
    """A cache that grows; and sizes so far from each other that they show nothing."""
    clock, told = Clock(), list[autotune.Decision]()
    monkeypatch.setattr(autotune, "_now", lambda args: clock.now)
    run = {"compiled": 1.0, "eager": 2.0}

    def takes(name: str) -> Any:
        def call(x: Tensor, size: int) -> None:
            clock.now += run[name] * size

        return call

    choice = autotune.Choice({"compiled": takes("compiled")}, takes("eager"), told.append)  # type: ignore[arg-type]
    for number in range(2 * autotune.BLOCK * (autotune.MOST + 1)):
        choice(torch.ones(1), 1000 + number * 7919 % most if most > 40 else 1000 + number)
    assert [made.winner for made in told] == [winner]


@pytest.mark.parametrize(("takes", "winner"), [(0.94, "eager"), (0.9, "compiled")])
def test_a_whole_call_has_to_gain_more(
    monkeypatch: pytest.MonkeyPatch, takes: float, winner: str
) -> None:
    clock, told = Clock(), list[autotune.Decision]()
    monkeypatch.setattr(autotune, "_now", lambda args: clock.now)
    whole = bypass.Shortcut(clock.runs("compiled", takes), clock.runs("eager", 1.0))
    x, call = torch.ones(2), whole.call()
    whole.measure(bypass._key((x,), {}), told.append, training=False)
    while whole.measures():
        call(x)
    assert [made.final for made in told] == [False, True]
    assert told[-1].winner == call(x) == winner


def test_what_lost_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_now", lambda args: 0.0)

    class Weights:
        def __call__(self) -> None:
            pass

    lost = Weights()
    gone = weakref.ref(lost)
    choice = autotune.Choice({"compiled": lost}, lambda: None, lambda made: None)
    del lost
    for _ in range(2 * FIRST):
        choice()
    assert gone() is None


def test_what_others_take_of_the_machine_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = (1.0, 1.0, 9.0, 1.0, 9.0, 1.0, 1.0, 9.0)
    assert decision(monkeypatch, (1.5,), compiled=disturbed)[0][-1] == "compiled"


def test_a_call_that_fails_keeps_nothing_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_now", lambda args: 0.0)
    told, calls = list[autotune.Decision](), list[int]()

    def eager() -> None:
        calls.append(1)
        if len(calls) == FIRST:
            raise KeyError("the program's own")

    choice = autotune.Choice({"compiled": lambda: None}, eager, told.append)
    for _ in range(2 * FIRST):
        with contextlib.suppress(KeyError):
            choice()
    assert not told
    choice()
    assert told[0].winner == "eager"


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
    monkeypatch.setattr(autotune, "_now", lambda args: 0.0)
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
        "kept eager: compiled 0 us/call, eager 0 us/call, with torch.compile's own part; "
        "the graph alone: kept eager: compiled 0 us/call, eager 0 us/call"
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


def test_such_a_module_still_runs_hooks_can_be_copied_and_has_other_sizes_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = called(monkeypatch, Small(), 4 * FIRST)
    x, seen = torch.ones(1, 2), list[Any]()
    with torch.no_grad():
        with compiled.register_forward_hook(lambda *given: seen.append("own")):
            compiled(x)
        everywhere = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("all"))
        with everywhere, pytest.warns(UserWarning, match="global hooks"):
            compiled(x)
        torch.testing.assert_close(copy.deepcopy(compiled)(x), compiled(x))
        for _ in range(4 * FIRST):
            compiled(torch.ones(3, 2))
    assert seen == ["own", *["all"] * 3]  # of the linear, the module and what torch.compile made
    assert "with torch.compile's own part" in report.RECORDS[-1].decision
    assert isinstance(compiled, OptimizedModule)


def test_a_module_compiled_in_place_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_MEASURE", "1")
    monkeypatch.setattr(autotune, "_now", lambda args: 0.0)
    module = Small()
    module.compile(backend=toy.make(), dynamic=False)
    with torch.no_grad():
        for _ in range(4 * FIRST):
            module(torch.ones(1, 2))
        torch.compiler.reset()
        with torch.compiler.set_stance("fail_on_recompile"):
            module(torch.ones(1, 2))


def test_a_module_in_several_graphs_is_measured_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = called(monkeypatch, Small(breaks=True), 4 * FIRST)
    told = "kept eager: compiled 0 us/call, eager 0 us/call"
    whole = f"{told}, with torch.compile's own part; the graph alone: {told}"
    assert [record.decision for record in report.RECORDS[-2:]] == [whole] * 2
    torch.compiler.reset()
    with torch.compiler.set_stance("fail_on_recompile"), torch.no_grad():
        compiled(torch.ones(1, 2))


def steps(
    monkeypatch: pytest.MonkeyPatch, eager: tuple[float, ...], compiled: tuple[float, ...]
) -> tuple[str, autotune.Decision]:
    """Return what runs a step after the decision, and the decision; work after a call takes time,
    not the call itself, and between two steps there is a call of other sizes.
    """
    clock, told = Clock(), list[autotune.Decision]()
    monkeypatch.setattr(autotune, "_now", lambda args: clock.now)
    backward = {"eager": clock.runs("", *eager), "compiled": clock.runs("", *compiled)}
    whole = bypass.Shortcut(clock.runs("compiled", 0.0), clock.runs("eager", 0.0))
    x, call = torch.ones(2), whole.call()
    whole.measure(bypass._key((x,), {}), told.append, training=True)
    while not (told and told[-1].final):
        backward[call(x)]()
        assert call(torch.ones(3)) == "compiled"
        clock.now += 100.0
    assert not whole.measures()
    return call(x), told[-1]


@pytest.mark.parametrize(
    ("compiled", "winner"), [(2.0, "eager"), (0.99, "eager"), (0.5, "compiled")]
)
def test_a_step_lasts_until_the_next_call(
    monkeypatch: pytest.MonkeyPatch, compiled: float, winner: str
) -> None:
    found, made = steps(monkeypatch, (1.0,), (compiled,))
    assert (found, made.winner) == (winner, winner)
    assert made.seconds == pytest.approx({"compiled": compiled, "eager": 1.0})


@pytest.mark.parametrize(
    ("compiled", "winner"), [((0.4, 1.2, 0.7), "eager"), ((0.2, 0.8, 0.4), "compiled")]
)
def test_steps_that_vary_have_to_win_in_most_rounds(
    monkeypatch: pytest.MonkeyPatch, compiled: tuple[float, ...], winner: str
) -> None:
    found, made = steps(monkeypatch, (1.0, 1.0), compiled)
    assert (found, made.winner) == (winner, winner)


def test_a_graph_that_is_compiled_later_has_the_module_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autotune, "_now", lambda args: 0.0)
    told, x = list[str](), torch.ones(2)

    def compiled(x: Tensor) -> None:
        if not told:
            told.append("new")
            whole.measure(key, lambda made: told.append(made.winner), training=False)

    key, whole = bypass._key((x,), {}), bypass.Shortcut(compiled, lambda x: None)
    call = whole.call()
    whole.measure(key, lambda made: told.append(made.winner), training=False)
    for _ in range(1 + 2 * autotune.BLOCK * (autotune.ROUNDS + 1)):
        assert told == ["new"] * len(told)
        call(x)
    assert told == ["new", "eager", "eager"]  # both graphs get the decision
