"""OpAutoCompare by the device's own float64: what it may pass, and what the host still judges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from op_tools import (
    OpAutoCompare,
    device_figures,
    device_judge,
    device_kinds,
    device_parts,
    diagnostics,
    kept_before,
    memory,
)
from op_tools.comparison import Taken
from op_tools.device_figures import figures
from op_tools.device_pairs import Near
from tests.op_tools.test_autocompare import CALLS, CSV, healthy, leaf, on_device, rows


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host looks at nothing that the device finds right."""
    monkeypatch.setattr(device_kinds, "FIRST", 0)


def looks(tool: OpAutoCompare) -> tuple[int, int]:
    """Of the host, and of the device alone."""
    assert tool._there is not None
    return tool._there.looks, tool._there.passes


@pytest.mark.parametrize("made", CALLS, ids=lambda made: made.__name__.strip("_"))
def test_a_healthy_call_is_right(alone: None, made: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    plain = made().detach().cpu()
    torch.manual_seed(0)
    with OpAutoCompare(reference="device") as tool:
        out = made()
        if out.requires_grad:
            out.sum().backward()
    assert torch.equal(out.detach().cpu(), plain)
    assert tool.compared > 0
    healthy(tool)


def train(model: nn.Module, steps: int) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    torch.manual_seed(1)
    for _ in range(steps):
        model(on_device(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())]
    return nn.Sequential(*layers).to("dipu")


def test_training_is_judged_by_the_device_and_not_changed() -> None:
    plain = train(network(), 4)
    with OpAutoCompare(reference="device") as tool:
        seen = train(network(), 4)
    assert all(map(torch.equal, plain, seen))
    host, device = looks(tool)
    assert device > host > 0
    assert any(" to " in row["name"] for row in rows())  # an optimizer's lists, in one
    healthy(tool)


def test_one_step_of_float32_everywhere_is_right_as_it_is_for_the_host(alone: None) -> None:
    x = torch.full((512,), 1.5, device="dipu")
    with OpAutoCompare(reference="device", ops="torch.Tensor.mul") as tool:
        x * 0.9  # the device rounds the factor first: 0.8 of a step off, each time
    assert looks(tool) == (0, 1)
    healthy(tool)


def test_what_the_device_does_not_find_right_is_judged_by_the_host(alone: None) -> None:
    x = on_device(8, 8)
    with torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=2):
        with OpAutoCompare(reference="device") as tool:
            x * 3  # the guilty line
            x + 3
        assert looks(tool)[0] == 1
    (failure,) = tool.failures
    assert failure.name == "torch.Tensor.mul" and "the guilty line" in failure.where
    assert failure.verdict.wrong == 1 and failure.saved


def test_a_fault_that_its_float64_shares_is_seen_by_the_first_looks_of_the_host() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    with (
        torch.dipu.quirk("bf16_accumulate", "mm"),
        OpAutoCompare(ops=".*linear", reference="device") as tool,
    ):
        for _ in range(4):
            functional.linear(x, w).sum().backward()
    # one of the call and one of its gradient; then the device is not asked about it any more
    assert looks(tool) == (2, 0)
    assert {f.item for f in tool.failures} == {"output", "grad[0]", "grad[1]"}


def test_the_host_looks_at_a_part_of_the_others(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_kinds, "EVERY", 4)
    monkeypatch.setattr(device_kinds, "MOVED", 2)
    x = on_device(8)
    with OpAutoCompare(reference="device", ops="torch.Tensor.mul,torch.flip") as tool:
        for _ in range(8):
            torch.flip(x * 2, (0,))
    assert looks(tool) == (2 + 4, 6 + 4)


def test_calls_that_are_judged_in_portions_are_told_as_those_at_once(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(network(), 3)
    with OpAutoCompare(reference="device") as tool:
        train(network(), 3)
    at_once, (path,) = rows(), Path(CSV).glob("*.csv")
    path.unlink()
    monkeypatch.setattr(device_judge, "AT_ONCE", 5)
    with OpAutoCompare(reference="device") as again:
        seen = train(network(), 3)
    assert all(map(torch.equal, plain, seen))

    def told(rows: list[dict[str, str]]) -> list[tuple[str, str, str]]:
        return [(row["name"], row["allclose"], row["max_abs_diff"]) for row in rows]

    assert len(at_once) > 100 and told(rows()) == told(at_once)
    assert looks(again) == looks(tool) and again.compared == tool.compared
    assert again._there is not None and again._there.held == 0  # nothing is kept of any of them
    healthy(again)


def name_one_of_twelve() -> None:
    """One product of twelve is wrong: it is named, and no other."""
    x = torch.full((512,), 1.5, device="dipu")
    with OpAutoCompare(reference="device") as tool:
        for at in range(11):
            x * 2
            if at == 7:
                with torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=2):
                    x * 3  # the guilty line
    (failure,) = tool.failures
    assert "the guilty line" in failure.where and tool.compared == 12


