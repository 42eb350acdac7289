"""`deeplink new-vendor`: the package that it writes passes the doctor at once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deeplink import cli

SRC = Path(__file__).parents[2] / "src"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "DEEPLINK_VENDOR"}
    done = subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("language", ["python", "c"])
def test_a_new_vendor_passes_the_doctor(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if language == "c" and not (shutil.which("make") and shutil.which("cc")):
        pytest.skip("no C compiler or no make")
    place, site = tmp_path / "zork", tmp_path / "site"
    assert cli.status(["new-vendor", "zork", "--language", language, "-o", str(place)]) == 0
    commands = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert commands[-1] == "deeplink doctor --vendor zork"
    if language == "c":
        assert commands[0] == f"make -C {place}"
        run("make", "-C", str(place), f"PYTHON={sys.executable}", "CFLAGS=-O1")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--target")
    run(*pip, *options, str(site), str(place))
    path = os.pathsep.join([str(site), str(SRC)])
    doctor = (sys.executable, "-m", "deeplink", "doctor", "--vendor", "zork", "--json")
    report = json.loads(run(*doctor, PYTHONPATH=path).stdout)
    assert report["problems"] == []
    assert {check["status"] for check in report["self_test"]} <= {"ok", "skipped"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Zork-1"], "'Zork-1' is not a vendor's name"),
        (["reference"], "vendor 'reference' is installed already"),
        (["zork", "-o", "taken"], "taken exists already"),
        (["zork", "-o", "taken/file/zork"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    assert cli.status(["new-vendor", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and "\nHint: " in said
