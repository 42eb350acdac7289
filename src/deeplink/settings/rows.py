# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of the project: typed, documented, read on use.

A setting is read when its `get()` is called, so it may change at run time. Set to the empty text,
it has its default. Reading writes nothing. A new setting is a row here, among those of its part,
and a line of `groups.py`: its task and its key in the file.
"""

import os
from pathlib import Path
from typing import Any

from deeplink.settings.file import current
from deeplink.settings.groups import KEYS
from deeplink.settings.kinds import (
    Setting,
    boolean,
    casts,
    choice,
    integer,
    limit,
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
    """Return all settings, in the order in which they are written below."""
    return [value for value in globals().values() if isinstance(value, Setting)]


def _user_cache() -> Path:
    # Both are variables of other programs: they are read here and are no rows of the table.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache) if cache else Path.home() / ".cache"


def _build_dir() -> Path:
    return DEEPLINK_CACHE_DIR.get() / "torch_dipu"


def _dicp_dir() -> Path:
    return DEEPLINK_CACHE_DIR.get() / "dicp"


DEEPLINK_VENDOR = text(
    "DEEPLINK_VENDOR",
    "",
    "The vendor to use; empty: the first available accelerator, else the reference device.",
    "the name of an installed vendor (`deeplink doctor` lists them)",
)
DEEPLINK_CONFIG = path(
    "DEEPLINK_CONFIG",
    lambda: Path(),
    "The settings file; empty: deeplink.toml, else [tool.deeplink] of pyproject.toml, in the "
    "working directory.",
)
DEEPLINK_CACHE_DIR = path(
    "DEEPLINK_CACHE_DIR",
    _user_cache,
    "The folder of torch_dipu (built native parts) and dicp (compiled graphs).",
)
DEEPLINK_LANG = choice(
    "DEEPLINK_LANG",
    "auto",
    "The language of messages: English, Chinese, or the locale's (LC_ALL, LC_MESSAGES, LANG). "
    "Result files stay the same.",
    ("auto", "en", "zh"),
)
DEEPLINK_LOSS_FILE = path(
    "DEEPLINK_LOSS_FILE",
    lambda: Path(),
    "The file that `deeplink.observe_loss` writes; empty: none.",
)
DIPU_DEVICE_COUNT = integer(
    "DIPU_DEVICE_COUNT", 2, "How many reference devices there are.", minimum=1, maximum=16
)
DIPU_DEVICE_MEMORY = size(
    "DIPU_DEVICE_MEMORY", 16 * 1024**3, "Memory capacity of each reference device.", minimum=1
)
DIPU_BUILD_DIR = path("DIPU_BUILD_DIR", _build_dir, "The folder of the built native parts.")
DIPU_BUILD_JOBS = integer(
    "DIPU_BUILD_JOBS",
    0,
    "How many compilers run at once in the native build; 0: one per core that memory allows.",
    minimum=0,
)
DIPU_QUIRKS = text(
    "DIPU_QUIRKS",
    "",
    "Faults to switch on in the reference device; empty: none.",
    "name[:op_pattern[:key=value…]], with ; between several",
)
DIPU_MEM_CHECK = integer(
    "DIPU_MEM_CHECK",
    0,
    "1: report device memory that is not freed at exit, freed twice or written past its end; "
    "2: check after each operator and name the operator.",
    minimum=0,
    maximum=2,
)
DIPU_MEM_CHECK_ENABLE_BACKTRACE = boolean(
    "DIPU_MEM_CHECK_ENABLE_BACKTRACE",
    False,
    "DIPU_MEM_CHECK reports the Python and C++ stack of the allocation.",
)
DIPU_WITH_DIOPI_LIBRARY = choice(
    "DIPU_WITH_DIOPI_LIBRARY",
    "enable",
    "Whether the vendor's kernels run the operators of the device; disable: the host runs them.",
    ("enable", "disable"),
)
DIPU_KERNELS = text(
    "DIPU_KERNELS",
    "",
    "A module of kernels that replace those of the vendor; empty: the vendor's.",
    "the name of a module with kernels of diopi ops",
)
DIPU_FORCE_FALLBACK_OPS_LIST = operators(
    "DIPU_FORCE_FALLBACK_OPS_LIST", (), "Operators that the CPU runs, on copies of their arguments."
)
DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS = operators(
    "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS",
    (),
    "Operators that torch's composite or the host runs, also where the vendor has a kernel.",
)
DIPU_AUTOCOMPARE_OPS_LIST = operators(
    "DIPU_AUTOCOMPARE_OPS_LIST", (), "Operators whose results are compared with the CPU's."
)
DIPU_DUMP_OP_ARGS = integer(
    "DIPU_DUMP_OP_ARGS",
    0,
    "Print each operator call of the device: 1: names; 2: also arguments; 3: also values.",
    minimum=0,
    maximum=3,
)
DIPU_MOCK_CUDA = boolean(
    "DIPU_MOCK_CUDA",
    True,
    "CUDA names for the device `dipu`. True: from `import torch_dipu` on; not set: from the first "
    "`x.cuda()` on; false: never.",
)
DIPU_COLLECTIVES = choice(
    "DIPU_COLLECTIVES",
    "chip",
    "The transport of the reference device's collectives on one host; between hosts it is gloo.",
    ("chip", "gloo"),
)
DIPU_FLIGHT_RECORD = integer(
    "DIPU_FLIGHT_RECORD", 256, "The number of recent collectives that are recorded.", minimum=0
)
DIPU_FLIGHT_RECORD_DIR = path(
    "DIPU_FLIGHT_RECORD_DIR",
    lambda: Path("flight_record"),
    "The folder of the recorded collectives, written when one fails or hangs.",
)
DIPU_FLIGHT_RECORD_AFTER = integer(
    "DIPU_FLIGHT_RECORD_AFTER",
    300,
    "Seconds after which a running collective counts as hanging; 0: never.",
    minimum=0,
)
DICP_CACHE = boolean("DICP_CACHE", True, "Keep compiled graphs on disk.")
DICP_CACHE_DIR = path("DICP_CACHE_DIR", _dicp_dir, "The folder of compiled graphs and reports.")
DICP_VERIFY = boolean(
    "DICP_VERIFY", False, "Compare the results of each compiled partition with eager."
)
DICP_MEASURE = boolean(
    "DICP_MEASURE", True, "Keep a graph eager where the compiled graph is measured as slower."
)
DICP_PREFERENCE = words(
    "DICP_PREFERENCE",
    ("onnxrtgraph", "openvinograph", "inductorgraph"),
    'The backends that backend="dicp" tries, in this order; not set: the backend that is measured '
    "as the fastest for most of the graph comes first.",
)
DITORCH = boolean(
    "DITORCH", False, "`import torch` activates ditorch; the program needs no change."
)
DITORCH_STRICT = boolean(
    "DITORCH_STRICT", False, "A CUDA call without an equivalent raises instead of warning once."
)
DITORCH_SHOW_DEVICE_AS_CUDA = boolean(
    "DITORCH_SHOW_DEVICE_AS_CUDA", True, "Tensors and devices report `cuda` to user code."
)
DITORCH_NATIVE_HOOK = boolean(
    "DITORCH_NATIVE_HOOK",
    True,
    "Use the native hook of ditorch; 0: Python wrappers, which are slower.",
)
DITORCH_FLOAT32_REDUCE = boolean(
    "DITORCH_FLOAT32_REDUCE",
    False,
    "Collectives reduce float16 and bfloat16 in float32 and round once.",
)
DITORCH_TRITON = choice(
    "DITORCH_TRITON",
    "device",
    "What runs Triton kernels: the device, where a launch raises if it has no Triton, or Triton's "
    "interpreter on the CPU.",
    ("device", "interpret"),
)
DITORCH_QUIET = boolean("DITORCH_QUIET", False, "Do not print the start-up line.")
DLINFER_VENDOR = text(
    "DLINFER_VENDOR",
    "",
    "The vendor of the fused kernels; empty: the device's vendor; reference: plain torch.",
    "a vendor's name",
)
DLINFER_STRICT = boolean(
    "DLINFER_STRICT",
    False,
    "An operator without a kernel of the vendor raises an error instead of falling back.",
)
DLINFER_GRAPH = text(
    "DLINFER_GRAPH",
    "eager",
    "The torch.compile backend of the decoding steps that LMDeploy runs as graphs.",
    "a name for torch.compile(backend=…)",
)
DLINFER_VLLM = boolean(
    "DLINFER_VLLM", False, "vLLM runs on dlinfer's operators, where its plugin interface allows it."
)
CXX = text("CXX", "c++", "The C++ compiler of the native build.", "a command or a path")

# op_tools. Each tool has a list of the operators that it selects and a list that it excludes.

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
        operators(f"OP_{tool}_DISABLE_LIST", left, f"Operators of the list that are not {done}."),
    )


OP_CAPTURE_LIST, OP_CAPTURE_DISABLE_LIST = _lists("CAPTURE")
OP_AUTOCOMPARE_LIST, OP_AUTOCOMPARE_DISABLE_LIST = _lists("AUTOCOMPARE")
OP_TIME_MEASURE_LIST, OP_TIME_MEASURE_DISABLE_LIST = _lists("TIME_MEASURE")
OP_FALLBACK_LIST, OP_FALLBACK_DISABLE_LIST = _lists("FALLBACK")
OP_DTYPE_CAST_LIST, OP_DTYPE_CAST_DISABLE_LIST = _lists("DTYPE_CAST")
OP_OBSERVE_LIST, OP_OBSERVE_DISABLE_LIST = _lists("OBSERVE")
OP_OVERFLOW_CHECK_LIST, OP_OVERFLOW_CHECK_DISABLE_LIST = _lists("OVERFLOW_CHECK")
OP_GUARD_LIST, OP_GUARD_DISABLE_LIST = _lists("GUARD")
OP_GUARD_BUDGET = share("OP_GUARD_BUDGET", 0.01, "The share of the run time that Guard may use.")
OP_GUARD_ON_FINDING = choice(
    "OP_GUARD_ON_FINDING",
    "warn",
    "The reaction to a confirmed wrong result: a warning, or an error that ends the run.",
    ("warn", "stop"),
)
OP_DTYPE_CAST_DICT = casts(
    "OP_DTYPE_CAST_DICT",
    "torch.float16->torch.float32,torch.bfloat16->torch.float32",
    "The type that OpDtypeCast computes in, for each type of an argument.",
)
AUTOCOMPARE_ERROR_TOLERANCE = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE", "`atol,rtol` for all types without a tolerance of their own."
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16",
    "`atol,rtol` for float16; with a tolerance set, allclose decides.",
)
AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16",
    "`atol,rtol` for bfloat16; with a tolerance set, allclose decides.",
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32",
    "`atol,rtol` for float32; with a tolerance set, allclose decides.",
)
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64 = tolerance(
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64",
    "`atol,rtol` for float64; with a tolerance set, allclose decides.",
)
OP_AUTOCOMPARE_STANDARD = choice(
    "OP_AUTOCOMPARE_STANDARD",
    "calibrated",
    "The rule that decides whether a result is correct, where no tolerance is set.",
    ("calibrated", "allclose", "torch", "ascend", "ulp"),
)
OP_AUTOCOMPARE_MODE = choice(
    "OP_AUTOCOMPARE_MODE",
    "every",
    "The calls that are compared: all, one of each signature, or a sample.",
    ("every", "signature", "sample"),
)
OP_AUTOCOMPARE_BACKGROUND = boolean(
    "OP_AUTOCOMPARE_BACKGROUND",
    False,
    "1: compare small calls in another thread, too; 0: compare no call there; not set: large ones.",
)
OP_AUTOCOMPARE_BUDGET = limit(
    "OP_AUTOCOMPARE_BUDGET",
    "The time that comparison may add to a step, such as 25%, or none; empty: 75% on a device "
    "whose memory the host cannot read, none on others.",
)
OP_CAPTURE_FORMAT = choice(
    "OP_CAPTURE_FORMAT",
    "folders",
    "A folder for each call, or one archive for each process.",
    ("folders", "packed"),
)
OP_CAPTURE_MODE = choice(
    "OP_CAPTURE_MODE",
    "tensors",
    "What is written of a tensor: values, statistics, or a hash.",
    ("tensors", "statistics", "hash"),
)
OP_CAPTURE_FIRST = integer(
    "OP_CAPTURE_FIRST",
    0,
    "Capture the first N calls of each signature, unless OP_TOOLS_FIRST is set; 0: all.",
    minimum=0,
)
OP_CAPTURE_INPUTS = choice(
    "OP_CAPTURE_INPUTS",
    "new",
    "Inputs with statistics: those that no recorded call has produced, or all.",
    ("new", "all"),
)
OP_CAPTURE_MEMORY = size(
    "OP_CAPTURE_MEMORY",
    1024**3,
    "Limit of the bytes that are pending to be written; above it the program waits.",
)
OP_TIME_MEASURE_MODE = choice(
    "OP_TIME_MEASURE_MODE",
    "events",
    "Measure with events of the device, or synchronize after each operator.",
    ("events", "sync"),
)
OP_TIME_MEASURE_TRACE = path(
    "OP_TIME_MEASURE_TRACE", lambda: Path(), "The file of a trace for Perfetto; empty: none."
)
OP_TOOLS_RESULTS = path(
    "OP_TOOLS_RESULTS",
    lambda: Path("op_tools_results"),
    "The folder of all results.",
)
OP_ONE_ITER_MODE = choice(
    "OP_ONE_ITER_MODE",
    "record",
    "Record an iteration, or compare one with a recorded one.",
    ("record", "compare"),
)
OP_ONE_ITER_RECORD = path(
    "OP_ONE_ITER_RECORD",
    lambda: OP_TOOLS_RESULTS.get() / "one_iter",
    "The folder of the record of an iteration.",
)
OP_ONE_ITER_STEP = integer(
    "OP_ONE_ITER_STEP", 0, "The iteration that is recorded or compared, from 0.", minimum=0
)
OP_ONE_ITER_JSON = path(
    "OP_ONE_ITER_JSON", lambda: Path(), "The file of the result as JSON; empty: none."
)
OP_RECORDER_LIMIT = size(
    "OP_RECORDER_LIMIT", 64 << 20, "Limit of the flight recorder's bytes on disk, for each process."
)
OP_RECORDER_HANG = integer(
    "OP_RECORDER_HANG", 600, "Seconds without a step after which a run counts as hung.", minimum=1
)
OP_BISECT_PLAN = path(
    "OP_BISECT_PLAN",
    lambda: Path(),
    "The calls that `deeplink bisect` moves to the CPU: a JSON file.",
)
OP_TOOLS_DISK_BUDGET = size(
    "OP_TOOLS_DISK_BUDGET",
    0,
    "Limit of the bytes that a process writes; 0: none. Not set: captured tensors take at most "
    "5 % of the free space.",
)
OP_TOOLS_NATIVE = boolean(
    "OP_TOOLS_NATIVE", True, "Use the native part of op_tools; 0: Python only, which is slower."
)
OP_TOOLS_LEVEL = choice(
    "OP_TOOLS_LEVEL",
    "api",
    "The operator level: functions of torch (api), kernels (aten), or modules.",
    ("api", "aten", "module"),
)
OP_TOOLS_DEVICES = words(
    "OP_TOOLS_DEVICES", (), "Device types to observe, such as cpu; empty: all but cpu."
)
OP_TOOLS_STEPS = steps("OP_TOOLS_STEPS", "Training steps to observe; empty: all.")
OP_TOOLS_RANKS = Setting(
    "OP_TOOLS_RANKS",
    lambda value: tuple(int(word) for word in value.split(",") if word.strip()),
    lambda: (),
    "Ranks to observe; empty: all.",
    "whole numbers, with commas between",
    lambda ranks: ",".join(map(str, ranks)),
)
OP_TOOLS_MODULES = words(
    "OP_TOOLS_MODULES", (), "Modules to observe, as patterns of their paths; empty: all."
)
OP_TOOLS_SITES = words(
    "OP_TOOLS_SITES", (), "Source lines to observe, as patterns of file.py:line; empty: all."
)
OP_TOOLS_FIRST = integer(
    "OP_TOOLS_FIRST", 0, "Observe the first N calls of each signature; 0: all.", minimum=0
)
OP_TOOLS_EVERY = integer(
    "OP_TOOLS_EVERY", 1, "Observe every k-th call of each operator.", minimum=1
)
OP_TOOLS_CONFIG = path("OP_TOOLS_CONFIG", lambda: Path(), "The older name of DEEPLINK_CONFIG.")
OP_TOOLS_RUN = words(
    "OP_TOOLS_RUN",
    (),
    "Tools that `import torch` starts, such as time,overflow; the program needs no change.",
)
OP_TOOLS_VERBOSE = boolean("OP_TOOLS_VERBOSE", False, "Print a table for each call.")
OP_TOOLS_PRINT_STACK = boolean(
    "OP_TOOLS_PRINT_STACK", False, "Print the Python stack with each table."
)
OP_TOOLS_MAX_CACHE_SIZE = integer(
    "OP_TOOLS_MAX_CACHE_SIZE",
    1000,
    "Rows that are buffered before they are written to a CSV file.",
    minimum=1,
)


def op_lists(tool: str) -> tuple[Setting[tuple[str, ...]], Setting[tuple[str, ...]]]:
    """Return the two lists of a tool by its variable's word: CAPTURE, TIME_MEASURE, …"""
    return globals()[f"OP_{tool}_LIST"], globals()[f"OP_{tool}_DISABLE_LIST"]


def op_tolerance(operator: str, dtype: str) -> tuple[float, float] | None:
    """Return `atol,rtol` for an operator's results of a type: its own,
    else the type's, else the common.
    """
    own = f"AUTOCOMPARE_ERROR_TOLERANCE_{dtype.upper()}"
    values = current().values
    for name in (f"{operator.upper()}_{own}", own, AUTOCOMPARE_ERROR_TOLERANCE.name):
        if name not in os.environ and KEYS.get(name) not in values:  # hot path
            continue
        setting = globals().get(name) or tolerance(name, "allclose for one operator.")
        found: tuple[float, float] | None = setting.get()
        if found is not None:
            return found
    return None


def op_casts(operator: str) -> dict[str, str] | None:
    """Return the types of one operator's reference ({OP}_OP_DTYPE_CAST_DICT); None when not set."""
    name = f"{operator.upper()}_OP_DTYPE_CAST_DICT"
    if name not in os.environ:  # hot path
        return None
    setting = casts(name, "", "Types of one operator.")
    return setting.get() if setting.is_set() else None
