"""Every op is right on the CPU, by its native kernels where there are any and by its meaning."""

import json
import os
from pathlib import Path

import pytest

from dlinfer.conformance import Case, conformance
from dlinfer.conformance import __main__ as command
from tests import warm

test_the_cpu_kernels = conformance("cpu")


def test_the_command_names_what_is_wrong_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(["", "result 0: off", RuntimeError("no memory")])

    def wrong(case: Case, device: str) -> str:
        found = next(calls, "")
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(command, "wrong", wrong)
    given = ["--vendor", "cpu", "--ops", "silu*", "--dtypes", "float32"]
    assert command.main([*given, "--json", str(tmp_path / "found.json")]) == 1
    printed = capsys.readouterr().out
    assert "result 0: off" in printed and "RuntimeError: no memory" in printed
    (row,) = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert (row["op"], row["kernel"], len(row["wrong"])) == ("silu_and_mul", "cpu", 2)
    assert command.main(given) == 0  # the calls are used up: all are right
    assert "wrong" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        command.main(["--ops", "relu"])


def test_the_command_brings_the_device_of_a_vendor() -> None:
    arguments = ["-m", "dlinfer.conformance", "--vendor", "reference", "--ops", "silu*"]
    done = warm.run(arguments, dict(os.environ))
    assert (done.returncode, "0 wrong" in done.stdout) == (0, True), done.stderr


def test_the_two_lines_of_pytest_bring_the_device_of_a_vendor() -> None:
    program = """
import torch
from dlinfer.conformance import conformance
conformance("reference")("silu_and_mul", torch.float32)
"""
    done = warm.run(["-c", program], dict(os.environ))
    assert done.returncode == 0, done.stderr
