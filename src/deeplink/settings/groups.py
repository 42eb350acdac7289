# SPDX-License-Identifier: Apache-2.0
"""The purpose of each setting and its key in deeplink.toml, in the order of the reference page.

A setting is in exactly one group. Its key is "" where no file can set it: it is needed before a
file is read, or only for a single run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Settings for one task, by name, each with its key in the file."""

    title: str
    keys: dict[str, str]


GROUPS = (
    Group(
        "Vendor, files and build",
        {
            "DEEPLINK_VENDOR": "vendor",
            "DEEPLINK_CONFIG": "",
            "DEEPLINK_CACHE_DIR": "cache_dir",
            "DEEPLINK_LANG": "language",
            "DIPU_BUILD_DIR": "build.dir",
            "DIPU_BUILD_JOBS": "build.jobs",
            "CXX": "build.cxx",
        },
    ),
    Group(
        "CUDA programs on another device",
        {
            "DITORCH": "",
            "DITORCH_STRICT": "ditorch.strict",
            "DITORCH_QUIET": "ditorch.quiet",
            "DITORCH_SHOW_DEVICE_AS_CUDA": "ditorch.show_device_as_cuda",
            "DITORCH_FLOAT32_REDUCE": "ditorch.float32_reduce",
            "DITORCH_NATIVE_HOOK": "ditorch.native_hook",
            "DITORCH_TRITON": "ditorch.triton",
            "DIPU_MOCK_CUDA": "ditorch.mock_cuda",
        },
    ),
    Group(
        "Operator tools: which calls, and where files go",
        {
            "OP_TOOLS_RUN": "",
            "OP_TOOLS_CONFIG": "",
            "OP_TOOLS_RESULTS": "tools.results",
            "OP_TOOLS_LEVEL": "tools.level",
            "OP_TOOLS_DEVICES": "tools.devices",
            "OP_TOOLS_STEPS": "tools.steps",
            "OP_TOOLS_RANKS": "tools.ranks",
            "OP_TOOLS_MODULES": "tools.modules",
            "OP_TOOLS_SITES": "tools.sites",
            "OP_TOOLS_FIRST": "tools.first",
            "OP_TOOLS_EVERY": "tools.every",
            "OP_TOOLS_VERBOSE": "tools.verbose",
            "OP_TOOLS_PRINT_STACK": "tools.print_stack",
            "OP_TOOLS_DISK_BUDGET": "tools.disk_budget",
            "OP_TOOLS_MAX_CACHE_SIZE": "tools.max_cache_size",
            "OP_TOOLS_NATIVE": "tools.native",
        },
    ),
    Group(
        "Compare operators with the CPU",
        {
            "OP_AUTOCOMPARE_LIST": "autocompare.ops",
            "OP_AUTOCOMPARE_DISABLE_LIST": "autocompare.disable",
            "OP_AUTOCOMPARE_STANDARD": "autocompare.standard",
            "OP_AUTOCOMPARE_MODE": "autocompare.mode",
            "OP_AUTOCOMPARE_BUDGET": "autocompare.budget",
            "OP_AUTOCOMPARE_BACKGROUND": "autocompare.background",
            "AUTOCOMPARE_ERROR_TOLERANCE": "autocompare.tolerance.default",
            "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16": "autocompare.tolerance.float16",
            "AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16": "autocompare.tolerance.bfloat16",
            "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32": "autocompare.tolerance.float32",
            "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64": "autocompare.tolerance.float64",
        },
    ),
    Group(
        "Capture operators",
        {
            "OP_CAPTURE_LIST": "capture.ops",
            "OP_CAPTURE_DISABLE_LIST": "capture.disable",
            "OP_CAPTURE_FIRST": "capture.first",
            "OP_CAPTURE_MODE": "capture.mode",
            "OP_CAPTURE_FORMAT": "capture.format",
            "OP_CAPTURE_INPUTS": "capture.inputs",
            "OP_CAPTURE_MEMORY": "capture.memory",
        },
    ),
    Group(
        "Time operators",
        {
            "OP_TIME_MEASURE_LIST": "time_measure.ops",
            "OP_TIME_MEASURE_DISABLE_LIST": "time_measure.disable",
            "OP_TIME_MEASURE_MODE": "time_measure.mode",
            "OP_TIME_MEASURE_TRACE": "time_measure.trace",
        },
    ),
    Group(
        "Run or compute operators differently",
        {
            "OP_FALLBACK_LIST": "fallback.ops",
            "OP_FALLBACK_DISABLE_LIST": "fallback.disable",
            "OP_DTYPE_CAST_LIST": "dtype_cast.ops",
            "OP_DTYPE_CAST_DISABLE_LIST": "dtype_cast.disable",
            "OP_DTYPE_CAST_DICT": "dtype_cast.casts",
        },
    ),
    Group(
        "Watch a training run",
        {
            "OP_OVERFLOW_CHECK_LIST": "overflow_check.ops",
            "OP_OVERFLOW_CHECK_DISABLE_LIST": "overflow_check.disable",
            "OP_OBSERVE_LIST": "observe.ops",
            "OP_OBSERVE_DISABLE_LIST": "observe.disable",
            "OP_GUARD_LIST": "guard.ops",
            "OP_GUARD_DISABLE_LIST": "guard.disable",
            "OP_GUARD_BUDGET": "guard.budget",
            "OP_GUARD_ON_FINDING": "guard.on_finding",
            "OP_RECORDER_LIMIT": "recorder.limit",
            "OP_RECORDER_HANG": "recorder.hang",
        },
    ),
    Group(
        "The reference device",
        {
            "DIPU_DEVICE_COUNT": "reference.devices",
            "DIPU_DEVICE_MEMORY": "reference.memory",
            "DIPU_QUIRKS": "reference.quirks",
            "DIPU_COLLECTIVES": "reference.collectives",
        },
    ),
    Group(
        "Kernels and memory of the device dipu",
        {
            "DIPU_MEM_CHECK": "device.mem_check",
            "DIPU_MEM_CHECK_ENABLE_BACKTRACE": "device.mem_check_backtrace",
            "DIPU_WITH_DIOPI_LIBRARY": "device.diopi_library",
            "DIPU_KERNELS": "device.kernels",
            "DIPU_FORCE_FALLBACK_OPS_LIST": "device.fallback",
            "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS": "device.keep_torch_default",
            "DIPU_AUTOCOMPARE_OPS_LIST": "device.autocompare",
            "DIPU_DUMP_OP_ARGS": "device.dump_args",
            "DIPU_FLIGHT_RECORD": "device.flight_record",
            "DIPU_FLIGHT_RECORD_DIR": "device.flight_record_dir",
            "DIPU_FLIGHT_RECORD_AFTER": "device.flight_record_after",
        },
    ),
    Group(
        "torch.compile",
        {
            "DICP_CACHE": "dicp.cache",
            "DICP_CACHE_DIR": "dicp.cache_dir",
            "DICP_VERIFY": "dicp.verify",
            "DICP_MEASURE": "dicp.measure",
            "DICP_PREFERENCE": "dicp.preference",
        },
    ),
    Group(
        "Serve large language models",
        {
            "DLINFER_VENDOR": "dlinfer.vendor",
            "DLINFER_STRICT": "dlinfer.strict",
            "DLINFER_GRAPH": "dlinfer.graph",
            "DLINFER_VLLM": "dlinfer.vllm",
        },
    ),
)

