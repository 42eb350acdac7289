# SPDX-License-Identifier: Apache-2.0
"""The type of a setting and its kinds, which convert a text to a value."""

import difflib
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Generic, TypeVar

from deeplink.errors import SettingError
from deeplink.i18n import _
from deeplink.settings.file import File, as_text, current
from deeplink.settings.groups import KEYS

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: name, parser, default and documentation.

    Its key in the settings file, if it has one, is in `groups.KEYS`.
    """

    name: str
    parse: Callable[[str], T]  # raises ValueError with a reason for a text that is not allowed
    default: Callable[[], T]
    doc: str
    allowed: str
    show: Callable[[T], str] = str
    empty_counts: bool = False  # set to the empty text is a value, as an empty list is

    def get(self, section: str = "", source: File | None = None) -> T:
        """Return the value in force: of the environment, else of the settings file, else the
        default.

        With `section`, the key of [section] overrides that of [tools]; `source` replaces the
        settings
        file. Raise SettingError for a value that is not allowed.
        """
        where, text = self._source_and_text(section, source)
        if not where:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(
                _("{where}={text!r} is not allowed: {error}; allowed: {allowed}.").format(
                    where=where, text=text, error=error, allowed=self.allowed
                ),
                (
                    _("remove {where} for the default, {default!r}.")
                    if ":" in where
                    else _("unset {where} for the default, {default!r}.")
                ).format(
                    where=where,
                    default=self.show(self.default()) or _("empty"),
                ),
            ) from None

    def is_set(self, section: str = "", source: File | None = None) -> bool:
        """Whether the environment or the settings file gives a value."""
        return bool(self._source_and_text(section, source)[0])

    def text(self) -> str:
        """Return the text of the value in force, allowed or not; "" where none is set."""
        return self._source_and_text("", None)[1]

    def origin(self) -> str:
        """Return the origin of the value in force: "environment", "default", or the path of the
        file,
        relative to the working directory.
        """
        where, _, _ = self._source_and_text("", None)[0].partition(": ")
        if where in ("", self.name):
            return "environment" if where else "default"
        return where.removeprefix(f"{Path.cwd()}{os.sep}")

    def _source_and_text(self, section: str, source: File | None) -> tuple[str, str]:
        """Return the source of the value ("" for none) and its text.

        A variable set to the empty text selects the default, whatever the file contains.
        """
        text = os.environ.get(self.name)
        if text is not None:
            text = text.strip()
            return (self.name, text) if text or self.empty_counts else ("", "")
        key = KEYS.get(self.name)
        if key is None:
            return "", ""
        file = current() if source is None else source
        if section and key.startswith("tools."):
            own = f"{section}.{key.removeprefix('tools.')}"
            key = own if own in file.values else key
        if key not in file.values:
            return "", ""
        text = as_text(file.values[key]).strip()
        return (f"{file.path}: {key}", text) if text or self.empty_counts else ("", "")


def text(name: str, default: str, doc: str, allowed: str = _("any text")) -> Setting[str]:
    """Define a setting whose text is used unchanged."""
    return Setting(name, str, lambda: default, doc, allowed)


def ranges(value: str) -> tuple[tuple[int, float], ...]:
    """Parse numbers and ranges of numbers, "3,10-20,100-"; ValueError for an empty range."""
    found: list[tuple[int, float]] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        match = re.fullmatch(r"(\d+)(-(\d*))?", part)
        if match is None:
            raise ValueError(
                _("{part!r} is neither a number nor a range of numbers").format(part=part)
            )
        first = int(match[1])
        end = first if match[2] is None else float(match[3] or "inf")
        if end < first:
            raise ValueError(
                _("the range {part!r} is empty: it ends before it begins").format(part=part)
            )
        found.append((first, end))
    return tuple(found)


def steps(name: str, doc: str) -> Setting[str]:
    """Define numbers and ranges of numbers, kept as text."""

    def parse(value: str) -> str:
        ranges(value)
        return value

    return Setting(name, parse, lambda: "", doc, _("numbers and ranges, as 3,10-20,100-"))


def integer(
    name: str, default: int, doc: str, minimum: int | None = None, maximum: int | None = None
) -> Setting[int]:
    """Define an integer within optional bounds."""
    allowed = _("a whole number") + _bounds(minimum, maximum, str)

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(_("it is not a whole number")) from None
        return _within(number, minimum, maximum, str)

    return Setting(name, parse, lambda: default, doc, allowed)


def parse_share(value: str) -> float:
    """Parse a share, "1%" or "0.01"; ValueError unless it is above 0 and at most 1."""
    try:
        found = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ValueError(_("it is not a share")) from None
    if not 0 < found <= 1:
        raise ValueError(_("it is not above 0% and at most 100%"))
    return found


def parse_limit(value: str) -> float:
    """Parse a share that is a limit; "none" is infinite."""
    return math.inf if value.lower() == "none" else parse_share(value)


def share(name: str, default: T, doc: str) -> Setting[float | T]:
    """Define a share, as a percentage or a number up to 1."""
    return Setting(
        name, parse_share, lambda: default, doc, _("a share, as 1% or 0.01"), _share_text
    )


def limit(name: str, doc: str) -> Setting[float | None]:
    """Define a share that is a limit, or "none"; None when not set: the tool decides."""
    return Setting(name, parse_limit, lambda: None, doc, _("a share, as 25%, or none"), _share_text)


def _share_text(value: object) -> str:
    if value is None:
        return ""
    return "none" if value == math.inf else f"{value:.12g}"


def boolean(name: str, default: bool, doc: str) -> Setting[bool]:
    """Define a boolean, in the usual spellings."""
    spellings = {"1": True, "true": True, "yes": True, "on": True}
    spellings |= {"0": False, "false": False, "no": False, "off": False}

    def parse(value: str) -> bool:
        if value.lower() not in spellings:
            raise ValueError(_("it is neither yes nor no"))
        return spellings[value.lower()]

    return Setting(
        name, parse, lambda: default, doc, ", ".join(spellings), lambda b: "1" if b else "0"
    )


def size(name: str, default: int, doc: str, minimum: int = 0) -> Setting[int]:
    """Define a number of bytes, plain or with a unit; units are powers of 1024."""
    allowed = _("bytes, such as 16GiB, 512M or 1048576") + _bounds(minimum or None, None, show_size)
    return Setting(
        name,
        lambda value: _within(parse_size(value), minimum, None, show_size),
        lambda: default,
        doc,
        allowed,
        show_size,
    )


def words(name: str, default: Sequence[str], doc: str) -> Setting[tuple[str, ...]]:
    """Define a comma-separated list; blanks around a word and empty words are dropped."""

    def parse(value: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in value.split(",") if word.strip())

    return Setting(
        name, parse, lambda: tuple(default), doc, _("words, with commas between"), ",".join
    )


def operators(name: str, default: Sequence[str], doc: str) -> Setting[tuple[str, ...]]:
    """Define a list of operators; set to the empty text it is the empty list,
    which matches nothing.
    """
    allowed = _("full names or regular expressions, with commas between")
    return Setting(name, split_list, lambda: tuple(default), doc, allowed, ",".join, True)


def split_list(text: str) -> tuple[str, ...]:
    """Split a list into trimmed entries; a comma inside brackets belongs to its entry."""
    entries, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            entries.append(text[start:at])
            start = at + 1
    entries.append(text[start:])
    return tuple(entry.strip() for entry in entries if entry.strip())


def tolerance(name: str, doc: str) -> Setting[tuple[float, float] | None]:
    """Define `atol,rtol`, as in the published documents; None when it is not set."""

    def parse(value: str) -> tuple[float, float]:
        try:
            atol, rtol = (float(part) for part in value.split(","))
        except ValueError:
            raise ValueError(_("it is not two numbers with a comma between")) from None
        if not (atol >= 0 and rtol >= 0):
            raise ValueError(_("a tolerance is not negative"))
        return atol, rtol

    return Setting(
        name, parse, lambda: None, doc, _("atol,rtol, such as 1e-3,1e-4"), _show_tolerance
    )


def _show_tolerance(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:g},{pair[1]:g}"


def casts(name: str, default: str, doc: str) -> Setting[dict[str, str]]:
    """Define `torch.float16->torch.float32,…` as a dict of type names without "torch."."""

    def parse(value: str) -> dict[str, str]:
        pairs = [part.split("->") for part in value.split(",") if part.strip()]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError(_("it is not pairs of types with -> between"))
        return {_dtype(a): _dtype(b) for a, b in pairs}

    def show(pairs: dict[str, str]) -> str:
        return ",".join(f"torch.{a}->torch.{b}" for a, b in pairs.items())

    allowed = _("torch.float16->torch.float32 and the like, with commas between")
    return Setting(name, parse, lambda: parse(default), doc, allowed, show)


# Type names as in torch; they are listed because `deeplink` reads settings before it imports torch.
_DTYPES = (
    "float16 bfloat16 float32 float64 complex32 complex64 complex128 int8 int16 int32 int64 uint8 "
    "bool float8_e4m3fn float8_e5m2"
).split()
_SHORT = {"half": "float16", "float": "float32", "double": "float64", "long": "int64"}
_SHORT |= {"int": "int32", "short": "int16", "cfloat": "complex64", "cdouble": "complex128"}


def _dtype(text: str) -> str:
    name = text.strip().removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in _DTYPES:
        near = difflib.get_close_matches(name, _DTYPES, n=1)
        raise ValueError(
            _("no type {name!r}").format(name=text.strip())
            + (_(", meant {near}?").format(near=near[0]) if near else "")
        )
    return name


def path(name: str, default: Callable[[], Path], doc: str) -> Setting[Path]:
    """Define a path; `~` is the home directory. The default is a function,
    as it may depend on others.
    """

    def show(value: Path) -> str:
        return "" if value == Path() else str(value)

    return Setting(name, lambda value: Path(value).expanduser(), default, doc, _("a path"), show)


def choice(name: str, default: str, doc: str, choices: Sequence[str]) -> Setting[str]:
    """Define one word of a fixed set, case-insensitive."""

    def parse(value: str) -> str:
        if value.lower() in choices:
            return value.lower()
        meant = difflib.get_close_matches(value.lower(), choices, n=1)
        raise ValueError(
            _("no such choice")
            + (_(", did you mean {meant!r}?").format(meant=meant[0]) if meant else "")
        )

    return Setting(name, parse, lambda: default, doc, ", ".join(choices))


UNITS = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP]?)(?:iB|B)?)", re.IGNORECASE)


def parse_size(value: str) -> int:
    """Parse "16GiB", "1.5g" or "4096" to bytes; ValueError for another text."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(_("it is not a size"))
    number, unit = match.groups()
    return int(Decimal(number) * 1024 ** UNITS.index(unit.upper()))


def show_size(count: int) -> str:
    """Return the shortest exact spelling of a size: "16GiB", or "1000" when no unit divides it."""
    for power in range(len(UNITS) - 1, 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{UNITS[power]}iB"
    return str(count)


def _bounds(minimum: int | None, maximum: int | None, show: Callable[[int], str]) -> str:
    if minimum is not None and maximum is not None:
        return _(" from {minimum} to {maximum}").format(
            minimum=show(minimum), maximum=show(maximum)
        )
    if minimum is not None:
        return _(", at least {show}").format(show=show(minimum))
    return _(", at most {show}").format(show=show(maximum)) if maximum is not None else ""


def _within(
    number: int, minimum: int | None, maximum: int | None, show: Callable[[int], str]
) -> int:
    if minimum is not None and number < minimum:
        raise ValueError(_("it is less than {show}").format(show=show(minimum)))
    if maximum is not None and number > maximum:
        raise ValueError(_("it is more than {show}").format(show=show(maximum)))
    return number
