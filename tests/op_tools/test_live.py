"""The live line at a terminal does not mix into the program's own lines."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios

PROGRAM = """
import sys
from op_tools.core import live_line

live_line.show("[op_tools] step 0")
print("begin")
live_line.show("[op_tools] step 1: 193 calls, 10 wrong")
print("step 0 | loss 16.6")
live_line.show("[op_tools] step 2: 386 calls, 20 wrong")
print("half a ", end="", flush=True)
live_line.show("[op_tools] step 3: 579 calls, 30 wrong")
print("line")
live_line.show("[op_tools] step 4: " + "a long text " * 40)
print("error", file=sys.stderr)
live_line.end()
assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)
print("end")
"""


def at_a_terminal(source: str) -> str:
    """The bytes that a terminal of 80 columns gets from a program."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    line = [sys.executable, "-c", source]
    child = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while block := os.read(ours, 4096):
            text += block
    except OSError:  # Linux: the other side is closed
        pass
    os.close(ours)
    assert child.wait() == 0, text
    return text.decode()


def test_each_line_on_the_screen_is_the_programs_own() -> None:
    text = at_a_terminal(PROGRAM)
    assert "[op_tools] step 1: 193 calls, 10 wrong" in text
    shown = [re.split("\r\x1b\\[K", line)[-1] for line in text.split("\r\n")]
    assert shown == ["begin", "step 0 | loss 16.6", "half a line", "error", "end", ""]
    drawn = re.findall(r"\[op_tools\][^\r]*", text)
    assert len(drawn) == 3 and max(map(len, drawn)) < 80


WITHOUT_STDOUT = """
import sys
from op_tools.core import live_line

sys.stdout = None
live_line.show("[op_tools] step 0")
print("begin", file=sys.stderr)
live_line.show("[op_tools] step 1")
print("end", file=sys.stderr)
live_line.end()
"""


def test_the_line_is_shown_where_there_is_no_standard_output() -> None:
    text = at_a_terminal(WITHOUT_STDOUT)
    assert "[op_tools] step 1" in text
    assert [re.split("\r\x1b\\[K", line)[-1] for line in text.split("\r\n")] == ["begin", "end", ""]
