"""`deeplink compile-report`: what the last process compiled, and what it left eager."""

import json
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


def test_no_report_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(report.DeeplinkError, match="Hint: run a program"):
        report.read()
    bad = tmp_path / "bad.json"
    bad.write_text("[{}]")
    with pytest.raises(report.DeeplinkError, match="cannot read"):
        report.read(bad)


def test_the_backends_are_listed_and_a_misspelt_one_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends"])
    assert command.main() == 0
    text = capsys.readouterr().out
    assert "onnxrtgraph" in text and "ascendgraph (sim)" in text
    monkeypatch.setattr("sys.argv", ["compile-report", "--backends", "onnxrtgrap"])
    assert command.main() == 1
    assert "did you mean 'onnxrtgraph'?" in capsys.readouterr().err


def test_the_command_is_one_of_deeplink_s() -> None:
    assert "compile-report" in CliRunner().invoke(app, ["--help"]).output
