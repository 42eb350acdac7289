"""`deeplink diagnose`: a symptom leads to the right commands, and those to one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from op_tools.diagnosis import guide, launching


def test_every_plan_says_what_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    for symptom in guide.PLANS:
        line = ["--symptom", symptom, "--dry-run", "--", "python", "train.py", "--steps", "3"]
        assert guide.main(line) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "$ deeplink why-nan -o why_nan -- python train.py --steps 3" in said
    assert "$ deeplink run --results time --time --trace time/trace.json train.py" in said
    assert "$ deeplink bisect --to bisect -- python train.py --steps 3" in said
    assert "$ OP_RECORDER_HANG=60 deeplink run --results recorder --recorder train.py" in said


def test_it_asks_until_it_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["what", "9", "2"])
    parser = argparse.ArgumentParser()
    assert guide.ask(parser, lambda _: next(answers)) == "nan"
    assert guide.ask(parser, lambda _: "slow") == "slow"
    assert "not one of them: '9'" in capsys.readouterr().out


def test_nobody_at_the_keyboard_is_told_what_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(_: str) -> str:
        raise EOFError

    with pytest.raises(SystemExit):
        guide.ask(argparse.ArgumentParser(), nobody)
    assert "say --symptom loss|nan|slow|hang|memory" in capsys.readouterr().err


def test_a_program_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    with pytest.raises(SystemExit):
        launching.command_of(parser, ["--"])
    assert "which program?" in capsys.readouterr().err
    assert launching.command_of(parser, ["--", "a.py", "-x"]) == [sys.executable, "a.py", "-x"]


@pytest.mark.slow
def test_a_found_culprit_ends_the_search_with_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nprint(torch.log(-torch.ones(2, device='cuda')).sum().item())")
    monkeypatch.setenv("DITORCH", "1")
    line = ["--symptom", "nan", "-o", str(tmp_path / "out"), "--", "python", str(program)]
    assert guide.main(line) == 1
    said = capsys.readouterr().out
    assert "NaN by aten.log.default (forward)" in said
    assert "[2/2]" not in said  # it was enough
    assert "aten.log.default" in (tmp_path / "out/report.html").read_text()
