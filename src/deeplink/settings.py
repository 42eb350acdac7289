"""Every environment variable that the project reads: typed, documented, read late.

A setting is read when its `get()` is called, so it may change at run time. Set to nothing, it
counts as not set. Reading writes nothing; the three functions that do write say so. This is the
only module that touches `os.environ`.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar

from deeplink.errors import SettingError

T = TypeVar("T")

PREFIXES = ("DEEPLINK_", "DIPU_", "DITORCH")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: its name, how its text is read, its default and its meaning."""

    name: str
    parse: Callable[[str], T]  # raises ValueError, with a reason, for a text it does not allow
    default: Callable[[], T]
    doc: str
    allowed: str
    show: Callable[[T], str] = str

    def get(self) -> T:
        """The value in force now; SettingError for a text that is not allowed."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(
                f"{self.name}={text!r} is not allowed: {error}; allowed: {self.allowed}.",
                f"unset {self.name} for the default, {self.show(self.default()) or 'empty'!r}.",
            ) from None

    def is_set(self) -> bool:
        """Whether the environment gives a value."""
        return bool(os.environ.get(self.name, "").strip())


@dataclass(frozen=True)
class InForce:
    """A setting as it stands now. `problem` is empty unless its value is not allowed."""

    name: str
    value: str
    source: str  # "default" or "environment"
    default: str
    allowed: str
    doc: str
    problem: str = ""


@dataclass(frozen=True)
class Unknown:
    """A variable that looks like one of ours and is not; `meant` is the nearest that is."""

    name: str
    meant: str = ""


def table() -> list[Setting[Any]]:
    """All settings, in the order in which they are written below."""
    return [value for value in globals().values() if isinstance(value, Setting)]


def in_force() -> list[InForce]:
    """Each setting's value and where it comes from. Never raises: a bad value is a problem."""
    return [_in_force(setting) for setting in table()]


def unknown() -> list[Unknown]:
    """The variables of the environment that start like ours and that nothing reads."""
    known = [setting.name for setting in table()]
    names = sorted(n for n in os.environ if n.startswith(PREFIXES) and n not in known)
    return [Unknown(name, *difflib.get_close_matches(name, known, n=1)) for name in names]


def _in_force(setting: Setting[Any]) -> InForce:
    default = setting.show(setting.default())
    source = "environment" if setting.is_set() else "default"
    problem = ""
    try:
        value = setting.show(setting.get())
    except SettingError as error:
        value = os.environ.get(setting.name, "")
        problem = str(error)
    return InForce(setting.name, value, source, default, setting.allowed, setting.doc, problem)


@contextmanager
def asking_for(vendor: str) -> Iterator[None]:
    """DEEPLINK_VENDOR names the vendor inside the block, for processes started there, too."""
    before = os.environ.get(DEEPLINK_VENDOR.name)
    os.environ[DEEPLINK_VENDOR.name] = vendor
    try:
        yield
    finally:
        os.environ.pop(DEEPLINK_VENDOR.name)
        if before is not None:
            os.environ[DEEPLINK_VENDOR.name] = before


def activate_children() -> None:
    """DITORCH is on in processes started from here (torchrun's workers, spawned ones), unless the
    environment says otherwise.
    """
    os.environ.setdefault(DITORCH.name, "1")


