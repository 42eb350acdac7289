"""Every environment variable that the project reads: typed, documented, read late.

A setting is read when its `get()` is called, so it may change at run time. Set to nothing, it
counts as not set. Reading writes nothing; the functions that do write say so. A new one is a row
here, at the place of its part.
"""

import os
from pathlib import Path
from typing import Any

from deeplink.settings.kinds import (
    Setting,
    boolean,
    casts,
    choice,
    integer,
    operators,
    path,
    share,
    size,
    steps,
    text,
    tolerance,
    words,
)

PREFIXES = ("DEEPLINK_", "DICP_", "DIPU_", "DITORCH", "DLINFER_", "OP_", "AUTOCOMPARE_")


def table() -> list[Setting[Any]]:
    """All settings, in the order in which they are written below."""
    return [value for value in globals().values() if isinstance(value, Setting)]


def _user_cache() -> Path:
    # Both are other programs' variables, so they are read here and are no rows of the table.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache) if cache else Path.home() / ".cache"


def _build_dir() -> Path:
    return _user_cache() / "torch_dipu"


def _dicp_dir() -> Path:
    return _user_cache() / "dicp"


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
    "DIPU_BUILD_JOBS",
    0,
    "How many compilers run at once in the native build; 0: one per core that memory allows.",
    minimum=0,
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
    "DIPU_MOCK_CUDA",
    True,
    "CUDA's names for the device, as ditorch brings them: set to true with `import torch_dipu`, by "
    "default with the first `x.cuda()`, set to false never.",
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
    'What backend="dicp" means: the first of these that is installed and serves the device; '
    "not set: first what was measured as the fastest at most of the work.",
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
    "GUARD": ("guarded", ()),
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
OP_GUARD_LIST, OP_GUARD_DISABLE_LIST = _lists("GUARD")
OP_GUARD_BUDGET = share("OP_GUARD_BUDGET", 0.01, "The share of the time that Guard may cost.")
OP_GUARD_ON_FINDING = choice(
    "OP_GUARD_ON_FINDING",
    "warn",
    "What Guard does when a wrong result is confirmed: a warning, or an error that ends the run.",
    ("warn", "stop"),
)
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
OP_AUTOCOMPARE_BACKGROUND = boolean(
    "OP_AUTOCOMPARE_BACKGROUND",
    False,
    "OpAutoCompare judges small calls in another thread, too; 0, if set: none is.",
)
OP_AUTOCOMPARE_BUDGET = share(
    "OP_AUTOCOMPARE_BUDGET", None, "How much longer a step may take with OpAutoCompare, as 25%."
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
OP_CAPTURE_FIRST = integer(
    "OP_CAPTURE_FIRST",
    0,
    "So many calls of each signature are captured, unless OP_TOOLS_FIRST is set; 0: all.",
    minimum=0,
)
OP_CAPTURE_INPUTS = choice(
    "OP_CAPTURE_INPUTS",
    "new",
    "Statistics of which inputs: of those that no recorded call has produced, or of all.",
    ("new", "all"),
)
OP_CAPTURE_MEMORY = size(
    "OP_CAPTURE_MEMORY",
    1024**3,
    "Bytes that wait to be written at most; then the program waits.",
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
    "OP_TOOLS_DISK_BUDGET",
    0,
    "Bytes that a process may write in all; 0: no limit. Unless set, OpCapture stops writing "
    "tensors at 5 % of the free space.",
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
OP_TOOLS_STEPS = steps("OP_TOOLS_STEPS", "Training steps that are watched.")
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
