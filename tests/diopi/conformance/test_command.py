"""The commands: a run with its reports, resume, one case, baselines, models,
the older command line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from diopi import __main__ as face
from diopi.conformance import command
from diopi.conformance.cases.case import Result
from diopi.conformance.results import results
from diopi.conformance.suite import failures

RUN = ["--vendor", "cpu", "--tier", "smoke", "--ops", "relu", "--jobs", "1"]


def test_a_run_leaves_its_reports_and_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert command.main([*RUN, "--results", str(folder)]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["ops"] == 1 and summary["cases"] >= 3 and not summary["unexplained"]
    for name in ("report.html", "junit.xml", "error_report.csv"):
        assert (folder / name).stat().st_size

    kept = ["--publish", str(tmp_path / "docs"), "--results", str(folder), "--vendor", "cpu"]
    assert command.main(kept) == 0
    page = (tmp_path / "docs" / "cpu.md").read_text()
    assert f"Tier `smoke`: {summary['cases']} cases of 1 ops" in page and "0 wrong" in page
    with (tmp_path / "docs" / "cpu.csv").open(newline="") as file:
        assert [row["op"] for row in csv.DictReader(file)] == ["relu"]

    # the run of a vendor that is not available here
    (folder / "summary.json").write_text(json.dumps(summary | {"vendor": "cuda"}))
    kept[-1] = "cuda"
    assert command.main(kept) == 0 and (tmp_path / "docs" / "cuda.md").is_file()

    lines = (folder / "results.jsonl").read_text().splitlines()
    (folder / "results.jsonl").write_text("\n".join(lines[:2]) + "\n")
    assert command.main([*RUN, "--results", str(folder), "--resume"]) == 0
    assert len(results.read(folder / "results.jsonl")) == len(lines)


def test_an_interrupted_run_reports_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_one(self: object, groups: object, done: object) -> Iterator[Result]:
        yield Result("relu/float32/relu+samples.0/plain/plain", "passed", "A")
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Pool, "run", first_one)
    assert command.main([*RUN, "--results", str(tmp_path)]) == 1
    assert "interrupted at group 0 of 1; --resume goes on." in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["cases"] == 1


def test_one_case_says_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    case = "softmax/float32/softmax+samples.1/plain/transposed"
    assert command.main(["--vendor", "cpu", "--case", case]) == 0
    said = capsys.readouterr().out
    assert f"{case}: passed, grade A" in said and "backward" in said


def test_an_unknown_op_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--vendor", "cpu", "--ops", "nothing_like_this"]) == 2
    assert "no op matches nothing_like_this" in capsys.readouterr().err


def test_baselines_are_made_here_and_used_there(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "results"
    line = ["--fname", "relu", "--tier", "smoke", "--data", str(data), "--jobs", "1"]
    assert face.main(["--mode", "gen_data", *line]) == 0
    assert {path.suffix for path in data.iterdir()} == {".gz", ".safetensors"}
    used = ["--mode", "run_test", *line, "--vendor", "cpu", "--results", str(folder)]
    assert face.main(used) == 0
    assert json.loads((folder / "summary.json").read_text())["cases"] > 2


def test_without_baselines_the_error_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--fname", "relu", "--data", str(tmp_path), "--vendor", "cpu"]
    assert face.main(["--mode", "run_test", *line, "--results", str(tmp_path / "results")]) == 2
    assert "--mode gen_data" in capsys.readouterr().err


def test_the_old_flags_leave_out_dtypes_and_lay_out_images(tmp_path: Path) -> None:
    line = ["--fname", "max_pool2d", "--tier", "smoke", "--recompute", "--vendor", "cpu"]
    more = ["--filter_dtype", "float64", "int64", "--nhwc", "--results", str(tmp_path)]
    assert face.main([*line, *more, "--jobs", "1"]) == 0
    rows = results.read(tmp_path / "results.jsonl")
    layouts = {row.case.rpartition("/")[2] for row in rows if "+errors." not in row.case}
    assert {"plain", "channels_last"} <= layouts


def test_the_models_are_listed_with_their_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert face.main(["--get_model_list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 43
    assert any(line.startswith("bert: ") and "gelu" in line for line in lines)


def test_an_unknown_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert face.main(["--model_name", "nobody"]) == 2
    assert "no model 'nobody'" in capsys.readouterr().err


def test_the_suite_as_pytest_gives_the_failures_of_one_op(tmp_path: Path) -> None:
    vendor = "tests.diopi.conformance.broken"
    wrong = failures(vendor, "cosh", "smoke", limit=20.0)
    assert wrong and {row.check for row in wrong} == {"shape"}
    gaps = tmp_path / "gaps.toml"
    gaps.write_text(
        '[[conformance]]\nop="cosh"\ndtype="*"\ncheck="shape"\nkind="todo"\nreason="being mended"\n'
    )
    assert failures(vendor, "cosh", "smoke", gaps, limit=20.0) == []


def test_the_error_report_has_a_line_for_each_failure(tmp_path: Path) -> None:
    line = ["--vendor", "tests.diopi.conformance.broken", "--tier", "smoke", "--jobs", "1"]
    gaps = tmp_path / "gaps.toml"  # cosh is wrong too, and is not run
    gaps.write_text('[[device.skip]]\nop = "cosh"\ndtype = "*"\nreason = "not on this chip"')
    line += ["--ops", "sinh", "cosh", "--gaps", str(gaps)]
    assert command.main([*line, "--results", str(tmp_path)]) == 1
    with (tmp_path / "error_report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and {row["check"] for row in rows} == {"dtype"}
    assert all("--case 'sinh/float32/" in row["reproduce"] for row in rows)


def test_a_line_for_every_op_is_printed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--vendor", "cpu", "--tier", "smoke", "--fname", "relu", "--jobs", "1", "--recompute"]
    assert face.main([*line, "-v", "--nhwc", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    pattern = rf"^{stamp} - DIOPI-Test - INFO - Run diopi_functions\.relu succeed$"
    assert re.search(pattern, said, re.MULTILINE), said


def test_a_misspelt_filter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert face.main(["--vendor", "cpu", "--fname", "relu", "--filter_dtype", "float65"]) == 2
    said = capsys.readouterr().err
    assert "no dtype 'float65'" in said and "did you mean float64?" in said
