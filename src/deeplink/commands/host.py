# SPDX-License-Identifier: Apache-2.0
"""Where a command's program runs: in this process, or in one that it starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deeplink import settings
from deeplink.console import console
from deeplink.errors import SettingError
from deeplink.i18n import _
from deeplink.process import children
from deeplink.run.run_folder import RunFolder
from deeplink.run.runner import Request
from deeplink.vendor import choose, load_device, using

DITORCH = "ditorch"
FAIL_ON = "--fail-on"


class Host:
    """The host of `deeplink`: `python -m ditorch` runs the program,
    so that its process alone has a patched torch.
    """

    @contextmanager
    def searching(self) -> Iterator[None]:
        """A block that starts the program several times: CUDA means the device in its processes.

        Load the device once, before: raise for one that cannot be loaded, and build its native
        parts where their progress is visible.
        """
        check_settings()
        if settings.DITORCH.get() or not settings.DITORCH.is_set():
            load_device(choose().vendor)
        with settings.activated_children():
            yield

    def program(self, word: str, request: Request, line: Sequence[str]) -> int:
        """Run the program of a request; the exit code. `line` holds the words after the command."""
        start = [sys.executable, *request.python, "-m", DITORCH, word]
        with using(request.vendor):  # before the process of the program loads a device
            check_settings()
            if word != "run" or not request.values.get(settings.OP_TOOLS_RUN.name):
                return children.run([*start, *line])
            folder = RunFolder.of(request, ["deeplink", word, *line])
            values = {settings.OP_TOOLS_RESULTS.name: str(folder.path)}
            own = _without_fail_on(line) if request.fail_on else line
            status = children.run([*start, *own], env=settings.environment(values))
        found = folder.finish(status)
        console(stderr=True).print(
            _("results: {path}").format(path=folder.path), style="dim", soft_wrap=True
        )
        failing = {kind: found[kind] for kind in request.fail_on if found.get(kind)}
        if status or not failing:
            return status
        counts = ", ".join(f"{count} {kind}" for kind, count in failing.items())
        console(stderr=True).print(
            _("--fail-on: {counts}").format(counts=counts), style="red", soft_wrap=True
        )
        return 1

    def patched(self, word: str, line: Sequence[str], here: Callable[[], int]) -> int:
        """Run a command that patches torch; `here` runs it in this process."""
        return children.run([sys.executable, "-m", DITORCH, word, *line])


def _without_fail_on(line: Sequence[str]) -> list[str]:
    """The words for the process of the program, which does not decide about its exit code."""
    kept = list(line)
    at = next(i for i, word in enumerate(kept) if word.partition("=")[0] == FAIL_ON)
    del kept[at : at + 1 + (kept[at] == FAIL_ON)]
    return kept


def check_settings() -> None:
    """Raise SettingError for a setting that is not allowed; show variables that nothing reads."""
    for row in settings.in_force():
        if row.problem:
            raise SettingError(row.problem)
    if not settings.DITORCH_QUIET.get():
        for variable in settings.unknown():
            text = settings.warning(variable)
            console(stderr=True).print(text, style="yellow", soft_wrap=True)


class Recording(Host):
    """Runs nothing: keeps what a command line asks for."""

    def __init__(self) -> None:
        self.request: Request | None = None

    def program(self, word: str, request: Request, line: Sequence[str]) -> int:
        self.request = request
        return 0


def of(context: Any) -> Host:
    """The host that was given to the application."""
    return context.obj if isinstance(context.obj, Host) else Host()
