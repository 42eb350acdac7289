"""The losses of a program: printed and reported ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeplink
from deeplink.run.loss_log import observed, printed


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("loss=0.5", [0.5]),
        ("step 3 loss: 1.25e-3, lr 0.1", [1.25e-3]),
        ("Loss 3.194 -> 0.02: fine", [3.194, 0.02]),
        ('{"loss": 2.0, "step": 1}', [2.0]),
        ("train_loss = 7", [7.0]),
        ("loss is nan", [float("nan")]),
        ("loss -inf", [float("-inf")]),
        ("lossless 3", []),
        ("no number: loss", []),
    ],
)
def test_common_ways_to_print_a_loss_are_known(text: str, values: list[float]) -> None:
    assert [repr(loss.value) for loss in printed(text)] == [repr(value) for value in values]


def test_a_printed_loss_is_as_exact_as_its_digits() -> None:
    assert [loss.step for loss in printed("loss 3.194 loss 2 loss 1.50e-3")] == [1e-3, 1.0, 1e-5]


def test_a_pattern_of_ones_own_has_a_group_for_the_number() -> None:
    assert [loss.value for loss in printed("E=4 E=2", r"E=(\d+)")] == [4.0, 2.0]


def test_a_program_reports_its_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deeplink.observe_loss(1.0)  # nobody asked
    file = tmp_path / "losses"
    monkeypatch.setenv("DEEPLINK_LOSS_FILE", str(file))
    deeplink.observe_loss(0.1)
    deeplink.observe_loss(float("nan"))
    with file.open("a") as more:
        more.write('{"loss": 3.0')  # killed while it wrote
    assert [repr(loss.value) for loss in observed(file)] == ["0.1", "nan"]
