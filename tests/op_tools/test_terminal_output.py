"""Output at a terminal: the lines of the program stay whole, tables fit, names are not broken."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

PROGRAM = """
import torch

layer = torch.nn.Linear(64, 64, bias=False).to("dipu")
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    print(f"step {step} | ", end="", flush=True)
    optimizer.zero_grad()
    loss = layer(torch.ones(3, 64, device="dipu")).sum()
    loss.backward()
    optimizer.step()
    print(f"loss {step * 1.5:.4f} |", flush=True)
"""


def at_a_terminal(folder: Path, columns: int, *words: str, **environment: str) -> str:
    """What a terminal of this width receives of `deeplink run WORDS train.py`."""
    (folder / "train.py").write_text(PROGRAM)
    end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {"DEEPLINK_VENDOR": "reference", "TERM": "xterm-256color", "DEEPLINK_LANG": "en"}
    line = [sys.executable, "-m", "deeplink", "run", *words, "train.py"]
    program = subprocess.Popen(
        line,
        cwd=folder,
        env={**os.environ, **given, **environment},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    received = b""
    while True:
        try:
            data = os.read(end, 1 << 16)
        except OSError:  # the program has closed the terminal
            break
        if not data:
            break
        received += data
    os.close(end)
    assert program.wait(60) == 0
    return received.decode()


@pytest.mark.parametrize(
    "tool", ["--autocompare", "--time", "--capture", "--recorder", "--overflow", "--guard"]
)
def test_no_tool_writes_into_the_lines_of_the_program(tool: str, tmp_path: Path) -> None:
    received = at_a_terminal(tmp_path, 80, tool)
    lines = received.split("\r\n")
    for step in range(4):
        assert f"step {step} | loss {step * 1.5:.4f} |" in lines


def test_names_and_lines_are_whole_at_80_columns(tmp_path: Path) -> None:
    received = at_a_terminal(tmp_path, 80, "--autocompare", DIPU_QUIRKS="ignore_strides:mm")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", received)
    rows = [text for text in plain.split("\r\n") if re.match(r" *torch[.]nn", text)]
    row = rows[0]
    assert "torch.nn.functional.linear" in row and "train.py:9" in row
    assert re.search(r"\x1b\[[0-9;]*31m", received)  # a wrong result is red
