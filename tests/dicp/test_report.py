"""`deeplink compile-report`: what the last process compiled, and what it left eager."""

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from deeplink.cli import app
from dicp import __main__ as command
from dicp.dynamo_bridge import report
from tests.dicp import toy


def test_the_report_of_a_process_is_read_by_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x + x) * x, backend=toy.make())(torch.ones(2))
    monkeypatch.setattr("sys.argv", ["compile-report"])
    assert command.main() == 0
    text = capsys.readouterr().out
    assert "toygraph" in text and "aten.sin.default" in text and "no conversion" in text
    monkeypatch.setattr("sys.argv", ["compile-report", "--json"])
    command.main()
    assert json.loads(capsys.readouterr().out)[-1]["taken"] == 2


def test_no_report_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(report.DeeplinkError, match="Hint: run a program"):
        report.read()
    bad = tmp_path / "bad.json"
    bad.write_text("[{}]")
    with pytest.raises(report.DeeplinkError, match="cannot read"):
        report.read(bad)


def test_the_backends_are_listed_and_a_misspelt_one_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends"])
    assert command.main() == 0
    text = capsys.readouterr().out
    assert "onnxrtgraph" in text and "ascendgraph (sim)" in text
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends", "onnxrtgrap"])
    assert command.main() == 2
    assert "did you mean 'onnxrtgraph'?" in capsys.readouterr().err


def test_the_command_is_one_of_deeplink_s() -> None:
    assert "compile-report" in CliRunner().invoke(app, ["--help"]).output


def test_a_graph_that_stays_eager_counts_as_not_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = report.begin("toygraph", "inference")
    record.nodes = record.taken = 4
    record.decide("kept eager: compiled 20 us/call, eager 10 us/call", stays_eager=True)
    report.show([record])
    row = next(line for line in capsys.readouterr().out.splitlines() if "toygraph" in line)
    assert row.split()[2:6] == ["inference", "4", "0", "0"]  # operators, compiled, parts


def test_a_backend_of_a_distribution_that_does_not_require_deeplink_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "foreign-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\nforeigngraph = foreign_graph:backend\n"
    )
    (tmp_path / "foreign_graph.py").write_text(
        "from tests.dicp import toy\nbackend = toy.make(name='foreigngraph')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends"])
    assert command.main() == 0
    assert "not loaded: foreign does not require deeplink" in capsys.readouterr().out
    assert "foreign_graph" not in sys.modules
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends", "foreigngraph"])
    assert command.main() == 0
    assert capsys.readouterr().out.split()[-2:] == ["foreigngraph", "1"]
