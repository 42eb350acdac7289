"""`deeplink diagnose`: a symptom leads to the right commands, and those to one page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from deeplink import cli
from deeplink.errors import DeeplinkError
from deeplink.run import program
from op_tools.diagnosis import conclusion, diagnose
from op_tools.diagnosis.report.model import Content, Group


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DITORCH", "OP_RECORDER_HANG"):
        monkeypatch.delenv(name, raising=False)
    Path("train.py").touch()


def test_every_plan_says_what_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    for symptom in diagnose.PLANS:
        line = ["--symptom", symptom, "--dry-run", "--", "python", "train.py", "--steps", "3"]
        assert cli.status(["diagnose", *line]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "$ deeplink why-nan -o why_nan train.py --steps 3" in said
    assert "$ deeplink run -o time --time --trace time/trace.json train.py" in said
    assert "$ deeplink bisect -o bisect train.py --steps 3" in said
    assert "$ OP_RECORDER_HANG=60 deeplink run -o recorder --recorder train.py" in said


def test_the_question_is_repeated_until_answered(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["what", "9", "2"])
    assert diagnose.ask(lambda _: next(answers)) == "nan"
    assert diagnose.ask(lambda _: "slow") == "slow"
    assert "no such symptom: '9'" in capsys.readouterr().out


def test_without_a_keyboard_the_option_is_named() -> None:
    def nobody(_: str) -> str:
        raise EOFError

    with pytest.raises(DeeplinkError, match=r"pass --symptom loss\|nan\|slow\|hang\|memory"):
        diagnose.ask(nobody)


def test_an_option_behind_the_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["diagnose", "train.py", "--symptom", "nan"]) == 2
    assert "Hint: options of deeplink come first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "started"),
    [
        (["python", "-m", "pkg", "-x"], ["-m", "pkg", "-x"]),
        (["deeplink", "run", "train.py"], ["train.py"]),
        (["torchrun", "--nproc-per-node", "2", "a.py"],
         ["-m", "torch.distributed.run", "--nproc-per-node", "2", "a.py"]),
    ],
)  # fmt: skip
def test_python_however_it_is_started_goes_to_run(given: list[str], started: list[str]) -> None:
    order = diagnose._order(diagnose.COMPARE, Path("out"), program.read(given, "diagnose"))
    head = [sys.executable, "-m", "ditorch", "run", "-o", "out", "--autocompare"]
    assert order.line == [*head, "--steps", "0-1", *started]


def test_what_is_no_python_is_reported_by_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_RECORDER_HANG", "7")  # the user's own stays
    order = diagnose._order(diagnose.RECORD, Path("out"), program.read(["bash", "train.sh"], ""))
    assert order.line == ["bash", "train.sh"]
    assert order.values == {
        "DITORCH": "1",
        "OP_TOOLS_RUN": "recorder",
        "OP_TOOLS_RESULTS": "out",
    }


def test_a_program_that_hangs_is_ended_after_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recorder"
    folder.mkdir()
    monkeypatch.setattr(diagnose, "PERIOD", 0.02)
    line = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    for name in ("recorder_pid1.0.jsonl", "recorder_pid1_hang-step4.jsonl"):
        (folder / name).touch()
    assert not diagnose._hangs(tmp_path)  # it may still go on
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    assert diagnose._run(diagnose.Order([], line, {}), tmp_path, None) == 124
    assert "it hangs, and was ended" in capsys.readouterr().out


def diagnosed(
    statuses: list[int], monkeypatch: pytest.MonkeyPatch, folder: Path, symptom: str = "loss"
) -> int:
    """The status of a diagnosis whose steps end so; a negative one is Ctrl-C."""
    given = iter(statuses)

    def run(order: diagnose.Order, folder: Path, limit: float | None) -> int:
        status = next(given)
        if status < 0:
            raise KeyboardInterrupt
        return status

    monkeypatch.setattr(diagnose, "_run", run)
    line = ["diagnose", "--symptom", symptom, "-o", str(folder), "--", "python", "train.py"]
    return cli.status(line)


def test_a_program_that_does_not_run_is_not_called_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnosed([1, 2, 2], monkeypatch, tmp_path) == 2
    said = capsys.readouterr().out
    assert "bisect: it ended with status 2" in said
    assert "nothing was recorded of the program" in said
    assert "nothing wrong was found" not in said


LINES = (
    {"begin": 1.0},
    *({"step": n, "at": 2.0 + n, "memory": {"device": n << 20}} for n in range(8)),
    {"end": 20.0},
)


def test_after_ctrl_c_what_was_found_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recorder").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "recorder/recorder_pid1.0.jsonl").write_text(text)
    assert diagnosed([0, -1], monkeypatch, tmp_path, "memory") == 130
    said = capsys.readouterr().out.replace("\n", " ")
    assert "memory of the device: 0.0 to 7.0 MiB, at most 7.0 (step 0 to step 7), it grows" in said
    assert (tmp_path / "report.html").exists()


def test_memory_that_only_begins_or_swings_does_not_grow() -> None:
    assert conclusion.grows([1, 2, 3, 4, 5])
    assert not conclusion.grows([1, 5, 5, 5, 5])
    assert not conclusion.grows([1, 4, 2, 5, 2])


def test_the_slowest_come_first() -> None:
    rest = ("s", "m", "a.py:3", "forward", 2)
    groups = [Group(op, *rest, ms, 0.0, 0.0, 0.0, 0.0) for op, ms in (("mm", 1.0), ("gelu", 3.0))]
    first, _ = conclusion.times(Content(groups=groups))
    assert first == "time: 75% of 4.0 ms in gelu (m, a.py:3, forward)"


@pytest.mark.slow
def test_a_found_culprit_ends_the_search_with_a_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nprint(torch.log(-torch.ones(2, device='cuda')).sum().item())")
    line = ["--symptom", "nan", "-o", str(tmp_path / "out"), "--", "python", str(program)]
    assert diagnose.main(line) == 1
    said = capfd.readouterr().out
    assert "NaN produced by aten.log.default (forward)" in said
    assert "[2/2]" not in said  # it was enough
    assert "aten.log.default" in (tmp_path / "out/report.html").read_text()
