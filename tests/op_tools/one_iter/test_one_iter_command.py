"""`one-iter` on the command line: options at any place before the program, and several ranks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deeplink import cli, settings

PROGRAM = str(Path(__file__).parents[3] / "examples" / "train_small.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

LINES = [
    ["compare", "{record}", "--json", "found.json", "--step", "3", "{program}", "--step", "5"],
    ["compare", "--json", "found.json", "--step", "3", "{record}", "{program}", "--step", "5"],
    [
        "compare",
        "{record}",
        "--step",
        "3",
        "--json",
        "found.json",
        "-m",
        "{program}",
        "--step",
        "5",
    ],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_options_go_before_the_program_or_are_its_own(line: list[str], tmp_path: Path) -> None:
    words = [word.format(record=tmp_path, program=PROGRAM) for word in line]
    request = cli.parse("one-iter", words)
    assert (request.program, request.arguments) == (PROGRAM, ("--step", "5"))
    assert request.values[settings.OP_ONE_ITER_STEP.name] == "3"
    assert request.values[settings.OP_ONE_ITER_JSON.name] == str(Path("found.json").resolve())
    assert request.values[settings.OP_ONE_ITER_RECORD.name] == str(tmp_path)


def _one_iter(*line: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return _deeplink("one-iter", *line, **environment)


def _deeplink(*line: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deeplink", *map(str, line)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "DITORCH_QUIET": "1", "OMP_NUM_THREADS": "1", **environment},
    )


def test_record_on_another_vendor_finds_the_fault_of_this_device(tmp_path: Path) -> None:
    """DIPU_QUIRKS stays set in both runs: a faulty chip is faulty in both."""
    fault = {"DIPU_QUIRKS": "ignore_strides:mm"}
    done = _one_iter("record", "--to", tmp_path, "--vendor", "cpu", PROGRAM, **fault)
    assert "one-iter: recorded on plain CPU (device cpu), torch " in done.stdout, done.stderr
    done = _one_iter("compare", tmp_path, PROGRAM, **fault)
    assert "one-iter: recorded on plain CPU (device cpu)" in done.stdout, done.stderr
    assert "one-iter: compared on reference device (CPU) (device dipu)" in done.stdout
    assert "first diverging layer: head" in done.stdout and done.returncode == 1
    assert re.search("^Problem:    (output|grad)", done.stdout, re.MULTILINE)
    (fix,) = re.findall(r"^Workaround: deeplink (run .*)$", done.stdout, re.MULTILINE)
    assert fix.startswith("run --fallback '.*' --modules ")
    assert "as it should be" in _deeplink(*shlex.split(fix), **fault).stdout
    assert "WARNING" not in done.stdout


@pytest.mark.slow
def test_every_rank_records_and_compares_its_own(tmp_path: Path) -> None:
    record = tmp_path / "rec"
    done = _one_iter("record", "--to", record, "--vendor", "cpu", *TORCHRUN, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(file.name for file in record.iterdir()) == ["rank-0.opcap", "rank-1.opcap"]
    here = ("compare", record, "--vendor", "reference")
    done = _one_iter(*here, *TORCHRUN, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"one-iter: rank {rank}: every layer is correct" in done.stdout
    found = tmp_path / "found.json"
    done = _one_iter(*here, "--json", found, *TORCHRUN, PROGRAM, DIPU_QUIRKS="ignore_strides:mm")
    assert done.returncode != 0
    for rank in range(2):
        assert f"one-iter: rank {rank}: the first that diverges: " in done.stdout, done.stdout
        told = json.loads((tmp_path / f"found_rank{rank}.json").read_text())
        assert told["rank"] == rank
        assert (told["first"]["layer"].split(".")[-1], told["first"]["direction"]) == (
            "head",
            "backward",
        )
