# SPDX-License-Identifier: Apache-2.0
"""OpObserve: prints the arguments and the result of each call."""

from __future__ import annotations

from typing import Any

from deeplink.i18n import _
from op_tools.core import terminal
from op_tools.core.call import Call
from op_tools.core.tool import Observer, Started


class OpObserve(Observer):
    """Prints a table for each call."""

    key = "OBSERVE"
    hook = "OpObserveHook"

    def before(self, call: Call) -> list[tuple[object, ...]]:
        return terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)

    def after(self, call: Call, state: list[tuple[object, ...]], result: Any) -> None:
        rows = state + terminal.tensor_rows(f"{call.name} outputs", result)
        terminal.show_call(f"{call.name}  {call.id}", call, rows)

    def finish(self, started: Started) -> None:
        terminal.summary(
            self,
            started,
            [_("OpObserve: {applied} {applied:call|calls} shown").format(applied=started.applied)],
        )
