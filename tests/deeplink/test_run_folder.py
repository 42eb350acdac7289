"""The folder of one run: run.json, the link to the latest, and the findings for --fail-on."""

import json
import os
from pathlib import Path

import pytest

from deeplink import cli
from deeplink.commands import host
from deeplink.run import run_folder

Environment = dict[str, str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPLINK_VENDOR", "cpu")
    monkeypatch.delenv("OP_TOOLS_RESULTS", raising=False)
    Path("train.py").touch()


class Program:
    """Takes the place of the program's process: an exit code, and findings of its tools."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code = 0
        self.findings: list[dict[str, int]] = []
        self.folder = Path()
        self.line: list[str] = []
        monkeypatch.setattr(host.children, "run", self.run)

    def run(self, line: list[str], env: Environment | None = None) -> int:
        self.line = line
        self.folder = Path((env or os.environ)["OP_TOOLS_RESULTS"])
        assert json.loads((self.folder / "run.json").read_text())["status"] is None
        for number, found in enumerate(self.findings):
            (self.folder / f"findings_pid{number}.json").write_text(json.dumps(found))
        return self.code


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(monkeypatch)


def record(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "run.json").read_text())
    return found


def test_each_run_has_a_folder_with_its_record_and_latest_leads_to_the_newest(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.status(["run", "--time", "train.py", "--lr", "1"]) == 0
    first = program.folder
    program.code = 3
    monkeypatch.setattr(run_folder.os, "getpid", lambda: 1)
    assert cli.status(["run", "--time", "train.py"]) == 3
    assert first.parent == program.folder.parent == Path("op_tools_results")
    assert Path("op_tools_results/latest").resolve() == program.folder.resolve()
    assert run_folder.latest(Path("op_tools_results")) == program.folder.resolve()
    made = record(first)
    assert made["command"] == "deeplink run --time train.py --lr 1"
    assert (made["vendor"], made["device"], made["status"]) == ("cpu", "cpu", 0)
    assert {"torch", "python", "host", "started", "seconds", "deeplink"} <= set(made)
    assert record(program.folder)["status"] == 3


def test_a_named_folder_is_the_folder_of_the_run(program: Program) -> None:
    assert cli.status(["run", "--time", "-o", "night", "train.py"]) == 0
    assert program.folder == Path("night")
    assert record(Path("night"))["status"] == 0
    assert not Path("op_tools_results").exists()


@pytest.mark.parametrize(
    ("kinds", "code", "status"),
    [("wrong", 0, 1), ("nan", 0, 0), ("wrong,nan", 0, 1), ("wrong", 7, 7)],
)
def test_fail_on_makes_findings_of_any_process_the_exit_code(
    kinds: str, code: int, status: int, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.findings, program.code = [{}, {"wrong": 2}, {"wrong": 1}], code
    tools = ["--autocompare", "--overflow"]
    assert cli.status(["run", *tools, "--fail-on", kinds, "train.py", "--fail-on", "x"]) == status
    assert program.line[-3:] == ["train.py", "--fail-on", "x"]
    assert program.line.count("--fail-on") == 1  # the program's own
    assert record(program.folder)["findings"] == {"wrong": 3}
    assert ("--fail-on: 3 wrong" in capsys.readouterr().err) is (status == 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--overflow", "--fail-on", "wrong"], "--fail-on wrong needs --autocompare or --guard"),
        (["--fail-on", "nan"], "--fail-on nan needs --overflow"),
        (["--time", "--fail-on", "slow"], "--fail-on slow: no such finding; allowed: wrong, nan"),
        (["--time", "-o", "train.py"], "train.py cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_before_the_program_starts(
    line: list[str], message: str, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status(["run", *line, "train.py"]) == 2
    said = capsys.readouterr().err
    assert message in said and "\nHint: " in said and not program.line


def test_the_tools_report_their_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import torch_dipu  # noqa: F401
    from op_tools import run as tools

    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    monkeypatch.setenv("OP_TOOLS_RUN", "overflow,autocompare")
    stop = tools.start()
    x = torch.randn(4, 6, device="dipu")
    with torch.dipu.quirk("ignore_strides", "mm"):
        torch.mm(x.t(), x)
    torch.log(torch.zeros(3, device="dipu") - 1)
    stop()
    (file,) = tmp_path.glob("findings_pid*.json")
    found = json.loads(file.read_text())
    assert found["wrong"] >= 1 and found["nan"] == 1