def hide_cuda() -> None:
    """Keeps CUDA's devices from this process, by a variable that is not ours: CUDA reads it when
    it starts, and offers no other way.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


# Kinds: how a text becomes a value.


def text(name: str, default: str, doc: str, allowed: str = "any text") -> Setting[str]:
    """A text, taken as it is."""
    return Setting(name, str, lambda: default, doc, allowed)


def integer(
    name: str, default: int, doc: str, minimum: int | None = None, maximum: int | None = None
) -> Setting[int]:
    """A whole number, between the bounds when there are any."""
    allowed = "a whole number" + _bounds(minimum, maximum, str)

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("it is not a whole number") from None
        return _within(number, minimum, maximum, str)

    return Setting(name, parse, lambda: default, doc, allowed)


def boolean(name: str, default: bool, doc: str) -> Setting[bool]:
    """Yes or no, in the usual spellings."""
    spellings = {"1": True, "true": True, "yes": True, "on": True}
    spellings |= {"0": False, "false": False, "no": False, "off": False}

    def parse(value: str) -> bool:
        if value.lower() not in spellings:
            raise ValueError("it is neither yes nor no")
        return spellings[value.lower()]

    return Setting(
        name, parse, lambda: default, doc, ", ".join(spellings), lambda b: "1" if b else "0"
    )


def size(name: str, default: int, doc: str, minimum: int = 0) -> Setting[int]:
    """A number of bytes, plain or with a unit; units are powers of 1024."""
    allowed = "bytes, such as 16GiB, 512M or 1048576" + _bounds(minimum or None, None, show_size)
    return Setting(
        name,
        lambda value: _within(parse_size(value), minimum, None, show_size),
        lambda: default,
        doc,
        allowed,
        show_size,
    )


def words(name: str, default: Sequence[str], doc: str) -> Setting[tuple[str, ...]]:
    """A list with commas between; blanks around a word and empty words are dropped."""

    def parse(value: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in value.split(",") if word.strip())

    return Setting(name, parse, lambda: tuple(default), doc, "words, with commas between", ",".join)


def path(name: str, default: Callable[[], Path], doc: str) -> Setting[Path]:
    """A path; `~` is the home directory. The default is a function: it may depend on others."""
    return Setting(name, lambda value: Path(value).expanduser(), default, doc, "a path")


def choice(name: str, default: str, doc: str, choices: Sequence[str]) -> Setting[str]:
    """One word out of a few, in any case of letters."""

    def parse(value: str) -> str:
        if value.lower() in choices:
            return value.lower()
        meant = difflib.get_close_matches(value.lower(), choices, n=1)
        raise ValueError("no such choice" + (f", did you mean {meant[0]!r}?" if meant else ""))

    return Setting(name, parse, lambda: default, doc, ", ".join(choices))


UNITS = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP]?)(?:iB|B)?)", re.IGNORECASE)


def parse_size(value: str) -> int:
    """Bytes of a text such as "16GiB", "1.5g" or "4096"; ValueError when it is none."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("it is not a size")
    number, unit = match.groups()
    return int(Decimal(number) * 1024 ** UNITS.index(unit.upper()))


def show_size(count: int) -> str:
    """The shortest exact spelling of a size: "16GiB", or "1000" when no unit divides it."""
    for power in range(len(UNITS) - 1, 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{UNITS[power]}iB"
    return str(count)


def _bounds(minimum: int | None, maximum: int | None, show: Callable[[int], str]) -> str:
    if minimum is not None and maximum is not None:
        return f" from {show(minimum)} to {show(maximum)}"
    if minimum is not None:
        return f", at least {show(minimum)}"
    return f", at most {show(maximum)}" if maximum is not None else ""


def _within(
    number: int, minimum: int | None, maximum: int | None, show: Callable[[int], str]
) -> int:
    if minimum is not None and number < minimum:
        raise ValueError(f"it is less than {show(minimum)}")
    if maximum is not None and number > maximum:
        raise ValueError(f"it is more than {show(maximum)}")
    return number


def _build_dir() -> Path:
    # Both are other programs' variables, so they are read here and are no rows of the table.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "torch_dipu"


# The table.

DEEPLINK_VENDOR = text(
    "DEEPLINK_VENDOR",
    "",
    "The vendor to use; empty: the first available accelerator, else the reference device.",
    "the name of an installed vendor (`deeplink doctor` lists them)",
)
DIPU_DEVICE_COUNT = integer(
    "DIPU_DEVICE_COUNT", 2, "How many reference devices there are.", minimum=1, maximum=16
)
DIPU_DEVICE_MEMORY = size(
    "DIPU_DEVICE_MEMORY", 16 * 1024**3, "Memory capacity of each reference device.", minimum=1
)
DIPU_BUILD_DIR = path(
    "DIPU_BUILD_DIR", _build_dir, "Where the built native part of the device is kept."
)
DIPU_BUILD_JOBS = integer(
    "DIPU_BUILD_JOBS", 2, "How many compilers run at once in the native build.", minimum=1
)
DIPU_QUIRKS = text(
    "DIPU_QUIRKS",
    "",
    "Faults of the reference device that are switched on; empty: none.",
    "name[:op_pattern[:key=value…]], with ; between several",
)
DITORCH = boolean(
    "DITORCH", False, "`import torch` alone activates ditorch, without a line in the program."
)
DITORCH_STRICT = boolean(
    "DITORCH_STRICT", False, "A CUDA call without an equivalent raises instead of warning once."
)
DITORCH_SHOW_DEVICE_AS_CUDA = boolean(
    "DITORCH_SHOW_DEVICE_AS_CUDA", True, "User code hears `cuda` from a device that stands for it."
)
DITORCH_NATIVE_HOOK = boolean(
    "DITORCH_NATIVE_HOOK", True, "Use the native hook of ditorch; without it, wrappers."
)
DITORCH_QUIET = boolean("DITORCH_QUIET", False, "ditorch does not say its line.")
CXX = text("CXX", "c++", "The C++ compiler of the native build.", "a command or a path")
