# SPDX-License-Identifier: Apache-2.0
"""`python -m ditorch run train.py …`: run an unchanged CUDA program on the vendor's device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from deeplink import cli, settings
from deeplink.commands.host import Host
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run import runner

COMMANDS = ("run", "one-iter", "pytorch-tests", "coverage")


class InThisProcess(Host):
    """Runs the program in this process, whose torch represents the device as CUDA."""

    def program(self, word: str, request: runner.Request, line: Sequence[str]) -> int:
        if request.fail_on:
            raise DeeplinkError(
                _("--fail-on is an option of `deeplink run`."), _("use `deeplink run`.")
            )
        from ditorch import session

        settings.watch_children(request.values)  # the vendor is one of the values
        settings.activate_children()
        session.activate(request.vendor or None)
        runner.run(request)
        return 0

    def patched(self, word: str, line: Sequence[str], here: Callable[[], int]) -> int:
        return here()


if __name__ == "__main__":
    sys.exit(cli.status(sys.argv[1:], "python -m ditorch", InThisProcess(), COMMANDS))
