"""torch's functions in C, met where they are called: the same is seen as by the function mode."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from op_tools import OpCapture, OpTimeMeasure, engine, fronts, interception, kernels
from tests.op_tools.test_engine import vector
from tests.op_tools.test_native_mode import Other


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    assert kernels.helper() is not None
    yield
    assert torch.overrides._get_current_function_mode_stack() == []


class Answers:
    """What a tensor does not know how to add, and knows how to be added to."""

    def __radd__(self, other: object) -> str:
        return "answered"


def many(x: torch.Tensor) -> list[object]:
    """By operators, methods, functions, names; with errors of the program's."""
    made: list[object] = [x + x, 2 + x, x * 2, x - 1, x / 2, x @ x, x == x, x != 1, x < x, 3 * x]
    made += [x.add(other=x, alpha=2), torch.add(x, x, alpha=3), x.view(1, -1).t(), x[0], x.shape]
    made += [
        F.linear(x, x[None], None),
        F.gelu(x),
        F.layer_norm(x, (2,)),
        torch._foreach_add([x], 1),
    ]
    x = x.clone()
    x += 1
    made += [x, x + Answers()]
    for wrong in (lambda: x + "a", lambda: torch.add(x), lambda: x.view(7), lambda: x @ x[:1]):
        with pytest.raises((TypeError, RuntimeError)) as error:
            wrong()
        made.append(str(error.value).splitlines()[0])
    return made


def plain(values: list[object]) -> list[object]:
    return [value.tolist() if isinstance(value, torch.Tensor) else str(value) for value in values]


def timed() -> tuple[Counter[str], list[object]]:
    """How often each operator was timed, and what came of the calls."""
    x, tool = vector(1.0, 2.0), OpTimeMeasure()
    with tool:
        made = [plain(many(x)) for _ in range(3)]  # decided, sized up, known
    assert made[0] == made[1] == made[2]
    return Counter({line.name: line.calls for line in tool.summary()}), made[0]


def test_the_same_calls_are_timed_as_by_the_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = timed()
    monkeypatch.setattr(fronts, "meet", lambda func, plan: None)
    assert (found, made) == timed()
    assert made == plain(many(vector(1.0, 2.0)))
    assert found["torch.Tensor.add"] >= 9 and found["torch.nn.functional.linear"] == 3


class Coming:
    """Counts the calls that come to the function mode."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.__self__ = engine._function_mode  # torch asks whose method it is
        self.plain = vars(engine._function_mode)["__torch_function__"]
        vars(engine._function_mode)["__torch_function__"] = self

    def __call__(self, func: Callable[..., Any], *rest: Any) -> Any:
        self.names.append(func.__name__)
        return self.plain(func, *rest)


def recorded(folder: Path) -> tuple[list[dict[str, Any]], list[object]]:
    """The lines of the calls, as they are apart from their numbers, and what came of them."""
    x = vector(1.0, 2.0)
    with OpCapture(mode="statistics"):
        made = [plain(many(x)) for _ in range(3)]
    files = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    file = max(files, key=lambda one: one.stat().st_mtime_ns)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: line[key] for key in line if key != "id"} for line in lines], made[-1]


def test_the_same_lines_are_written_on_the_way_as_by_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_way = recorded(tmp_path)
    monkeypatch.setattr(fronts, "meet", lambda func, plan: None)
    by_the_mode = recorded(tmp_path)
    assert len(on_the_way[0]) > 30
    assert on_the_way == by_the_mode


def test_a_call_on_a_device_that_is_not_watched_is_not_asked_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    run = interception.run

    def heard(plan: Any, *rest: Any) -> Any:
        asked.append(plan.name)
        return run(plan, *rest)

    monkeypatch.setattr(interception, "run", heard)
    here, there = torch.ones(2), vector(1.0, 2.0)
    with OpCapture(mode="statistics"):
        torch._foreach_add_([there], 1)
        torch._foreach_add_([here], 1)
    assert here.tolist() == [2.0, 2.0]
    assert asked == []


@pytest.mark.parametrize("tool", [OpTimeMeasure(), OpCapture(ops="torch.erfinv")])
def test_a_call_that_is_known_does_not_come_to_the_mode(tool: Any) -> None:
    x = vector(1.0, 2.0)

    def calls() -> None:
        x + x, x.mul(2), torch.sub(x, 1), F.linear(x, x[None])

    with tool:
        coming = Coming()
        for _ in range(2):
            calls()
        assert {"add", "mul", "sub", "linear"} <= set(coming.names)
        coming.names.clear()
        calls()
        assert set(coming.names) <= {"__getitem__"}  # Python has its own way to that one
        engine.changed()  # all is decided anew
        calls()
        assert {"add", "mul", "sub", "linear"} <= set(coming.names)


def test_none_is_met_without_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    x = vector(1.0, 2.0)
    with OpTimeMeasure():  # with it
        x + x
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    with OpCapture(ops="torch.erfinv"):
        seen: list[str] = []
        plain_call = engine._called
        monkeypatch.setattr(
            engine,
            "_called",
            lambda func, *r: (seen.append(func.__name__), plain_call(func, *r))[1],
        )
        for _ in range(3):
            x + x
    assert seen == ["add"] * 3


@pytest.mark.parametrize("inside", [False, True])
def test_the_programs_own_mode_sees_known_calls_too(inside: bool) -> None:
    x, tool, other = vector(1.0, 2.0), OpTimeMeasure(), Other()
    for first, second in [(tool, other) if inside else (other, tool)]:
        with first, second:
            for _ in range(4):
                x + x
    assert other.seen.count("add") == 4
    assert {line.name: line.calls for line in tool.summary()} == {"torch.Tensor.add": 4}


class Own(torch.Tensor):
    """A kind of tensor of the program's."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen += func is torch.Tensor.add
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("tool", [OpTimeMeasure(), OpCapture(ops="torch.erfinv")])
def test_a_tensor_of_a_kind_of_its_own_is_asked_once(tool: Any) -> None:
    x = vector(1.0, 2.0)
    with tool:
        for _ in range(3):
            x + x
        own = x.as_subclass(Own)
        Own.seen = 0
        assert type(own + x) is Own
    assert Own.seen == 1


def test_nothing_is_met_after_the_stop() -> None:
    x, other = vector(1.0, 2.0), Other()
    with OpTimeMeasure():
        for _ in range(3):
            x + x
    assert plain([x + x]) == [[2.0, 4.0]]
    with other:
        x + x
    assert other.seen == ["add"]
