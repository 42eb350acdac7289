"""Reports about calls without an equivalent, and their records."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

NAME, REASON = "torch.cuda.thing", "there is no thing; use another"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import ditorch

    ditorch.undo()
    module = importlib.import_module("ditorch.calls")
    module.reset()
    monkeypatch.setattr(module, "strict", lambda: False)
    yield module
    module.reset()


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_warns_once_per_call_site_at_the_programs_line(calls: ModuleType) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            value, line = calls.missed(NAME, REASON, 7), here()
        calls.missed(NAME, REASON, 7)
    assert value == 7
    assert [w.lineno for w in seen] == [line, line + 1]
    assert {w.filename for w in seen} == {__file__}
    assert seen[0].category is calls.DitorchWarning
    assert str(seen[0].message) == f"{NAME} has no equivalent here and returns 7: {REASON}"


def test_strict_raises_with_call_place_and_alternative(
    calls: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "strict", lambda: True)
    with pytest.raises(calls.Unsupported) as raised:
        calls.missed(NAME, REASON, 7)
    text = str(raised.value)
    assert NAME in text
    assert f"{__file__}:" in text
    assert f"Hint: {REASON}" in text


def test_fatal_raises_without_strict(calls: ModuleType) -> None:
    with pytest.raises(calls.Unsupported, match=NAME):
        calls.missed(NAME, REASON, fatal=True)


def test_report_has_what_was_used_and_missed(calls: ModuleType) -> None:
    calls.used("torch.cuda.first")
    calls.used("torch.cuda.second")
    calls.used("torch.cuda.first")
    calls.used("torch.cuda._of_torch_itself")
    with pytest.warns(calls.DitorchWarning):
        for _ in range(2):
            calls.missed(NAME, REASON)
    report = calls.report()
    assert report.used == ("torch.cuda.first", "torch.cuda.second")
    assert [(m.name, m.count, m.reason) for m in report.missed] == [(NAME, 2, REASON)]
    assert report.missed[0].site.startswith(f"{__file__}:")
    assert len(report.rows()) == 3
    assert f"{NAME} (2x): {REASON}" in report.render()


def test_a_report_does_not_change_later(calls: ModuleType) -> None:
    before = calls.report()
    calls.used("torch.cuda.first")
    assert before.used == ()
    with pytest.raises(AttributeError):
        before.used = ("x",)


def test_torch_compile_sees_no_break_and_no_guard(calls: ModuleType) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def program(x: torch.Tensor) -> torch.Tensor:
        calls.used("torch.cuda.first")
        return x + 1

    program(torch.ones(2))
    calls.used("torch.cuda.first")
    program(torch.ones(2))
    assert len(compiled) == 1