# The settings that most users need; docs/reference/settings.md starts with them.
COMMON = (
    "DEEPLINK_VENDOR",
    "DEEPLINK_CONFIG",
    "DEEPLINK_CACHE_DIR",
    "DEEPLINK_LANG",
    "DITORCH",
    "DITORCH_STRICT",
    "DITORCH_QUIET",
    "OP_TOOLS_RESULTS",
    "DIPU_QUIRKS",
    "DIPU_MEM_CHECK",
    "CXX",
)

# Variables between processes of this project: a command sets them for its child processes.
INTERNAL = (
    "DEEPLINK_LOSS_FILE",
    "OP_BISECT_PLAN",
    "OP_ONE_ITER_MODE",
    "OP_ONE_ITER_RECORD",
    "OP_ONE_ITER_STEP",
    "OP_ONE_ITER_JSON",
)

# Names in the published documents of op_tools, DIPU and DICP. Their meaning is a contract.
PUBLISHED = (
    "OP_CAPTURE_LIST",
    "OP_CAPTURE_DISABLE_LIST",
    "OP_AUTOCOMPARE_LIST",
    "OP_AUTOCOMPARE_DISABLE_LIST",
    "OP_FALLBACK_LIST",
    "OP_FALLBACK_DISABLE_LIST",
    "OP_DTYPE_CAST_LIST",
    "OP_DTYPE_CAST_DISABLE_LIST",
    "OP_DTYPE_CAST_DICT",
    "OP_TIME_MEASURE_LIST",
    "OP_TIME_MEASURE_DISABLE_LIST",
    "OP_OBSERVE_LIST",
    "OP_OBSERVE_DISABLE_LIST",
    "OP_OVERFLOW_CHECK_LIST",
    "OP_OVERFLOW_CHECK_DISABLE_LIST",
    "OP_TOOLS_MAX_CACHE_SIZE",
    "OP_TOOLS_PRINT_STACK",
    "AUTOCOMPARE_ERROR_TOLERANCE",
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16",
    "AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16",
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32",
    "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64",
    "DITORCH_SHOW_DEVICE_AS_CUDA",
    "DIPU_MOCK_CUDA",
    "DIPU_DUMP_OP_ARGS",
    "DIPU_FORCE_FALLBACK_OPS_LIST",
    "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS",
    "DIPU_AUTOCOMPARE_OPS_LIST",
    "DIPU_WITH_DIOPI_LIBRARY",
    "DIPU_MEM_CHECK",
    "DIPU_MEM_CHECK_ENABLE_BACKTRACE",
)

KEYS = {name: key for group in GROUPS for name, key in group.keys.items() if key}
# Options of a tool that have no environment variable.
ONLY_IN_FILE = tuple(f"autocompare.{word}" for word in ("sample", "bitwise", "recheck", "whole"))
# Sections of tools: each may override any key of [tools].
TOOL_SECTIONS = tuple(
    KEYS[name].removesuffix(".ops") for name in KEYS if KEYS[name].endswith(".ops")
)
SHARED = tuple("level devices steps ranks modules sites first every".split())
