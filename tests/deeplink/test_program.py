"""A user's program: every usual way to name it means the same program."""

import sys
from pathlib import Path

import pytest

from deeplink import cli
from deeplink.errors import DeeplinkError
from deeplink.run import program
from deeplink.run.program import Program, read

ME = sys.executable


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("start.sh").write_text("#!/bin/sh\n")
    Path("tool").write_text("#!/usr/bin/env python3\n")


SCRIPT = Program("train.py", ("--lr", "1"), "script")
MODULE = Program("pkg.train", ("-m", "x"), "module")
TORCHRUN = Program(program.TORCHRUN, ("--nproc-per-node", "2", "train.py"), "module")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train.py --lr 1", SCRIPT),
        ("-- train.py --lr 1", SCRIPT),
        ("python train.py --lr 1", SCRIPT),
        ("-- python3 train.py --lr 1", SCRIPT),
        (f"{ME} train.py --lr 1", SCRIPT),
        ("python -u -W ignore train.py", Program("train.py", (), "script", ("-u", "-W", "ignore"))),
        ("-m pkg.train -m x", MODULE),
        ("python -m pkg.train -m x", MODULE),
        ("torchrun --nproc-per-node 2 train.py", TORCHRUN),
        ("accelerate launch a.py", Program("accelerate.commands.launch", ("a.py",), "module")),
        ("./tool -x", Program("./tool", ("-x",), "script")),
        ("bash start.sh", Program("bash", ("start.sh",), "command")),
        ("./start.sh", Program("./start.sh", (), "command")),
        ("python -c pass", Program(ME, ("-c", "pass"), "command")),
    ],
)
def test_a_program_is_read(words: str, found: Program) -> None:
    assert read(words.split(), "run") == found


def test_the_line_that_starts_a_program() -> None:
    assert read("python -u train.py 3".split(), "run").line == [ME, "-u", "train.py", "3"]
    assert read("-m pkg 3".split(), "run").line == [ME, "-m", "pkg", "3"]
    assert read("bash start.sh".split(), "run").line == ["bash", "start.sh"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no program was given"),
        ("--", "no program was given"),
        ("python", "python names no program"),
        ("python -u", "python -u names no program"),
        ("-m", "-m needs the name of a module"),
        ("nowhere.py", r"no script 'nowhere.py'.\nHint: the working directory is /"),
        ("python nowhere.py", "no script 'nowhere.py'"),
    ],
)
def test_what_is_no_program_is_refused_with_a_hint(words: str, message: str) -> None:
    with pytest.raises(DeeplinkError, match=message) as caught:
        read(words.split(), "bisect")
    assert caught.value.hint


COMMANDS = ["run", "bisect", "determinism", "why-nan", "diagnose", "one-iter record"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", ["nowhere.py", "python nowhere.py", ""])
def test_every_command_refuses_a_missing_program(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status([*command.split(), *words.split()]) == 2
    said = capsys.readouterr()
    assert "\nHint: " in said.err and "Traceback" not in said.err and not said.out


def test_options_end_where_the_program_starts() -> None:
    line = "--time --steps 3 --vendor cpu python -u train.py --steps 5 --time"
    request = cli.parse("run", line.split())
    assert (request.program, request.arguments) == ("train.py", ("--steps", "5", "--time"))
    assert request.python == ("-u",)
    assert request.values["OP_TOOLS_STEPS"] == "3"
