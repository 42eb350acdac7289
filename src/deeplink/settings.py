"""Every environment variable that the project reads: typed, documented, read late.

A setting is read when its `get()` is called, so it may change at run time. Set to nothing, it
counts as not set. Reading writes nothing; the functions that do write say so. This is the
only module that touches `os.environ`.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar

from deeplink.errors import SettingError

T = TypeVar("T")

PREFIXES = ("DEEPLINK_", "DICP_", "DIPU_", "DITORCH", "DLINFER_", "OP_", "AUTOCOMPARE_")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: its name, how its text is read, its default and its meaning."""

    name: str
    parse: Callable[[str], T]  # raises ValueError, with a reason, for a text it does not allow
    default: Callable[[], T]
    doc: str
    allowed: str
    show: Callable[[T], str] = str
    empty_counts: bool = False  # set to nothing is a value of its own, as an empty list is

    def get(self) -> T:
        """The value in force now; SettingError for a text that is not allowed."""
        text = os.environ.get(self.name, "").strip()
        if not text and not (self.empty_counts and self.name in os.environ):
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
        if self.empty_counts:
            return self.name in os.environ
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


def watch_children(values: Mapping[str, str]) -> None:
    """Settings of op_tools in this process and in those started from here."""
    os.environ.update(values)


