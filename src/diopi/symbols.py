# SPDX-License-Identifier: Apache-2.0
"""The names that a shared library exports, read from its file: those that nobody would ask for."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Collection
from functools import cache
from pathlib import Path

PREFIX = "diopi"
RUNTIME = Path(__file__).with_name("include") / "diopi_runtime.h"
MOST = 5  # names in one message

DYNSYM = 11  # the type of the section of dynamic symbols
FUNCTION = 2  # the type of a symbol
# of a 64-bit ELF file, by its byte order: header, section header, symbol
HEADER, SECTION, SYMBOL = "16xHHIQQQIHHHHHH", "IIQQQQIIQQ", "IBBHQQ"


def strangers(path: Path, known: Collection[str]) -> dict[str, str]:
    """The functions named like the interface's that are none of it, each with what was meant."""
    names = sorted(name for name in exported(path) if name.startswith(PREFIX))
    unknown = [name for name in names if name not in known and name not in runtime()]
    found = {name: _near(name, known) for name in unknown}
    for name in exported(path):
        mangled = re.match(r"_Z(\d+)(diopi\w+)", name)  # C++ without its extern "C"
        plain = mangled[2][: int(mangled[1])] if mangled else ""
        if plain in known:
            found[name] = f'{plain}, with extern "C"'
    return found


def told(unknown: dict[str, str]) -> str:
    """The unknown names in a sentence, with what was meant."""
    rows = [f"{n} (did you mean {near}?)" if near else n for n, near in unknown.items()]
    rest = f" and {len(rows) - MOST} more" if len(rows) > MOST else ""
    return f"{', '.join(rows[:MOST])}{rest}"


def _near(name: str, known: Collection[str]) -> str:
    stems = {_stem(one): one for one in known}
    near = difflib.get_close_matches(_stem(name), stems, n=1, cutoff=0.75)
    return stems[near[0]] if near else ""


def _stem(name: str) -> str:
    """What tells the names apart: all of them begin alike."""
    return name.removeprefix(PREFIX).replace("_", "").lower()


@cache
def runtime() -> frozenset[str]:
    """The functions of diopi_runtime.h, which every library has."""
    return frozenset(re.findall(r"\b(diopi\w+)\s*\(", RUNTIME.read_text("utf-8")))


@cache
def exported(path: Path) -> tuple[str, ...]:
    """The functions that a 64-bit ELF file defines for others; none of a file of another kind."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return ()
    order = "<" if data[5] == 1 else ">"
    try:
        return tuple(_functions(data, order))
    except (struct.error, IndexError):  # a file that is cut off; the loader has its own words
        return ()


def _functions(data: bytes, order: str) -> list[str]:
    header = struct.unpack_from(order + HEADER, data)
    first, size, count = header[5], header[10], header[11]
    tables = [struct.unpack_from(order + SECTION, data, first + size * i) for i in range(count)]
    names = []
    for table in (t for t in tables if t[1] == DYNSYM):
        strings = tables[table[6]][4]
        for at in range(table[4], table[4] + table[5], table[9]):
            name, info, _, section, _, _ = struct.unpack_from(order + SYMBOL, data, at)
            if info & 15 == FUNCTION and section:
                end = data.index(b"\0", strings + name)
                names.append(data[strings + name : end].decode(errors="replace"))
    return names
