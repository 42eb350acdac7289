"""`run` with tools: the program is not touched, its output, error and exit code are its own."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deeplink import cli, settings
from deeplink.commands import run as options
from deeplink.errors import SettingError
from op_tools import run as tools
from op_tools.core import engine
from tests import warm

PROGRAM = """
import sys, torch

def main():
    layer = torch.nn.Linear(4, 2).to("dipu" if "--dipu" in sys.argv else "cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        layer(torch.ones(3, 4, device=layer.weight.device)).sum().backward()
        optimizer.step()
    print("arguments", sys.argv[1:], __name__)
    if "--fail" in sys.argv:
        torch.mm(layer.weight, torch.ones(3, 3, device=layer.weight.device))
    if "--exit" in sys.argv:
        sys.exit(7)

main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def command(*line: object, **environment: str) -> subprocess.CompletedProcess[str]:
    here = {"DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "reference", **environment}
    return warm.run(["-m", *map(str, line)], {**os.environ, **here}, warn="ignore")


def times() -> list[dict[str, str]]:
    found = []
    for path in Path("op_tools_results").rglob("op_time_measure_result/*.csv"):
        with path.open(newline="") as file:
            found += list(csv.DictReader(file))
    return found


def test_a_cuda_program_is_timed_without_a_line(program: Path) -> None:
    done = command("ditorch", "run", "--time", "--steps", "1", program, "--epochs", "3", "-m", "x")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--epochs', '3', '-m', 'x'] __main__\n" in done.stdout
    assert "Operators, the slowest first" in done.stdout
    linear = [row for row in times() if row["name"] == "torch.nn.functional.linear"]
    assert len(linear) == 1  # of three steps one


def test_deeplink_run_is_the_same_and_keeps_the_exit_code(program: Path) -> None:
    done = command("deeplink", "run", "--time", "--ops", "torch.Tensor.sum", program, "--exit")
    assert done.returncode == 7, done.stderr
    assert {row["name"] for row in times()} == {"torch.Tensor.sum"}


def test_a_programs_error_is_shown_as_its_own_and_the_tools_report(program: Path) -> None:
    done = command("ditorch", "run", "--time", "--overflow", program, "--fail")
    assert done.returncode == 1
    frames = [line.strip() for line in done.stderr.splitlines() if line.startswith("  File")]
    assert [re.sub(r'".*/', '"', frame) for frame in frames] == [
        'File "train.py", line 16, in <module>',
        'File "train.py", line 12, in main',
    ]
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: ")
    assert "Operators, the slowest first" in done.stdout
    assert "OpOverflowCheck" in done.stdout


def test_without_ditorch_on_any_device(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("import torch_dipu" + PROGRAM)
    done = command("op_tools", "run", "--time", "--trace", "t.json", path, "--dipu")
    assert done.returncode == 0, done.stderr
    assert any(event.get("cat") == "module" for event in json.loads(Path("t.json").read_text()))


def test_processes_that_the_program_starts_are_watched(program: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")
    done = command("ditorch", "run", "--time", *launch, program, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    files = list(Path("op_tools_results/op_time_measure_result").glob("*.csv"))
    assert len(files) == 2
    assert "nothing was seen" not in done.stdout  # the launcher itself has nothing to say


def test_import_torch_alone_starts_what_the_environment_names() -> None:
    source = "import torch, torch_dipu; torch.ones(4, device='dipu') + 1"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OP_TOOLS_RUN": "time"},
    )
    assert done.returncode == 0, done.stderr
    assert "Timings written to" in done.stdout


def test_a_bad_word_does_not_break_import_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import torch; print('well')"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OP_TOOLS_RUN": "tme"},
    )
    assert (done.returncode, done.stdout) == (0, "well\n")
    assert "OP_TOOLS_RUN: no tool 'tme'" in done.stderr
    assert "did you mean 'time'?" in done.stderr


# The command line.


def test_what_is_requested_becomes_settings(program: Path) -> None:
    line = ["--time", "--capture", "--fallback", "torch.exp", "--ops", "torch.add,torch.mul"]
    line += ["--steps", "3-5", "--level", "aten", "--verbose", str(program), "--time"]
    request = cli.parse("run", line)
    assert request.arguments == ("--time",)
    assert request.values == {
        "OP_TOOLS_RUN": "capture,time,fallback",
        "OP_CAPTURE_LIST": "torch.add,torch.mul",
        "OP_CAPTURE_FIRST": "1",
        "OP_TIME_MEASURE_LIST": "torch.add,torch.mul",
        "OP_FALLBACK_LIST": "torch.exp",
        "OP_TOOLS_STEPS": "3-5",
        "OP_TOOLS_LEVEL": "aten",
        "OP_TOOLS_VERBOSE": "1",
    }
    known = [setting.name for setting in settings.table()]
    assert set(request.values) <= set(known)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (["--first", "0"], {}),
        ([], {"OP_TOOLS_FIRST": "3"}),
        ([], {"OP_CAPTURE_FIRST": "3"}),
        ([], {"OP_CAPTURE_MODE": "statistics"}),
    ],
)
def test_capture_takes_one_call_of_each_signature_unless_set_otherwise(
    options: list[str],
    environment: dict[str, str],
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    request = cli.parse("run", ["--capture", *options, str(program)])
    assert "OP_CAPTURE_FIRST" not in request.values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fallback", "torch.liner"], "did you mean 'torch.nn.functional.linear'"),
        (["--time", "--ops", "torch.liner"], "OP_TIME_MEASURE_LIST: no operator is named"),
    ],
)
def test_a_misspelt_operator_is_refused_before_the_program_starts(
    options: list[str], message: str, program: Path
) -> None:
    done = command("op_tools", "run", *options, program)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and "Hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--tme", "train.py"], "No such option: --tme"),
        (["--time", "--level", "kernel", "train.py"], "--level kernel: no such choice; allowed:"),
        (["--first", "-1", "--time", "train.py"], "--first"),
        (["--steps", "3", "train.py"], "--steps needs a tool; tools: --capture, --autocompare"),
        (["--steps", "3", "train.py"], "for example: deeplink run --time --steps 3 train.py"),
        (["--time", "--steps", "5-3", "train.py"], "--steps 5-3: the range '5-3' is empty"),
        (["--time"], "no program was given.\nHint: for example: deeplink run train.py"),
        (["--time", "nowhere.py"], "no script 'nowhere.py'.\nHint: the working directory is /"),
        (
            ["--time", "nowhere"],
            "no script 'nowhere'.\nHint: for a module: deeplink run -m",
        ),
        (
            ["--time", "."],
            "'.' is a folder, not a script.\nHint: name a script in it, for example: deeplink run "
            "train.py",
        ),
        (["python", "-c", "pass"], "runs scripts and modules, not `python -c`"),
        (["--time", "-m"], "-m needs the name of a module.\nHint: "),
        (["--fallback", "train.py"], "Hint: --fallback OPS train.py, for example: deeplink run"),
    ],
)
def test_a_bad_line_is_refused_with_its_reason(
    line: list[str], message: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.parse("run", line)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse("run", ["--help"])
    shown = capsys.readouterr().out
    for word in (*options.TOOLS, *options.OPTIONS):
        assert f"--{word}" in shown
    assert "Examples:\n    deeplink run train.py" in shown


def test_each_tool_of_the_command_is_one_of_op_tools() -> None:
    assert set(tools.CLASSES) == set(options.TOOLS)
    for word, name in tools.CLASSES.items():
        found = getattr(__import__("op_tools"), name, None)
        if found is not None:  # each is made by hands of its own
            assert found.key == options.TOOLS[word][0]


def test_an_unknown_tool_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_RUN", "time,overflw")
    with pytest.raises(SettingError, match=r"no tool 'overflw'[^?]*did you mean 'overflow'\?"):
        tools.start()


def test_the_clock_is_inside_of_what_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_RUN", "overflow,time,fallback")
    monkeypatch.setenv("OP_FALLBACK_LIST", "torch.exp")
    stop = tools.start()
    try:
        assert [type(tool).__name__ for tool in engine.active()] == [
            "OpFallback",
            "OpTimeMeasure",
            "OpOverflowCheck",
        ]
        assert tools.start() is stop and len(engine.active()) == 3
    finally:
        stop(quiet=True)
    assert engine.active() == []


LINES_WITH_FOLDERS = [
    ["why-nan", "-o", "{file}", "--", "python", "train.py"],
    ["diagnose", "-o", "{file}", "--symptom", "nan", "--", "python", "train.py"],
    ["bisect", "--to", "{file}", "--", "python", "train.py"],
    ["determinism", "-o", "{file}", "train.py"],
    ["one-iter", "record", "--to", "{file}", "{program}"],
    ["run", "--time", "--results", "{file}", "{program}"],
    ["run", "--time", "--config", "{file}/none", "{program}"],
    ["run", "--time", "--trace", "{file}/trace.json", "{program}"],
    ["diff", "{file}/none", "{file}/none"],
    ["report", "{file}/none"],
]


@pytest.mark.parametrize("line", LINES_WITH_FOLDERS, ids=lambda line: " ".join(line[:3]))
def test_a_path_that_cannot_be_is_one_message(
    line: list[str], program: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a_file"
    file.touch()
    done = command("op_tools", *(w.format(file=file, program=program) for w in line))
    assert done.returncode == 2, done.stderr
    assert str(file) in done.stderr and "\nHint: " in done.stderr
    assert "Traceback" not in done.stderr and "arguments" not in done.stdout


WHERE = """
import sys
print(__file__, sys.path[0], sys.argv, vars(sys.modules["__main__"]) is globals())
"""


@pytest.mark.parametrize("script", ["sub/where.py", "./sub/../sub/where.py", "link.py"])
@pytest.mark.parametrize("package", ["op_tools", "ditorch"])
def test_a_script_gets_its_file_path_and_arguments_as_python_gives_them(
    script: str, package: str, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "where.py").write_text(WHERE)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "where.py")
    plain = subprocess.run(
        [sys.executable, script, "a", "--b"], capture_output=True, text=True, check=True
    )
    assert command(package, "run", script, "a", "--b").stdout == plain.stdout


def test_a_module_gets_its_path_and_arguments_as_python_gives_them(tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text(WHERE)
    line = ["-m", "where", "a"]
    plain = subprocess.run([sys.executable, *line], capture_output=True, text=True, check=True)
    assert command("op_tools", "run", *line).stdout == plain.stdout


@pytest.mark.parametrize("line", ["ditorch run", "deeplink bisect", "deeplink why-nan"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DIPU_DEVICE_COUNT": "99"}, "DIPU_DEVICE_COUNT='99' is not allowed"),
        ({"DEEPLINK_VENDOR": "no-such"}, "no vendor 'no-such'; installed: "),
        ({"DIPU_QUIRKS": "no-such"}, "no quirk 'no-such'; there are: "),
        ({"DIPU_BUILD_DIR": "{file}"}, "cannot write the build of "),
        ({"DIPU_BUILD_DIR": "{folder}", "CXX": "no-such-compiler"}, "(CXX=no-such-compiler)"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_device_that_cannot_be_is_one_message(
    line: str, settings: dict[str, str], message: str, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "a_file").touch()
    places = {"file": tmp_path / "a_file", "folder": tmp_path / "empty"}
    given = {name: value.format(**places) for name, value in settings.items()}
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # a process of its own: no device is loaded in it
        [sys.executable, "-m", *line.split(), str(program)],
        env={**os.environ, **here, **given}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "\nHint: " in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_misspelt_variable_is_reported_when_a_program_starts(program: Path) -> None:
    done = command("deeplink", "run", "--vendor", "cpu", program, DITORCH_QUIET="0", DIPU_QUIRK="x")
    text = "DIPU_QUIRK is set, but nothing reads it; did you mean DIPU_QUIRKS?"
    assert text in done.stderr
    done = command("deeplink", "run", "--quiet", "--vendor", "cpu", program, DIPU_QUIRK="x")
    assert text not in done.stderr