def test_a_fault_in_one_of_many_portions_is_named(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_judge, "AT_ONCE", 3)
    name_one_of_twelve()


def test_a_device_without_float64_is_not_asked(alone: None) -> None:
    x = leaf(4, 4)
    with torch.dipu.quirk("no_float64"), OpAutoCompare(reference="device") as tool:
        (x @ x).sum().backward()
    assert looks(tool)[1] == 0 and tool.compared >= 2
    healthy(tool)


def test_a_device_without_memory_left_is_not_asked(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_on", lambda device: 0)
    x = on_device(4)
    with OpAutoCompare(reference="device") as tool:
        x * 2
    assert looks(tool) == (0, 0) and tool.compared == 1
    healthy(tool)


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"reference": "host"}, {}),
        ({}, {}),  # the reference device is not faster than the host
        ({"reference": "device", "standard": "ulp"}, {}),
        ({"reference": "device"}, {"MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32": "1,1"}),
    ],
)
def test_where_the_host_judges_alone(
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    setting: dict[str, str],
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    x = on_device(4)
    with OpAutoCompare(**given) as tool:  # type: ignore[arg-type]
        x * 2
    assert tool._there is None or looks(tool)[1] == 0
    assert tool.compared == 1 and not diagnostics.problems()


def test_figures_are_those_of_the_whole_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_figures, "PIECE", 12)
    torch.manual_seed(0)
    right = torch.randn(40, dtype=torch.float64)
    mine = right.float()
    mine[7] += 0.5
    infinite = torch.tensor([float("inf"), 1.0], dtype=torch.float64)
    wrong = torch.tensor([float("nan")])
    pairs = [
        Near(mine, right, torch.float32),
        Near(infinite.float(), infinite, torch.float32),
        Near(wrong, torch.ones(1, dtype=torch.float64), torch.float32),
    ]
    found = []
    for elements in (1 << 20, 16):
        found.append(figures(pairs, [[(mine, mine)], [(mine, mine + 1)]], elements))
    (whole, flags), (cut, _) = found
    assert flags == [False, True]
    assert whole[0].largest == pytest.approx(0.5) == cut[0].largest
    assert whole[0].squared == pytest.approx(cut[0].squared)
    assert whole[1].steps == 0.0  # infinite alike
    assert not whole[2].steps <= 1e300  # a nan is never right


def test_calls_on_several_devices(alone: None) -> None:
    with OpAutoCompare(reference="device") as tool:
        for index in (0, 1):
            on_device(4).to(f"dipu:{index}") * 2
    assert looks(tool)[1] >= 2
    healthy(tool)


def test_arguments_that_were_read_again_are_found_without_a_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    any_read = device_parts.any_read

    def asked(taken: Taken) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "__eq__", lambda *_: pytest.fail("a tensor was compared"))
            seen.append(any_read(taken))
        return seen[-1]

    monkeypatch.setattr(device_parts, "any_read", asked)
    with OpAutoCompare(reference="device") as tool:
        for _ in range(kept_before.REREAD_FIRST + 1):
            torch.relu(torch.ones(4, device="dipu"))
    assert True in seen and False in seen
    healthy(tool)


# Calls that write no argument, whose arguments are taken after them.


@pytest.fixture
def unread(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are not read again: nothing is copied before a call that writes none."""
    monkeypatch.setattr(kept_before, "REREAD_FIRST", 0)
    monkeypatch.setattr(kept_before, "REREAD_EVERY", 1 << 30)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_what_the_program_writes_later_is_not_what_was_given(
    unread: None, dtype: torch.dtype
) -> None:
    x, mask = leaf(8, 8).detach().to(dtype).requires_grad_(), on_device(8, 8) > 0
    with OpAutoCompare(reference="device", ops=".*mul,.*where") as tool:
        torch.where(mask, x * x, x).sum().backward()
        with torch.no_grad():  # the verdicts come later
            mask.fill_(True)
            x.zero_()
    assert looks(tool) == (0, 4)
    healthy(tool)


def test_the_host_sees_what_was_given_in_its_own_type(unread: None) -> None:
    x = on_device(8).bfloat16()
    with (
        torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=2),
        OpAutoCompare(reference="device", ops="torch.Tensor.mul") as tool,
    ):
        x * 3
    (failure,) = tool.failures
    given = torch.load(Path(failure.saved) / "device" / "input.pth", "cpu")["args"][0]
    assert given.dtype == torch.bfloat16 and torch.equal(given, x.cpu())


def test_a_call_that_begins_to_write_is_said_once_and_then_compared(unread: None) -> None:
    words, weight = torch.arange(4, device="dipu"), on_device(4, 8)
    with OpAutoCompare(reference="device", ops=".*embedding") as tool:
        functional.embedding(words, weight)
        for longest in (1.0, 0.5, 0.25):
            functional.embedding(words, weight, max_norm=longest)
    assert tool.compared == 3
    assert sum(tool.skipped.values()) == 1
    healthy(tool)
