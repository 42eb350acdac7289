"""Help: every command answers quickly, without torch, with examples and exit codes."""

import re
import resource
import subprocess
import sys

import pytest

from deeplink import cli
from deeplink.commands import common

NAMES = [name for _, name, _ in cli.COMMANDS]
SUB = {"one-iter": ("record", "compare"), "cache": ("info", "clean")}
LINES = [[], *([name] for name in NAMES), *([n, m] for n, more in SUB.items() for m in more)]
CPU_SECONDS = 3.0  # generous: 0.2 s is usual; importing torch alone takes 1.5 s and more


def shown(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.status([*line, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_help_has_examples_and_exit_codes(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(line, capsys)
    assert text.startswith(" ".join(["Usage: deeplink", *line]))
    assert re.search(r"^ +Examples:\n +.*deeplink " + " ".join(line), text, re.MULTILINE)
    assert not line or re.search(r"^ +Exit codes:\n +\S", text, re.MULTILINE)
    assert all(len(row) <= 100 for row in text.splitlines())


def test_every_command_is_listed_in_a_group_with_its_whole_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown([], capsys)
    for group in ("Run", "Diagnose", "Inspect", "Bring up a device"):
        assert f"\n{group}:\n" in text
    for name in NAMES:
        (summary,) = re.findall(rf"^  {name} +(\S.*)$", text, re.MULTILINE)
        assert "..." not in summary and len(summary) <= 60
        assert summary in shown([name], capsys)


CODE = """
import sys
from deeplink import cli
code = cli.status([*{line!r}, "--help"])
assert code == 0, code
print("modules", [name for name in ("torch", "numpy") if name in sys.modules])
"""


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_help_imports_no_torch(line: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(line=line)], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "modules []"
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < CPU_SECONDS


def test_a_misspelt_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.status(["docter"]) == 2
    assert "No such command 'docter'. Did you mean 'doctor'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --fallbak gelu train.py", "--fallback"),
        ("report --serv x", "--serve"),
        ("bisect --level kernel train.py", "'aten', 'api'"),
        ("diagnose --symptom los train.py", "'loss', 'nan', 'slow', 'hang', 'memory'"),
        ("why-nan --steps 5-3 train.py", "--steps 5-3: the range '5-3' is empty"),
        ("bisect --loss-pattern ( train.py", "is not a regular expression"),
        ("report nowhere", "there is nothing at nowhere"),
        ("diff a", "diff compares two runs, found 1: a."),
        ("diff a b", "there is nothing at a"),
        ("one-iter compare nowhere train.py", "no record at 'nowhere'"),
        ("flight-record nowhere", "no flight record at nowhere"),
        ("coverage nowhere.py", "no file or folder 'nowhere.py'"),
        ("serve --model nowhere", "it has no config.json"),
        ("replay nowhere", "nowhere"),
        ("conformance --tier quik", "did you mean 'quick'?"),
        ("conformance --vendor no-such", "no vendor 'no-such'"),
        ("compile-report nowhere.json", "nowhere.json"),
        ("run --vendor no-such train.py", "no vendor 'no-such'"),
        ("bisect --vendor no-such train.py", "no vendor 'no-such'"),
    ],
)
def test_a_mistake_is_one_message_before_anything_starts(
    line: str,
    message: str,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(str(tmp_path))
    open("train.py", "w").close()
    assert cli.status(line.split()) == 2
    said = capsys.readouterr()
    assert message in said.err, said
    assert "Traceback" not in said.err
    assert "Hint: " in said.err or "--help" in said.err or "-h' for help" in said.err


def test_old_names_of_options_mean_the_new_ones() -> None:
    request = cli.parse("run", ["--time", "--results", "out", "-m", "pkg"])
    assert request.values["OP_TOOLS_RESULTS"] == "out"
    assert common.OLD_NAMES["--to"] == "--output"
