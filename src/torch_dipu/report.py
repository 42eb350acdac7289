"""What the device's aids say: lines of the dump, of the comparison, of what was forced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torch_dipu import _C
from torch_dipu.comparison import Call, Row, is_number
from torch_dipu.names import WITH_NUMBER, Shown

SHORT = 6  # so many names are written out


def forced(wanted: Mapping[str, int]) -> str:
    """One line: what the CPU runs from now on."""
    if not wanted:
        return "no operator of the device is forced to the CPU any more"
    rows = sorted(wanted.items())
    names = [name.removeprefix("aten::") + _only(mode) for name, mode in rows[:SHORT]]
    more = f" and {len(rows) - SHORT} more" if len(rows) > SHORT else ""
    return f"forced to the CPU, on copies: {', '.join(names)}{more}"


def _only(mode: int) -> str:
    return " (with a number)" if mode == WITH_NUMBER else ""


def dump_before(call: Call, shown: Shown, scalar: Shown | None, level: int, count: int) -> None:
    """The names of a call, and from level 2 on what it is given, before it runs."""
    for one in filter(None, (shown, scalar)):
        print(f"[{one.function}:{count}]:{one.name}  {one.diopi}".rstrip())
    if level > 1:
        for argument, value in call.arguments():
            if not argument.is_out:
                _argument(scalar or shown, argument.name, value, level)


def dump_after(call: Call, shown: Shown, result: Any, level: int) -> None:
    """What a call left: its results, or the arguments that it wrote."""
    written = [
        (argument.name, value)
        for argument, value in call.arguments()
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
    """The verdict on each result and on each argument of a call."""
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
