"""The envelope of a call, drawn on its device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import torch_dipu  # noqa: F401  # the device
from op_tools import OpAutoCompare, comparison, drawing
from op_tools.again import Again
from op_tools.call import Call
from op_tools.reference import WIDE


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that draws faster than the host."""
    monkeypatch.setattr(drawing, "is_faster", lambda device: device.type == "dipu")


def product() -> tuple[Again, list[Tensor]]:
    torch.manual_seed(0)
    a, b = torch.randn(64, 96), torch.randn(96, 64)
    again = Again(Call(1, "torch.mm", torch.mm, (a, b), {}), frozenset(), False, WIDE)
    again.draws_nothing = True
    return again, [a.double() @ b.double()]


def once(again: Again) -> Sequence[Tensor | None]:
    return again.run(again.types, grad=False).results


def on_device(again: Again, centre: list[Tensor]) -> list[Tensor | None] | None:
    return drawing.drawn(again, torch.device("dipu:0"), once, centre, comparison.noise)


def test_the_device_draws_what_the_host_draws(fast: None) -> None:
    again, centre = product()
    mine, theirs = on_device(again, centre), comparison.noise(again, lambda: once(again), centre)
    assert mine is not None and theirs is not None
    (a,), (b,) = mine, theirs
    assert a is not None and b is not None and a.device.type == "cpu" and a.shape == b.shape
    assert float(a.mean()) == pytest.approx(float(b.mean()), rel=0.1)


def test_a_device_whose_float64_is_wrong_is_not_asked(fast: None) -> None:
    again, centre = product()
    with torch.dipu.quirk("bf16_accumulate", "mm"):
        assert on_device(again, centre) is None


def test_a_device_that_is_not_faster_is_not_asked() -> None:
    again, centre = product()
    assert drawing.drawn(again, torch.device("cpu"), once, centre, comparison.noise) is None


def test_verdicts_on_results_and_gradients_are_the_hosts(fast: None) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64).to("dipu").requires_grad_()
    found = []
    for quirk in ("", "bf16_accumulate"):
        with OpAutoCompare(bitwise=False) as tool:
            if quirk:
                with torch.dipu.quirk(quirk, "mm"):
                    (x @ x.t()).sum().backward()
            else:
                (x @ x.t()).softmax(-1).square().sum().backward()
        found.append({failure.name for failure in tool.failures})
    assert found == [set(), {"torch.Tensor.matmul"}]
