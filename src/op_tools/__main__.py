"""`python -m op_tools run --time train.py …`: a program under the tools, on any device."""

from __future__ import annotations

import importlib
import sys

from deeplink import one_iter, running
from op_tools.run import start

HELP = """usage: python -m op_tools COMMAND …

commands:
  run [tools] train.py …   a program as it is, under the tools; `run --help` teaches
  one-iter record|compare  one iteration, layer by layer, against another device's
  diagnose -- python …     asks what is wrong, and runs the right tools
  why-nan -- python …      the kernel that made the first NaN
  report RUN [-o FILE]     one HTML page from what a run has written
  bisect -- python train.py …       which operators make it wrong
  diff RUN_A RUN_B                  two recorded runs: where they part
  determinism -- python train.py …  which operator is not the same twice
  monitor --pid P          CPU, memory and device memory of a process, until it ends

captured calls again: python -m op_tools.run_op_from_data --help
"""

# of op_tools.diagnosis
COMMANDS = {"report": "report.cli", "why-nan": "nan.cli", "diagnose": "diagnose"}


def main(line: list[str]) -> int:
    """The exit code; a program's own error passes through."""
    command, rest = (line[0], line[1:]) if line else ("--help", [])
    if command == "run":
        running.run(running.parse("python -m op_tools run", rest), start)
        return 0
    if command == "one-iter":
        running.run(one_iter.parse("python -m op_tools one-iter", rest), start)
        return 0
    if command in COMMANDS:
        module = importlib.import_module(f"op_tools.diagnosis.{COMMANDS[command]}")
        return int(module.main(rest))
    if command in ("bisect", "diff", "determinism"):
        from op_tools.diagnosis import cli as diagnosis

        return diagnosis.main(command, rest)
    if command == "monitor":
        from op_tools import process_monitor

        return process_monitor.main(rest)
    print(HELP)
    return 0 if command in ("-h", "--help", "help") else 2


if __name__ == "__main__":
    with running.errors_as_text():
        sys.exit(main(sys.argv[1:]))