def environment(values: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a process that is to have these settings, and not those `without`."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, **values}


_WATCHED: dict[str, list[Callable[[], None]]] = {}


def watch(setting: Setting[Any], changed: Callable[[], None]) -> None:
    """Calls `changed` after this program sets or unsets the variable by `os.environ`."""
    _WATCHED.setdefault(setting.name, []).append(changed)
    if type(os.environ) is not _Watched:
        os.environ.__class__ = _Watched


class _Watched(type(os.environ)):  # type: ignore[misc]  # os._Environ has no public name
    """The environment, telling who asked of changes; reading it costs what it did."""

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        for changed in _WATCHED.get(name, ()):
            changed()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        for changed in _WATCHED.get(name, ()):
            changed()


def hide_cuda() -> None:
    """Keeps CUDA's devices from this process, by a variable that is not ours: CUDA reads it when
    it starts, and offers no other way.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def leave_out_amx() -> str:
    """Keeps oneDNN from AMX in processes started from here, by a variable of oneDNN's own that a
    user's value goes before; returns the assignment.
    """
    name = "ONEDNN_MAX_CPU_ISA"
    return f"{name}={os.environ.setdefault(name, 'AVX512_CORE_FP16')}"


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


def operators(name: str, default: Sequence[str], doc: str) -> Setting[tuple[str, ...]]:
    """A list of operators; set to nothing it is the empty list, which no operator is in."""
    allowed = "full names or regular expressions, with commas between"
    return Setting(name, split_list, lambda: tuple(default), doc, allowed, ",".join, True)


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a list, trimmed; a comma inside brackets belongs to its entry."""
    entries, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            entries.append(text[start:at])
            start = at + 1
    entries.append(text[start:])
    return tuple(entry.strip() for entry in entries if entry.strip())


def tolerance(name: str, doc: str) -> Setting[tuple[float, float] | None]:
    """`atol,rtol`, as the classic tools write it; None when it is not set."""

    def parse(value: str) -> tuple[float, float]:
        try:
            atol, rtol = (float(part) for part in value.split(","))
        except ValueError:
            raise ValueError("it is not two numbers with a comma between") from None
        if not (atol >= 0 and rtol >= 0):
            raise ValueError("a tolerance is not negative")
        return atol, rtol

    return Setting(name, parse, lambda: None, doc, "atol,rtol, such as 1e-3,1e-4", _show_tolerance)


def _show_tolerance(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:g},{pair[1]:g}"


def casts(name: str, default: str, doc: str) -> Setting[dict[str, str]]:
    """`torch.float16->torch.float32,…` as a dict of names of types, without their "torch."."""

    def parse(value: str) -> dict[str, str]:
        pairs = [part.split("->") for part in value.split(",") if part.strip()]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("it is not pairs of types with -> between")
        return {_dtype(a): _dtype(b) for a, b in pairs}

    def show(pairs: dict[str, str]) -> str:
        return ",".join(f"torch.{a}->torch.{b}" for a, b in pairs.items())

    allowed = "torch.float16->torch.float32 and the like, with commas between"
    return Setting(name, parse, lambda: parse(default), doc, allowed, show)


# Types by the names that torch gives them; `deeplink` reads settings before torch is imported.
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
        raise ValueError(f"no type {text.strip()!r}" + (f", meant {near[0]}?" if near else ""))
    return name


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


def _user_cache() -> Path:
    # Both are other programs' variables, so they are read here and are no rows of the table.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache) if cache else Path.home() / ".cache"


def _build_dir() -> Path:
    return _user_cache() / "torch_dipu"


def _dicp_dir() -> Path:
    return _user_cache() / "dicp"


# The table.

DEEPLINK_VENDOR = text(
    "DEEPLINK_VENDOR",
    "",
    "The vendor to use; empty: the first available accelerator, else the reference device.",
    "the name of an installed vendor (`deeplink doctor` lists them)",
)
DEEPLINK_LOSS_FILE = path(
    "DEEPLINK_LOSS_FILE", lambda: Path(), "Where `deeplink.observe_loss` writes; empty: nowhere."
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
DIPU_MEM_CHECK = integer(
    "DIPU_MEM_CHECK",
    0,
    "1: device memory not freed at exit, freed twice or written past its end is reported; 2: "
    "checked after each operator, which is then named.",
    minimum=0,
    maximum=2,
)
DIPU_MEM_CHECK_ENABLE_BACKTRACE = boolean(
    "DIPU_MEM_CHECK_ENABLE_BACKTRACE",
    False,
    "What DIPU_MEM_CHECK reports has the Python and C++ stack of its allocation.",
)
DIPU_WITH_DIOPI_LIBRARY = choice(
    "DIPU_WITH_DIOPI_LIBRARY",
    "enable",
    "Whether the vendor's kernels run the operators of the device; without, the host does.",
    ("enable", "disable"),
)
DIPU_KERNELS = text(
    "DIPU_KERNELS",
    "",
    "Kernels to run the device on in place of the vendor's own; empty: the vendor's.",
    "the name of a module with kernels of diopi ops",
)
DIPU_FORCE_FALLBACK_OPS_LIST = operators(
    "DIPU_FORCE_FALLBACK_OPS_LIST", (), "Operators of the device that the CPU runs, on copies."
)
DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS = operators(
    "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS",
    (),
    "Operators that torch's own composite or the host runs, whatever kernels the vendor has.",
)
DIPU_AUTOCOMPARE_OPS_LIST = operators(
    "DIPU_AUTOCOMPARE_OPS_LIST", (), "Operators of the device whose results the CPU checks."
)
DIPU_DUMP_OP_ARGS = integer(
    "DIPU_DUMP_OP_ARGS",
    0,
    "Prints each operator call of the device: 1 its names, 2 its arguments, 3 their values, too.",
    minimum=0,
    maximum=3,
)
DIPU_MOCK_CUDA = boolean(
    "DIPU_MOCK_CUDA", False, "`import torch_dipu` brings CUDA's names, too, as ditorch does."
)
DIPU_COLLECTIVES = choice(
    "DIPU_COLLECTIVES",
    "chip",
    "What moves the bytes of the reference device's collectives on one host; between hosts: gloo.",
    ("chip", "gloo"),
)
DIPU_FLIGHT_RECORD = integer(
    "DIPU_FLIGHT_RECORD", 256, "How many of the last collectives are remembered.", minimum=0
)
DIPU_FLIGHT_RECORD_DIR = path(
    "DIPU_FLIGHT_RECORD_DIR",
    lambda: Path("flight_record"),
    "Where they are written when one fails, or hangs.",
)
DIPU_FLIGHT_RECORD_AFTER = integer(
    "DIPU_FLIGHT_RECORD_AFTER",
    300,
    "Seconds after which a collective that is under way counts as hanging; 0: never.",
    minimum=0,
)
DICP_CACHE = boolean("DICP_CACHE", True, "Keep compiled graphs on disk.")
DICP_CACHE_DIR = path("DICP_CACHE_DIR", _dicp_dir, "Where compiled graphs and reports are kept.")
DICP_VERIFY = boolean(
    "DICP_VERIFY", False, "Compare what each compiled partition computes with eager."
)
DICP_MEASURE = boolean(
    "DICP_MEASURE", True, "Keep a small graph eager where, as measured, compiling it would lose."
)
DICP_PREFERENCE = words(
    "DICP_PREFERENCE",
    ("onnxrtgraph", "openvinograph", "inductorgraph"),
    'What backend="dicp" means: the first of these that is installed and serves the device.',
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
DITORCH_FLOAT32_REDUCE = boolean(
    "DITORCH_FLOAT32_REDUCE",
    False,
    "Reductions between ranks of float16 and bfloat16 add up in float32 and round once.",
)
DITORCH_QUIET = boolean("DITORCH_QUIET", False, "ditorch does not say its line.")
DLINFER_VENDOR = text(
    "DLINFER_VENDOR",
    "",
    "Whose fused kernels dlinfer runs; empty: the device's vendor's; reference: plain torch.",
    "a vendor's name",
)
DLINFER_STRICT = boolean(
    "DLINFER_STRICT", False, "An op without a kernel of the vendor raises, and does not fall back."
)
DLINFER_GRAPH = text(
    "DLINFER_GRAPH",
    "eager",
    "The back end of torch.compile for the steps of decoding that LMDeploy runs as graphs.",
    "a name for torch.compile(backend=…)",
)
DLINFER_VLLM = boolean(
    "DLINFER_VLLM", False, "vLLM runs on dlinfer's ops, as far as its plugin goes."
)
CXX = text("CXX", "c++", "The C++ compiler of the native build.", "a command or a path")

# op_tools. Each tool has a list of what it takes and a list of what it leaves.

_TOOLS = {
    "CAPTURE": ("captured", ()),
    "AUTOCOMPARE": ("compared", ("torch.rand", "torch.randn", "torch_mlu.*", "torch_npu.*")),
    "TIME_MEASURE": ("timed", ()),
    "FALLBACK": ("run on the CPU", ()),
    "DTYPE_CAST": ("computed in another type", ()),
    "OBSERVE": ("shown", ()),
    "OVERFLOW_CHECK": ("checked for NaN and Inf", ()),
}


def _lists(tool: str) -> tuple[Setting[tuple[str, ...]], Setting[tuple[str, ...]]]:
    done, left = _TOOLS[tool]
    return (
        operators(f"OP_{tool}_LIST", (".*",), f"Operators that are {done}; empty: none."),
        operators(f"OP_{tool}_DISABLE_LIST", left, f"Operators that are not {done}, all the same."),
    )


OP_CAPTURE_LIST, OP_CAPTURE_DISABLE_LIST = _lists("CAPTURE")
OP_AUTOCOMPARE_LIST, OP_AUTOCOMPARE_DISABLE_LIST = _lists("AUTOCOMPARE")
OP_TIME_MEASURE_LIST, OP_TIME_MEASURE_DISABLE_LIST = _lists("TIME_MEASURE")
OP_FALLBACK_LIST, OP_FALLBACK_DISABLE_LIST = _lists("FALLBACK")
OP_DTYPE_CAST_LIST, OP_DTYPE_CAST_DISABLE_LIST = _lists("DTYPE_CAST")
OP_OBSERVE_LIST, OP_OBSERVE_DISABLE_LIST = _lists("OBSERVE")
OP_OVERFLOW_CHECK_LIST, OP_OVERFLOW_CHECK_DISABLE_LIST = _lists("OVERFLOW_CHECK")
OP_DTYPE_CAST_DICT = casts(
    "OP_DTYPE_CAST_DICT",
    "torch.float16->torch.float32,torch.bfloat16->torch.float32",
    "Which type OpDtypeCast computes in, for each type of an argument.",
)
AUTOCOMPARE_ERROR_TOLERANCE = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE", "allclose for every type without a tolerance of its own."
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "allclose for float16."
)
AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16", "allclose for bfloat16."
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "allclose for float32."
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64", "allclose for float64."
)
OP_AUTOCOMPARE_STANDARD = choice(
    "OP_AUTOCOMPARE_STANDARD",
    "calibrated",
    "The rule that OpAutoCompare judges by where no tolerance is set.",
    ("calibrated", "allclose", "torch", "ascend", "ulp"),
)
OP_AUTOCOMPARE_MODE = choice(
    "OP_AUTOCOMPARE_MODE",
    "every",
    "Which calls OpAutoCompare compares: all, one of each signature, or a sample.",
    ("every", "signature", "sample"),
)
OP_AUTOCOMPARE_REFERENCE = choice(
    "OP_AUTOCOMPARE_REFERENCE",
    "auto",
    "Whose float64 OpAutoCompare asks first: the device's, the host's, or by what is faster.",
    ("auto", "device", "host"),
)
OP_AUTOCOMPARE_BACKGROUND = boolean(
    "OP_AUTOCOMPARE_BACKGROUND", False, "OpAutoCompare compares in a thread of its own."
)
OP_CAPTURE_FORMAT = choice(
    "OP_CAPTURE_FORMAT",
    "folders",
    "How OpCapture writes: a folder for each call, or one archive for each process.",
    ("folders", "packed"),
)
OP_CAPTURE_MODE = choice(
    "OP_CAPTURE_MODE",
    "tensors",
    "What OpCapture writes of a tensor: its values, its statistics, or a hash.",
    ("tensors", "statistics", "hash"),
)
OP_CAPTURE_MEMORY = size(
    "OP_CAPTURE_MEMORY", 1024**3, "Bytes that wait to be written at most; then the program waits."
)
OP_TIME_MEASURE_MODE = choice(
    "OP_TIME_MEASURE_MODE",
    "events",
    "How OpTimeMeasure times: by events of the device, or waiting for it after each operator.",
    ("events", "sync"),
)
OP_TIME_MEASURE_TRACE = path(
    "OP_TIME_MEASURE_TRACE", lambda: Path(), "A trace of the calls for Perfetto; empty: none."
)
OP_TOOLS_RESULTS = path(
    "OP_TOOLS_RESULTS",
    lambda: Path("op_tools_results"),
    "The folder of all that is written.",
)
OP_ONE_ITER_MODE = choice(
    "OP_ONE_ITER_MODE",
    "record",
    "What OneIteration does: record an iteration, or compare one with a record.",
    ("record", "compare"),
)
OP_ONE_ITER_RECORD = path(
    "OP_ONE_ITER_RECORD",
    lambda: OP_TOOLS_RESULTS.get() / "one_iter",
    "The folder of the record of an iteration.",
)
OP_ONE_ITER_STEP = integer(
    "OP_ONE_ITER_STEP", 0, "Which iteration OneIteration takes, from 0.", minimum=0
)
OP_ONE_ITER_JSON = path(
    "OP_ONE_ITER_JSON", lambda: Path(), "Where OneIteration writes what it found; empty: nowhere."
)
OP_RECORDER_LIMIT = size(
    "OP_RECORDER_LIMIT", 64 << 20, "Bytes on disk of a process's flight recorder at most."
)
OP_RECORDER_HANG = integer(
    "OP_RECORDER_HANG", 600, "Seconds without a step after which a run counts as hung.", minimum=1
)
OP_BISECT_PLAN = path(
    "OP_BISECT_PLAN", lambda: Path(), "Which calls `deeplink bisect` wants elsewhere: a JSON file."
)
OP_TOOLS_DISK_BUDGET = size(
    "OP_TOOLS_DISK_BUDGET", 0, "Bytes that a process may write in all; 0: no limit."
)
OP_TOOLS_NATIVE = boolean(
    "OP_TOOLS_NATIVE", True, "Use the native part of op_tools; without it, Python does its work."
)
OP_TOOLS_LEVEL = choice(
    "OP_TOOLS_LEVEL",
    "api",
    "What counts as an operator: a function of torch, a kernel (aten), or a module.",
    ("api", "aten", "module"),
)
OP_TOOLS_DEVICES = words(
    "OP_TOOLS_DEVICES", (), "Kinds of devices that are watched, such as cpu; empty: all but cpu."
)
OP_TOOLS_STEPS = text("OP_TOOLS_STEPS", "", "Training steps that are watched.", "3,10-20,100-")
OP_TOOLS_RANKS = Setting(
    "OP_TOOLS_RANKS",
    lambda value: tuple(int(word) for word in value.split(",") if word.strip()),
    lambda: (),
    "Ranks that are watched; empty: all.",
    "whole numbers, with commas between",
    lambda ranks: ",".join(map(str, ranks)),
)
OP_TOOLS_MODULES = words(
    "OP_TOOLS_MODULES", (), "Modules that are watched, by patterns of their paths; empty: all."
)
OP_TOOLS_SITES = words(
    "OP_TOOLS_SITES", (), "Lines that are watched, by patterns of file.py:line; empty: all."
)
OP_TOOLS_FIRST = integer(
    "OP_TOOLS_FIRST", 0, "So many calls of each signature are watched; 0: all.", minimum=0
)
OP_TOOLS_EVERY = integer(
    "OP_TOOLS_EVERY", 1, "Of the calls of an operator every k-th is watched.", minimum=1
)
OP_TOOLS_CONFIG = path(
    "OP_TOOLS_CONFIG", lambda: Path(), "A TOML file with a section for each tool."
)
OP_TOOLS_RUN = words(
    "OP_TOOLS_RUN", (), "Tools that `import torch` starts, without a line in the program."
)
OP_TOOLS_VERBOSE = boolean("OP_TOOLS_VERBOSE", False, "Show a table for each call.")
OP_TOOLS_PRINT_STACK = boolean(
    "OP_TOOLS_PRINT_STACK", False, "With each table, the stack that led to the call."
)
OP_TOOLS_MAX_CACHE_SIZE = integer(
    "OP_TOOLS_MAX_CACHE_SIZE", 1000, "Rows that wait to be written to a CSV file.", minimum=1
)


def op_lists(tool: str) -> tuple[Setting[tuple[str, ...]], Setting[tuple[str, ...]]]:
    """The two lists of a tool, by its word: CAPTURE, TIME_MEASURE, …"""
    return globals()[f"OP_{tool}_LIST"], globals()[f"OP_{tool}_DISABLE_LIST"]


def op_tolerance(operator: str, dtype: str) -> tuple[float, float] | None:
    """`atol,rtol` for an operator's results of a type: its own, else the type's, else for all."""
    own = f"AUTOCOMPARE_ERROR_TOLERANCE_{dtype.upper()}"
    doc = "allclose for one operator."
    for name in (f"{operator.upper()}_{own}", own, AUTOCOMPARE_ERROR_TOLERANCE.name):
        if name not in os.environ:  # hot path
            continue
        found = tolerance(name, doc).get()
        if found is not None:
            return found
    return None


def op_casts(operator: str) -> dict[str, str] | None:
    """{OP}_OP_DTYPE_CAST_DICT: the types of one operator's reference, when they are set."""
    name = f"{operator.upper()}_OP_DTYPE_CAST_DICT"
    if name not in os.environ:  # hot path
        return None
    setting = casts(name, "", "Types of one operator.")
    return setting.get() if setting.is_set() else None


def columns() -> int:
    """The width that the environment gives to what is printed; 0 when it gives none."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() else 0


def rank() -> int:
    """The rank that a launcher gave this process, by torchrun's variable; 0 without one."""
    return int(os.environ.get("RANK", "0") or 0)


def world() -> int:
    """How many ranks a launcher started, by torchrun's variable; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def label() -> str:
    """Free text in the name of the process monitor's file, by the classic variable `label`."""
    return os.environ.get("label", "")  # noqa: SIM112 (as the classic tools write it)
