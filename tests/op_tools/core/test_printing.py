"""Printing never ends the program; rows are on disk also where the program is killed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import op_tools
from deeplink.console import Output, console, table
from op_tools.core import terminal
from tests import warm

CALLS = """
import os, sys, torch, torch_dipu, op_tools
{before}
x = torch.tensor([1.0, 0.0], device="dipu")
kinds = [op_tools.OpAutoCompare, op_tools.OpOverflowCheck, op_tools.OpTimeMeasure,
         op_tools.OpFallback, op_tools.OpDtypeCast, op_tools.OpObserve, op_tools.FlightRecorder]
for kind in kinds:
    with kind(), torch.dipu.quirk("wrong_epsilon", "native_layer_norm"):
        y = x.log() * 0  # 对数
        z = torch.nn.functional.layer_norm(x, (2,), eps=0.5)  # 归一化
open("alive", "w").close()
"""
BROKEN = "read, write = os.pipe(); os.close(read); os.dup2(write, 1); os.dup2(write, 2)"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    Path("program.py").write_text(program, encoding="utf-8")
    return warm.run(["program.py"], {**os.environ, **environment}, warn="ignore")


@pytest.mark.parametrize("verbose", ["0", "1"])
@pytest.mark.parametrize(
    "before",
    [
        "sys.stdout.reconfigure(encoding='ascii', errors='strict')",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        BROKEN,
        "os.close(1); os.close(2)",
    ],
)
def test_a_program_goes_on_where_nothing_can_be_printed(before: str, verbose: str) -> None:
    done = run(CALLS.format(before=before), OP_TOOLS_VERBOSE=verbose)
    assert (done.returncode, Path("alive").exists()) == (0, True), done.stderr


def test_characters_that_the_stream_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.write("y = x  # 对")
    console().print("é", soft_wrap=True)
    assert raw.getvalue() == rb"y = x  # \u5bf9" + b"\n" + rb"\xe9" + b"\n"


def test_text_that_cannot_be_written_is_not_left_in_the_programs_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "__stdout__", stream)
    assert Output().write("a line\n") == 7
    stream.close()  # raises where text was left


# Rows of OpTimeMeasure and OpAutoCompare; the program waits for its own file, and ends at once.

ROWS = """
import os, time, pathlib, torch, torch_dipu, op_tools
x = torch.ones(2, device="dipu")
op_tools.{kind}().start()
for _ in range(3):
    torch.exp(x)
until = time.monotonic() + 30
def rows():
    return sum(len(file.read_text().splitlines()) for file in pathlib.Path().rglob("*.csv"))
while rows() < 4 and time.monotonic() < until:
    pass
os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["OpTimeMeasure", "OpAutoCompare"])
def test_rows_are_on_disk_soon(kind: str, number: int) -> None:
    assert run(ROWS.format(kind=kind, number=number)).returncode == -number
    (file,) = Path().rglob("*.csv")
    header, *rows = file.read_text().splitlines()
    assert "forward_id" in header and all("torch.exp" in row for row in rows)
    column = header.split(",").index("forward_id")
    assert len({row.split(",")[column] for row in rows}) == 3


def test_rows_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("op_tools.core.worker.PERIOD", 0.001)
    x = torch.ones(2, device="dipu")
    with op_tools.OpTimeMeasure(), op_tools.OpAutoCompare():
        for _ in range(300):
            torch.exp(x)
    for file in tmp_path.rglob("*.csv"):
        rows = [row.split(",") for row in file.read_text().splitlines()[1:]]
        found = [(row[0], row[1]) for row in rows]  # an operator or a part of it, and the call
        assert len(found) == len(set(found)) and len(rows) >= 300


MODULE = "model.model.decoder.layers.15.mlp.up_proj"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [("200", MODULE), ("100", "…layers.15.mlp.up_proj"), ("80", "…up_proj"), ("60", "…up_proj")],
)
def test_a_column_of_modules_keeps_the_end_of_a_path(
    columns: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    row = ("torch.nn.functional.linear", "output[0] forward", "train.py:23", MODULE, "12", "27.5")
    terminal.show_table(
        "wrong", ("name", "what", "line", "module", "times", "error / tolerance"), [row]
    )
    assert f" {shown} " in capsys.readouterr().out


def test_times_by_module_keep_the_end_of_a_path_and_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = table("Modules", ("module", "total ms", "share"), [(MODULE, "123.11", "20.3%")], True)
    console().print(lines)
    shown = capsys.readouterr().out.splitlines()[-2].split()
    assert shown == ["…15.mlp.up_proj", "123.11", "20.3%"]
