"""What of an optimizer a tool sees: its operators, and none of its questions about tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from op_tools.core import engine, native_library
from op_tools.timing.tool import OpTimeMeasure
from tests.op_tools.test_engine import Watcher

QUESTIONS = ("grad.__get__", "grad.__set__", "is_sparse.__get__", "is_complex")


@pytest.fixture(autouse=True, scope="module")
def compiled_before() -> None:
    """torch.compile, once used, has wrapped parts of the optimizers; of AdamW its own."""
    torch.compile(torch.neg, backend="eager")(torch.ones(1))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of all that comes to the engine's mode."""
    found: list[str] = []
    plain = engine._FunctionMode.__torch_function__

    def heard(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found.append(resolve_name(func) or "")
        return plain(self, func, types, args, kwargs)

    monkeypatch.setattr(engine._FunctionMode, "__torch_function__", heard)
    yield found


class Hears(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(resolve_name(func) or "")
        return func(*args, **(kwargs or {}))


def optimizer() -> torch.optim.Optimizer:
    torch.manual_seed(0)
    made = torch.optim.AdamW(nn.Linear(3, 2).to("dipu").parameters(), foreach=True)
    for parameter in made.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    return made


def questions(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(QUESTIONS)]


@pytest.mark.parametrize("native", [False, True])
def test_its_operators_are_seen_and_its_questions_are_not(
    native: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = native_library.helper() if native else None
    monkeypatch.setattr(native_library, "loaded", lambda: helper)
    made = optimizer()
    with Watcher() as seen:
        made.step()
        first, seen.calls = seen.names, []
        asked.clear()
        made.step()
        made.zero_grad()
    assert "torch.zeros_like" in first  # its state, which it makes once
    assert "torch._foreach_lerp_" in seen.names and "torch._foreach_addcdiv_" in seen.names
    assert questions(asked) == [] and "torch.Tensor.item" not in asked


def test_gradients_that_are_set_to_zero_are_seen(asked: list[str]) -> None:
    with Watcher() as seen:
        optimizer().zero_grad(set_to_none=False)
    assert "torch._foreach_zero_" in seen.names


def test_a_tool_that_watches_the_cpu_sees_its_count_of_steps() -> None:
    with Watcher(devices=["cpu", "dipu"]) as seen:
        optimizer().step()
    assert "torch.Tensor.item" in seen.names


def test_a_mode_of_the_program_hears_all_that_it_heard() -> None:
    plain, watched = Hears(), Hears()
    for mode, tool in ((plain, None), (watched, Watcher())):
        made = optimizer()
        made.step()
        if tool is not None:
            tool.start()
        with mode:
            made.step()
            made.zero_grad()
        if tool is not None:
            tool.stop()
    assert questions(plain.names) and plain.names == watched.names


def test_afterwards_torch_is_as_it_was() -> None:
    def parts() -> list[Any]:
        from torch.optim import adam

        found = (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad, adam.Adam._init_group)
        return [*found, adam._get_value, adam._default_to_fused_or_foreach]

    before = parts()
    with Watcher():
        assert all(a is not b for a, b in zip(before, parts(), strict=True))
    assert all(a is b for a, b in zip(before, parts(), strict=True))


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
        assert len(tool.summary("shape")) == kinds  # what corrects the bias is another number


class Named(torch.Tensor):
    """A kind of tensor with a hash of its own."""

    def __hash__(self) -> int:
        return 7
