"""A program run twice: the first operator that gives other bits."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_dipu  # noqa: F401
from deeplink import cli
from op_tools import run
from op_tools.core import step_counter
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect.health_checks import Seen
from op_tools.diagnosis.bisect.runner import Command
from op_tools.diagnosis.diff.determinism import Repetition, differences
from op_tools.diagnosis.diff.recordings import Entry, Value

PROGRAM = """
import sys, torch, torch_dipu
x = torch.ones(8, 8, device="dipu")
for turn in range(3):
    if turn == 1 and len(sys.argv) > 1:  # another bit in each process
        import os
        with torch.dipu.quirk("bit_flip", "mm", p=1.0, seed=os.getpid()):
            y = x @ x
    else:
        y = x @ x
    x = y / y.norm()
"""


def row(*hashes: str) -> list[Entry]:
    """Calls of which each is given what the one before it made."""
    values = [Value("float32", (2,), word) for word in ("start", *hashes)]
    return [
        Entry(n, f"aten.op{n}.default", "forward", 0, "", "", (given,), (made,))
        for n, (given, made) in enumerate(itertools.pairwise(values))
    ]


def test_the_first_that_differs_from_the_same_arguments_is_named() -> None:
    first, calls, differing = differences(row("a", "b", "c"), row("a", "x", "y"))
    assert first is not None
    assert (first.a.op, first.from_same, calls, differing) == ("aten.op1.default", True, 3, 2)


def test_memory_that_no_kernel_has_written_is_no_difference() -> None:
    mine, theirs = row("a", "b"), row("x", "b")
    mine, theirs = ([replace(r[0], op="aten.empty.memory_format"), r[1]] for r in (mine, theirs))
    theirs[1] = replace(theirs[1], inputs=mine[1].inputs)
    assert differences(mine, theirs)[0] is None


def test_data_that_differ_are_not_blamed_on_the_operator() -> None:
    theirs = row("x", "y")
    theirs[0] = replace(theirs[0], inputs=(Value("float32", (2,), "other"),))
    first, _, _ = differences(row("a", "b"), theirs)
    assert first is not None and not first.from_same


class Here(Command):
    """Runs in this process, under the settings' tools."""

    def start(
        self, values: Mapping[str, str], number: int, plan: dict[str, Any] | None = None
    ) -> Seen:
        step_counter.reset()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in values.items():
                patch.setenv(name, value)
            tools_started = run.start()
            try:
                self._program(number)
            finally:
                tools_started()
        return Seen()

    def _program(self, number: int) -> None:
        x = torch.ones(8, 8, device="dipu")
        for turn in range(3):
            chance = 1.0 if turn == 1 else 0.0
            with torch.dipu.quirk("bit_flip", "mm", p=chance, seed=number):
                y = x @ x
            x = y / y.norm()


def test_both_tensors_of_the_call_that_differs_are_kept(tmp_path: Path) -> None:
    found = Repetition(Here(["train"], tmp_path), tmp_path).run()
    assert found["status"] == "differs"
    assert found["first"] is not None
    assert (found["first"]["op"], found["first"]["message"]) == (
        "aten.mm.default",
        "other bits from the same arguments",
    )
    assert found["tensors"][0]["differing"] in (1, 2)
    assert [Path(kept.partition("#")[0]).exists() for kept in found["kept"]] == [True, True]
    assert len(found["runs"]) == 4


@pytest.mark.slow
def test_a_program_that_is_the_same_twice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    line = ["--to", str(tmp_path / "out"), "--", sys.executable, str(tmp_path / "train.py")]
    assert cli.status(["determinism", *line]) == 0


@pytest.mark.slow
def test_a_program_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    program = [sys.executable, str(tmp_path / "train.py"), "flaky"]
    assert cli.status(["determinism", "--to", str(tmp_path / "out"), "--", *program]) == 1
    found = result_files.read(tmp_path / "out" / "determinism.json")
    assert found["first"]["op"] == "aten.mm.default"
    assert found["tensors"][0]["differing"] in (1, 2)
    assert [Path(kept.partition("#")[0]).exists() for kept in found["kept"]] == [True, True]


def test_a_program_that_does_not_run_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit('out of order')")
    line = ["--to", str(tmp_path / "out"), "--", sys.executable, str(program)]
    assert cli.status(["determinism", *line]) == 2
    verdict = result_files.read(tmp_path / "out" / "determinism.json")["verdict"]
    assert "it ended with status 1" in verdict
    assert verdict.endswith("| out of order")
