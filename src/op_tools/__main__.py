# SPDX-License-Identifier: Apache-2.0
"""`python -m op_tools run --time train.py …`: a program under the tools, on any device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deeplink import cli
from deeplink.commands.host import Host
from deeplink.errors import DeeplinkError
from deeplink.run import runner

COMMANDS = (
    "run", "one-iter", "diagnose", "why-nan", "report", "bisect", "diff", "determinism", "replay",
)  # fmt: skip


class Here(Host):
    """Runs the program in this process, on the device that the program itself names."""

    @contextmanager
    def searching(self) -> Iterator[None]:
        yield

    def program(self, word: str, request: runner.Request, line: Sequence[str]) -> int:
        if request.fail_on:
            raise DeeplinkError("--fail-on is an option of `deeplink run`.", "use `deeplink run`.")
        from op_tools.run import start

        runner.run(request, start)
        return 0


def main(line: Sequence[str]) -> int:
    """The exit code; a program's own error passes through."""
    if line[:1] == ["monitor"]:
        from op_tools import process_monitor

        return process_monitor.main(line[1:])
    return cli.status(line, "python -m op_tools", Here(), COMMANDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
