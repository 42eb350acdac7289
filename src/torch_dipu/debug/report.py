# SPDX-License-Identifier: Apache-2.0
"""The printed lines of the device's debugging aids: dump, comparison, forced operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torch_dipu import _C
from torch_dipu.debug.op_compare import Call, Row, is_number
from torch_dipu.op_patterns import WITH_NUMBER, Shown

SHORT = 6  # maximum number of names in a line


def forced(wanted: Mapping[str, int]) -> str:
    """Format one line with the operators that are forced to the CPU."""
    if not wanted:
        return "no operator of the device is forced to the CPU"
    rows = sorted(wanted.items())
    names = [name.removeprefix("aten::") + _only(mode) for name, mode in rows[:SHORT]]
    more = f" and {len(rows) - SHORT} more" if len(rows) > SHORT else ""
    return f"forced to the CPU, on copies: {', '.join(names)}{more}"


def _only(mode: int) -> str:
    return " (with a number)" if mode == WITH_NUMBER else ""


class Dump:
    """One call in the dump: its names, and the function of the vendor that runs it.

    `runners` are the routes that are tried before the host; None where no vendor's kernels are
    bound. The dump then names the function of the interface that implements the operator.
    """

    def __init__(
        self,
        call: Call,
        count: int,
        own: Shown,
        scalar: Shown | None,
        runners: Sequence[_C.Route] | None,
    ) -> None:
        self.call, self.count, self.names = call, count, [own, *filter(None, [scalar])]
        self._runners = runners
        self._calls = [route.calls for route in runners or ()]

    def function(self, shown: Shown) -> str:
        """Return the function of a name; "" where the host runs the call."""
        if self._runners is None:
            return shown.diopi
        functions = self._expected()
        if shown.diopi in functions:
            return shown.diopi
        return functions[0] if functions and shown is self.names[-1] else ""

    def other_runner(self) -> str:
        """Return what ran the call if the named function did not: a kernel may refuse a call."""
        if not self._expected():
            return ""
        for route, before in zip(self._runners or (), self._calls, strict=True):
            if route.calls > before:
                return "" if route is (self._runners or ())[0] else route.who
        return "the CPU"

    def _expected(self) -> list[str]:
        first = next(iter(self._runners or ()), None)
        return first.who.split(", ") if first is not None and first.kind == "kernel" else []


def dump_before(dump: Dump, level: int) -> None:
    """Print the names of a call, and from level 2 on its inputs, before it runs."""
    for one in dump.names:
        print(f"[{one.function}:{dump.count}]:{one.name}  {dump.function(one)}".rstrip())
    if level > 1:
        for argument, value in dump.call.arguments():
            if not argument.is_out:
                _argument(dump.names[-1], argument.name, value, level)


def dump_after(dump: Dump, result: Any, level: int) -> None:
    """Print what ran a call, if not the named function, and from level 2 on its results or the
    arguments that it wrote.
    """
    shown = dump.names[-1]
    if other := dump.other_runner():
        print(f"[{shown.function}:{dump.count}]: run by {other}")
    if level == 1:
        return
    written = [
        (argument.name, value)
        for argument, value in dump.call.arguments()
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    for name, value in written or [("out", result)]:
        _argument(shown, name, value, level)
    print(flush=True)


def _argument(shown: Shown, name: str, value: Any, level: int) -> None:
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        for at, item in enumerate(value):
            _argument(shown, f"{name}[{at}]", item, level)
    elif isinstance(value, Tensor) and not is_number(value):
        print(f"\t{shown.name}: {name}:{_C.described(value)}")
        if level > 2:
            print(_C.values_of(value))
    else:
        print(f"\t{shown.name}: {name}:{value.item() if isinstance(value, Tensor) else value}")


def autocompare(shown: Shown, rows: Sequence[Row]) -> None:
    """Print the verdict on each result and on each argument of a call."""
    print(f"\n{shown.function}_autocompare")
    for row in rows:
        head = f"autocompare:    {shown.name} {row.label}:"
        verdict = "allclose" if row.verdict.passed else f"not_allclose: {row.verdict}"
        if row.result:
            print(head)
            print(f"\t{_C.described(row.host)}")
            print(f"\t{_C.described(row.device)}")
            print(f"\t{verdict}")
        else:
            print(f"{head} {verdict}")
