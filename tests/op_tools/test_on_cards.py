"""Records of a training step are equal with and without the native part:
on a GPU, if there is one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import training_step
from op_tools import OpCapture
from op_tools.core import native_library, step_counter
from tests.op_tools import small


def hashes(folder: Path, monkeypatch: pytest.MonkeyPatch, native: str) -> list[dict[str, object]]:
    """The second step's lines: what was called, and the bits of all tensors."""
    monkeypatch.setenv("OP_TOOLS_NATIVE", native)
    monkeypatch.setenv("OP_CAPTURE_INPUTS", "all")
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder / native))
    step_counter.reset()
    step = training_step.training(small.CARD)
    step()
    with OpCapture(mode="hash"):
        step()
    (file,) = folder.glob(f"{native}/**/*.jsonl")
    return [{**json.loads(line), "id": 0} for line in file.read_text().splitlines()]


def test_a_step_is_recorded_equally_by_cpp_and_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")
    monkeypatch.setattr(training_step, "WIDTH", 64)
    native = hashes(tmp_path, monkeypatch, "1")
    assert any("_foreach_lerp_" in str(line["op"]) for line in native)
    assert native == hashes(tmp_path, monkeypatch, "0")
