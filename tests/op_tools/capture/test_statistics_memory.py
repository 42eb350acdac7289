"""Statistics of reused memory, of tensors of all shapes, and of arguments written in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools import OpCapture
from op_tools.core import op_names


@pytest.fixture(autouse=True)
def every_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_CAPTURE_INPUTS", "all")


def lines(folder: Path, op: str) -> list[dict[str, Any]]:
    (file,) = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in found if line["op"].startswith(op)]


def test_memory_that_is_used_again_is_reduced_again(starts: list[int], tmp_path: Path) -> None:
    x, written = (torch.zeros(4, device="dipu") for _ in range(2))
    places = set()
    with OpCapture(level="aten", mode="statistics"):
        for i in range(50):
            y = x + i
            places.add(y.data_ptr())
            y.neg()
            del y
            written.add_(x)  # pending work is read, and given back
    assert len(places) < 50
    assert [line["outputs"][0]["max"] for line in lines(tmp_path, "aten.add.")] == list(range(50))
    assert [line["inputs"][0]["max"] for line in lines(tmp_path, "aten.neg")] == list(range(50))


@pytest.mark.parametrize(
    "shape", [(), (0, 3), (1,), (127,), (128,), (2, 16384), (1,) * 8, (1, 2, 1, 1, 1, 1, 1, 1, 3)]
)
def test_shapes_of_all_lengths_are_reported(
    shape: tuple[int, ...], starts: list[int], tmp_path: Path
) -> None:
    x = torch.ones(shape, device="dipu")
    with OpCapture(mode="statistics"):
        torch.neg(x)
    (line,) = lines(tmp_path, "torch.neg")
    assert [one["shape"] for one in (*line["inputs"], *line["outputs"])] == [list(shape)] * 2
    assert line["outputs"][0]["max"] == (-1.0 if x.numel() else None)


def test_an_argument_that_was_written_against_its_name_says_so(
    starts: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(op_names, "may_write", lambda name: False)
    x, y = (torch.full((4,), value, device="dipu") for value in (1.0, 2.0))
    with OpCapture(mode="statistics"):
        x.add_(y)
        x.add_(y)  # by now it is known to write
    first, second = lines(tmp_path, "torch.Tensor.add_")
    assert first["inputs"][0]["skipped"] == "it was written before it was read"
    assert (first["inputs"][1]["max"], first["outputs"][0]["max"]) == (2.0, 3.0)
    assert [one["max"] for one in (*second["inputs"], *second["outputs"])] == [3.0, 2.0, 5.0]
