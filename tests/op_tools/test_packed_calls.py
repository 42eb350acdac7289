"""Calls that are packed natively: the same as by Python, and the program goes on as without."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from op_tools import OpCapture, arena, diagnostics, packed, recording, spool, steps
from op_tools.archive import Archive
from op_tools.late import Waiting
from op_tools.snapshot import Unsupported
from op_tools.store import Recorded


def calls() -> list[Recorded]:
    (path,) = Path("op_tools_results/op_capture_results").glob("*.opcap")
    held = Archive(path)
    assert held.lost == 0
    return [held.load(call) for call in held]


def program() -> None:
    """Modules, a view, a list that is written, in-place, mixed devices, autocast, a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)).to("dipu")
    x = torch.randn(4, 6, device="dipu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(x[1:]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.where(x > 0, x, torch.tensor(0.5))
    with torch.autocast("dipu", torch.bfloat16):
        torch.mm(x, x.t())
    torch._foreach_mul_([x, x[:1]], 2.0)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride(), value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return repr(value)


def summed_up(call: Recorded) -> list[Any]:
    header = {key: value for key, value in call.header.items() if key not in ("id", "time")}
    parts = call.args, call.kwargs, call.output, call.mutated, call.grad_inputs, call.grad_outputs
    return [header, call.devices, sorted(call.written), call.complete, *map(plain, parts)]


def captured(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[list[Any]]:
    monkeypatch.chdir(folder)
    steps.reset()
    with OpCapture(format="packed"):
        program()
    return [summed_up(call) for call in calls()]


@pytest.mark.parametrize("near", [True, False], ids=["near", "locked"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_a_call_is_packed_natively_as_by_python(
    near: bool, seen: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if near:
        monkeypatch.setattr(spool, "FEW", 0)
    if not seen:
        monkeypatch.setattr(recording, "window", lambda kind, index: None)
    folders = [tmp_path / name for name in ("native", "python")]
    for folder in folders:
        folder.mkdir()
    native = captured(monkeypatch, folders[0])
    monkeypatch.setattr(OpCapture, "direct", lambda self, plan: None)
    by_python = captured(monkeypatch, folders[1])
    assert len(native) > 30
    for ours, theirs in zip(native, by_python, strict=True):
        assert ours == theirs
    assert {"autocast", "devices"} <= {key for call in native for key in call[0]}
    assert any(call[0]["module"] == "0" for call in native)


def test_an_error_of_the_program_is_its_own_and_comes_once() -> None:
    x = torch.ones(2, 3, device="dipu")
    with OpCapture(format="packed") as tool:
        with pytest.raises(RuntimeError, match=r"cannot be multiplied"):
            torch.mm(x, x)
        x.neg()
    assert [call.has_output for call in calls()] == [False, True]
    assert tool._run.calls == 2 and diagnostics.problems() == []


def test_what_cannot_be_taken_is_told_and_the_call_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: Any) -> None:
        raise Unsupported("a tensor of a graph that is being captured")

    monkeypatch.setattr(recording, "window", lambda kind, index: None)
    monkeypatch.setattr(packed.PackedStore, "_capturing", lambda self, device: lambda: True)
    monkeypatch.setattr(packed.PackedStore, "_refuse", refuse)
    x = torch.ones(3, device="dipu")
    with OpCapture(format="packed"):
        y = x.neg()
    assert y.tolist() == [-1.0] * 3
    assert "1 calls not captured: a tensor of a graph" in capsys.readouterr().out
    assert calls() == [] and diagnostics.problems() == []


@pytest.mark.parametrize("given", [{"format": "packed"}, {"mode": "statistics"}])
def test_a_tool_and_its_memory_end_with_it(given: dict[str, str]) -> None:
    x = torch.ones(3, device="dipu", requires_grad=True)
    tool = OpCapture(**given)
    with tool:
        (x * 2).sum().backward()
    held = weakref.ref(tool._run)
    del tool
    gc.collect()
    assert held() is None


def test_more_waits_in_a_devices_own_memory_unless_a_bound_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arena, "left_on", lambda device, second: arena.SHARE * 3 * arena.NEAR)
    monkeypatch.setattr(spool, "FEW", 0)
    path = tmp_path / "file"
    path.write_bytes(b"")
    held = spool.Spool(path, lambda error: None, Waiting(), packed._filling)
    try:
        made = held._near(100, "dipu")
        assert made is not None and made.near is not None and made.size == arena.NEAR
        assert held._near(4 * arena.NEAR, "dipu") is None  # more than a small share
        held._full.extend([made] * 3)
        assert held._near(100, "dipu") is None  # what waits there already counts
        held._full.clear()
        monkeypatch.setenv("OP_CAPTURE_MEMORY", "2GB")
        assert held._near(100, "dipu") is None
    finally:
        held.close()


def test_an_operator_that_is_called_while_one_is_written_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by what Python frees meanwhile."""
    made: list[torch.Tensor] = []
    plain_wake = spool.Spool.wake
    y = torch.ones(3, device="dipu")

    def wake(self: spool.Spool) -> None:
        made.append(y.neg())
        plain_wake(self)

    monkeypatch.setattr(spool.Spool, "wake", wake)
    always = property(lambda self: True, lambda self, on: None)
    monkeypatch.setattr(spool.Spool, "_idle", always, raising=False)
    x = torch.ones(3, device="dipu", requires_grad=True)
    with OpCapture(format="packed"):
        (x * 2).sum().backward()
    names = [call.name for call in calls()]
    assert names == ["torch.Tensor.mul", "torch.Tensor.sum"] and len(made) > 4
    assert diagnostics.problems() == []
