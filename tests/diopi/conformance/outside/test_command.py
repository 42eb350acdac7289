"""`deeplink conformance --kernels SPEC`: isolation, reports, and errors of the command line."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

from diopi.conformance import command
from diopi.conformance.cases.case import Result
from diopi.conformance.results import results

ROOT = Path(__file__).parents[4]
KERNELS = """
    import os, signal, time
    import torch

    def relu(x):
        if not x.is_contiguous():
            os.kill(os.getpid(), signal.SIGSEGV)
        return x.clamp(min=0)

    def neg(x):
        if not x.is_contiguous():
            time.sleep(3600)
        return x * -1

    def frobnicate(x):
        return x
"""


def test_a_kernel_that_crashes_or_hangs_is_named_and_the_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "results"
    file.write_text(dedent(KERNELS))
    line = ["--kernels", str(file), "--tier", "smoke", "--limit", "4", "-o", str(out)]
    assert command.main([*line, "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "2 kernels on cpu: relu is relu, neg is neg" in said
    assert "not matched: frobnicate: no operator has this name" in said
    statuses = {(row.op, row.status) for row in results.read(out / "results.jsonl")}
    assert {("relu", "crashed"), ("relu", "passed"), ("neg", "hung"), ("neg", "passed")} <= statuses

    summary = json.loads((out / "summary.json").read_text())
    rows = {row["op"]: row for row in summary["operators"]}
    assert rows["relu"]["grade"] == "F" and rows["relu"]["batch_invariant"] in ("yes", "-")
    assert summary["unmatched"][0].startswith("frobnicate")
    badge = json.loads((out / "badge.json").read_text())
    assert badge["message"].startswith("0 of 2 operators") and badge["color"] == "red"
    assert ElementTree.parse(out / "badge.svg").getroot().attrib["height"] == "20"
    with (out / "error_report.csv").open(newline="") as opened:
        lines = [row["reproduce"] for row in csv.DictReader(opened)]
    assert all(f"--kernels {file} --device cpu --case" in one for one in lines)

    target = tmp_path / "docs"
    assert command.main(["--publish", str(target), "-o", str(out)]) == 0
    assert "| relu | F |" in (target / "mine.py.md").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--kernels", "x.py", "--device", "tpu"], "no device 'tpu'; allowed: cpu, cuda, dipu."),
        (
            ["--kernels", "x.py", "--device", "cuda", "--interpret"],
            "--interpret runs Triton on",
        ),
        (["--kernels", "x.py", "--map", "softmax"], "--map 'softmax' is not function=operator."),
        (["--interpret"], "--allow-torch and --changed-only belong to --kernels."),
    ],
)
def test_options_that_do_not_fit_are_refused(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(line) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow  # Triton's interpreter
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed",
)
def test_the_example_in_triton_is_correct(tmp_path: Path) -> None:
    example = ROOT / "examples" / "kernels" / "softmax.py"
    line = ["--kernels", str(example), "--interpret", "--tier", "smoke", "-o", str(tmp_path)]
    assert command.main(line) == 0
    rows = results.read(tmp_path / "results.jsonl")
    assert sum(row.status == "passed" for row in rows) >= 7


def test_without_triton_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # restored after the test
    example = ROOT / "examples" / "kernels" / "softmax.py"
    assert command.main(["--kernels", str(example), "--interpret"]) == 2
    assert "Hint: pip install --no-deps triton" in " ".join(capsys.readouterr().err.split())


def lines(folder: Path, *rows: tuple[str, str, str]) -> Path:
    folder.mkdir()
    with results.Writer(folder / "results.jsonl", append=False) as writer:
        for case, status, grade in rows:
            writer.add(Result(f"relu/float32/relu+samples.{case}/plain/plain", status, grade))
    return folder


def test_two_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = lines(
        tmp_path / "a", ("0", "passed", "A"), ("1", "failed", "F"), ("2", "passed", "A"),
        ("3", "passed", "A"),
    )  # fmt: skip
    second = lines(
        tmp_path / "b", ("0", "crashed", "F"), ("1", "passed", "A"), ("2", "passed", "B"),
        ("4", "passed", "A"),
    )  # fmt: skip
    file = tmp_path / "changes.json"
    assert command.main(["--compare", str(first), str(second), "--json", str(file)]) == 1
    assert "3 cases in both: 1 regressions, 1 fixes, 1 with a worse grade" in " ".join(
        capsys.readouterr().out.split()
    )
    kinds = [change["kind"] for change in json.loads(file.read_text())["changes"]]
    assert kinds == ["regression", "fix", "worse"]
    assert command.main(["--compare", str(second), str(second)]) == 0
    assert command.main(["--compare", str(first)]) == 2


def test_joined_shards_are_a_whole_run_and_unchanged_kernels_are_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("def relu(x): return x.clamp(min=0)\n")
    line = ["--kernels", str(tmp_path / "mine.py"), "--device", "cpu", "--tier", "smoke", "-j", "1"]
    parts = [tmp_path / "1", tmp_path / "2"]
    for out in parts:
        command.main([*line, "--shard", f"{out.name}/2", "-o", str(out)])
    texts = [(out / "results.jsonl").read_text() for out in parts]
    assert len(texts[0].splitlines()) + len(texts[1].splitlines()) >= 3
    assert not set(texts[0].splitlines()) & set(texts[1].splitlines())

    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "results.jsonl").write_text("".join(texts))
    assert command.main([*line, "--resume", "-o", str(whole)]) == 0
    rows = results.read(whole / "results.jsonl")
    assert (whole / "results.jsonl").read_text() == "".join(texts)  # nothing was run

    capsys.readouterr()
    assert command.main([*line, "-o", str(whole), "--changed-only"]) == 0
    assert "1 kernels are unchanged: their results are kept." in capsys.readouterr().out
    assert results.read(whole / "results.jsonl") == rows

    (tmp_path / "mine.py").write_text("def relu(x): return x.clamp(min=1)\n")
    assert command.main([*line, "-o", str(whole), "--changed-only"]) == 1
    assert command.main(["--shard", "3/2", *line]) == 2
