# SPDX-License-Identifier: Apache-2.0
"""The names that a shared library exports, to find misspelt functions of the interface."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Collection
from functools import cache
from pathlib import Path

PREFIX = "diopi"
RUNTIME = Path(__file__).with_name("include") / "diopi_runtime.h"
MOST = 5  # maximum number of names in one message

DYNSYM = 11  # the type of the section of dynamic symbols
FUNCTION = 2  # the type of a symbol
# formats of a 64-bit ELF file, by byte order: header, section header, symbol
HEADER, SECTION, SYMBOL = "16xHHIQQQIHHHHHH", "IIQQQQIIQQ", "IBBHQQ"


def unknown_functions(path: Path, known: Collection[str]) -> dict[str, str]:
    """Return exported functions that resemble the interface's but are unknown, with the nearest
    name.
    """
    names = sorted(name for name in exported(path) if name.startswith(PREFIX))
    unknown = [name for name in names if name not in known and name not in runtime()]
    found = {name: _near(name, known) for name in unknown}
    for name in exported(path):
        mangled = re.match(r"_Z(\d+)(diopi\w+)", name)  # C++ without its extern "C"
        plain = mangled[2][: int(mangled[1])] if mangled else ""
        if plain in known:
            found[name] = f'{plain}, with extern "C"'
    return found


def format_unknown(unknown: dict[str, str]) -> str:
    """Format unknown names for a message, with the nearest names."""
    rows = [f"{n} (did you mean {near}?)" if near else n for n, near in unknown.items()]
    rest = f" and {len(rows) - MOST} more" if len(rows) > MOST else ""
    return f"{', '.join(rows[:MOST])}{rest}"


def _near(name: str, known: Collection[str]) -> str:
    stems = {_stem(one): one for one in known}
    near = difflib.get_close_matches(_stem(name), stems, n=1, cutoff=0.75)
    return stems[near[0]] if near else ""


def _stem(name: str) -> str:
    """Return the distinguishing part of a name: all names share a prefix."""
    return name.removeprefix(PREFIX).replace("_", "").lower()


@cache
def runtime() -> frozenset[str]:
    """Return the functions of diopi_runtime.h, which every library has."""
    return frozenset(re.findall(r"\b(diopi\w+)\s*\(", RUNTIME.read_text("utf-8")))


@cache
def exported(path: Path) -> tuple[str, ...]:
    """Return the functions that a 64-bit ELF file exports; empty for another kind of file."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return ()
    order = "<" if data[5] == 1 else ">"
    try:
        return tuple(_functions(data, order))
    except (struct.error, IndexError):  # an incomplete file; the loader raises its own error
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
