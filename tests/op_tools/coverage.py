"""Every operator of torch's op_db through every tool: nothing changed, or changed as by hand.

python -m tests.op_tools.coverage                       a sample of the operators
python -m tests.op_tools.coverage --all --tools OpFallback OpDtypeCast
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import op_tools
from deeplink.testing import samples
from op_tools.core import tool_errors
from op_tools.core.tool import Observer
from tests.opinfo import core

SAMPLES = 2


class Plain(Observer):
    """A tool that does nothing: what is left is the interception."""

    key = "OBSERVE"
    hook = "PlainHook"


TOOLS: dict[str, Callable[[], Any]] = {
    "interception": lambda: Plain(),
    "interception, aten": lambda: Plain(level="aten"),
    **{
        name: getattr(op_tools, name)
        for name in (
            "OpCapture",
            "OpAutoCompare",
            "OpTimeMeasure",
            "OpFallback",
            "OpDtypeCast",
            "OpObserve",
            "OpOverflowCheck",
        )
        if hasattr(op_tools, name)
    },
    "OpFallback, aten": lambda: op_tools.OpFallback(level="aten"),
}
SUBSTITUTES = ("OpFallback", "OpFallback, aten", "OpDtypeCast")
# Known failures, with the reason: (tool, operator) -> why.
BY_DEVICE_TYPE = "torch chooses the accumulation of this function by the type of the device"
KNOWN = {
    ("OpFallback", "nn.functional.linear_cross_entropy.chunked"): BY_DEVICE_TYPE,
    ("OpFallback", "nn.functional.linear_cross_entropy.chunked_none"): BY_DEVICE_TYPE,
}
CASTS = {"float32": "float32->float64", "bfloat16": "bfloat16->float32"}


@dataclass(frozen=True)
class Case:
    """One sample of one operator in one type, through one tool: "" or what was wrong."""

    tool: str
    op: str
    dtype: str
    sample: int
    error: str


@dataclass(frozen=True)
class Ran:
    """What one run left behind."""

    outputs: Any
    gradients: Any
    random: tuple[torch.Tensor, torch.Tensor]


def cases(op: Any, dtype: str, tools: list[str], device: str) -> Iterator[Case]:
    """The samples of one operator through each tool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operators' own
        for index, sample in enumerate(itertools.islice(core._samples(op, dtype), SAMPLES)):
            try:
                plain = run(op, sample, device)
            except Exception:  # the device's own limits are tested elsewhere
                continue
            for tool in tools:
                error = check(op, sample, dtype, tool, plain, device)
                yield Case(tool, op.full_name, dtype, index, error)


def run(op: Any, sample: Any, device: str) -> Ran:
    """Forward and backward on the device."""
    made = samples.call(op, sample, device)
    gradients = samples.gradients(sample, made, samples.seeds(sample, made))
    module = getattr(torch, torch.device(device).type)
    return Ran(made.outputs, gradients, (torch.get_rng_state(), module.get_rng_state()))


def check(op: Any, sample: Any, dtype: str, tool: str, plain: Ran, device: str) -> str:
    """What is wrong about one sample through one tool; "" when nothing is."""
    tool_errors.clear()
    make = TOOLS[tool]
    if tool == "OpDtypeCast" and dtype in CASTS:
        make = lambda: op_tools.OpDtypeCast(casts=CASTS[dtype])  # noqa: E731
    started = make()
    try:
        with contextlib.redirect_stdout(io.StringIO()), started:
            seen = run(op, sample, device)
            if tool == "OpTimeMeasure":  # the second call of a kind is timed natively
                seen = run(op, sample, device)
    except Exception as error:  # only crashes count
        return f"crash: {type(error).__name__}: {str(error)[:200]}"
    if tool_errors.problems():
        problem = tool_errors.problems()[0]
        return f"inside the tool: {problem.op}: {problem.message}"
    if op.name in samples.UNINITIALISED:
        return ""
    if tool == "OpDtypeCast":
        return _same_kind(seen.outputs, plain.outputs)
    exact = tool not in SUBSTITUTES
    error = _equal("result", seen.outputs, plain.outputs, exact)
    error = error or _equal("gradient", seen.gradients, plain.gradients, exact)
    return error or _equal("random state", seen.random, plain.random, True)


def _equal(what: str, mine: Any, wanted: Any, exact: bool) -> str:
    """Bit by bit under a tool that observes. On the reference device the CPU's results are the
    device's, but for the order of sums, where a copy on the host has other strides.
    """
    got, want = pytree.tree_leaves(mine), pytree.tree_leaves(wanted)
    if len(got) != len(want):
        return f"{what}: {len(got)} instead of {len(want)}"
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            problem = _tensors_equal(a, b, exact)
            if problem:
                return f"{what}: {problem}"
        elif isinstance(b, (int, float, complex)) and not (a == b or a != a):
            return f"{what}: {a} instead of {b}"
    return ""


def _tensors_equal(a: Any, b: torch.Tensor, exact: bool) -> str:
    if not isinstance(a, torch.Tensor) or a.dtype != b.dtype or a.device != b.device:
        return f"{_kind(a)} instead of {_kind(b)}"
    if a.layout != b.layout or (not a.is_nested and a.shape != b.shape):
        return f"{_kind(a)} {list(a.shape)} instead of {_kind(b)} {list(b.shape)}"
    try:
        limits = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), equal_nan=True, **limits)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


def _same_kind(mine: Any, wanted: Any) -> str:
    """Types, devices and shapes as they would have been; the values are another type's."""
    for a, b in zip(pytree.tree_leaves(mine), pytree.tree_leaves(wanted), strict=True):
        if isinstance(b, torch.Tensor) and _kind(a) != _kind(b):
            return f"result: {_kind(a)} instead of {_kind(b)}"
    return ""


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} on {value.device} ({value.layout})"


def sampled(ops: dict[str, Any], step: int) -> list[str]:
    return sorted(ops)[::step]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every operator, not every 12th")
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--dtypes", nargs="*", default=list(core.DTYPES))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--device", default="dipu")
    options = parser.parse_args()
    ops = core.load_ops()
    chosen = options.ops or sampled(ops, 1 if options.all else 12)
    total: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    known: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in chosen:
            for dtype in options.dtypes:
                if not core.supports(ops[name], dtype):
                    continue
                for case in cases(ops[name], dtype, options.tools, options.device):
                    total[case.tool] += 1
                    if case.error and (case.tool, name) in KNOWN:
                        known[case.tool] += 1
                    elif case.error:
                        bad[case.tool] += 1
                        print(f"{case.tool}: {name} {dtype} [{case.sample}]: {case.error}")
    for tool, count in total.items():
        good = count - bad[tool] - known[tool]
        print(f"{tool}: {good} of {count} ({100 * good / count:.2f} %), {known[tool]} known")
    return 1 if bad else 0


if __name__ == "__main__":
    import torch_dipu  # noqa: F401

    sys.exit(main())
