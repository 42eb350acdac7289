"""Every operator of torch's op_db: captured, stored, loaded, made again and compared.

python -m tests.op_tools.capture_coverage                      every 12th operator
python -m tests.op_tools.capture_coverage --all --format folders
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from deeplink.testing import samples
from op_tools.capture.tool import OpCapture
from op_tools.core import tool_errors
from op_tools.replay import Case, load_cases
from op_tools.run_op_from_data import Plan, run_case
from tests.opinfo import core

SAMPLES = 2
EVERY = 12

# The samples themselves are made with these.
HELPERS = ("torch.empty", "torch.randn_like", "torch.Tensor.set_")

# What does not come back as it was, with the reason.
KNOWN = {
    "as_strided.partial_views": "it reads memory outside of its argument, which is not captured",
    "nn.functional.triplet_margin_with_distance_loss": "its distance is a module, which is code",
}


@dataclass(frozen=True)
class Result:
    """One captured call of one sample: "ok", "random", "ran", or what was wrong."""

    op: str
    dtype: str
    sample: int
    call: str
    status: str

    @property
    def good(self) -> bool:
        return self.status in ("ok", "random", "ran")


def results(
    op: Any, dtype: str, device: str, form: str = "packed", count: int = SAMPLES
) -> Iterator[Result]:
    """The calls of an operator's samples, after the way through the store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operators' own
        for index, sample in enumerate(itertools.islice(core._samples(op, dtype), count)):
            yield from _sample(op, dtype, index, sample, device, form)


def _sample(
    op: Any, dtype: str, index: int, sample: Any, device: str, form: str
) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OP_TOOLS_RESULTS", folder)
        tool_errors.clear()
        try:
            own = [name for name in HELPERS if name.rpartition(".")[2] != op.name]
            with contextlib.redirect_stdout(io.StringIO()), OpCapture(disable=own, format=form):
                made = samples.call(op, sample, device)
                samples.gradients(sample, made, samples.seeds(sample, made))
        except Exception:  # the device's own limits are tested elsewhere
            return
        for problem in tool_errors.problems():
            yield Result(op.full_name, dtype, index, problem.op, f"in the tool: {problem.message}")
        if not any(Path(folder).rglob("input.pth")) and form == "folders":
            return
        yield from _replayed(op.full_name, dtype, index, folder)


def _replayed(op: str, dtype: str, index: int, folder: str) -> Iterator[Result]:
    try:
        found = load_cases(folder)
    except Exception as error:  # an archive without a call: nothing was seen
        if "no captured call" not in str(error):
            yield Result(op, dtype, index, "", f"load: {error}")
        return
    for case in found:
        outcome = run_case(case, Plan())
        status = {"not comparable": "random"}.get(outcome.status, outcome.status)
        if outcome.status == "error" and not _has_output(case):
            status = "ran"  # it raised then, too
        elif outcome.status not in ("ok", "ran", "not comparable"):
            status = f"{outcome.status}: {outcome.message}"
        yield Result(op, dtype, index, outcome.name, status)


def _has_output(case: Case) -> bool:
    try:
        return case.load().has_output
    except Exception:  # it cannot be read at all: that is what is wrong
        return True


def sampled(ops: dict[str, Any], every: int = EVERY) -> list[str]:
    """Every so many of the operators, by name."""
    return sorted(ops)[::every]


def main() -> int:
    """The table; 1 when less than 99 % come back, or one that is not known does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--format", default="packed", choices=("packed", "folders"))
    parser.add_argument("--device", default="dipu")
    parser.add_argument("--ops", nargs="*")
    asked = parser.parse_args()
    ops = core.load_ops()
    chosen = asked.ops or (sorted(ops) if asked.all else sampled(ops))
    counts: Counter[str] = Counter()
    good: dict[tuple[str, str], bool] = {}
    for result in everything(ops, chosen, asked.device, asked.format):
        counts[result.status if result.good else "wrong"] += 1
        key = (result.op, result.dtype)
        good[key] = good.get(key, True) and result.good
        if not result.good:
            why = KNOWN.get(result.op, result.status)
            print(f"{result.op} {result.dtype} #{result.sample} {result.call}: {why[:160]}")
    print(f"calls: {dict(counts)}")
    print(f"op and dtype: {sum(good.values())} of {len(good)}")
    unknown = [key for key, passed in good.items() if not passed and key[0] not in KNOWN]
    return int(bool(unknown) or sum(good.values()) < 0.99 * len(good))


def everything(
    ops: dict[str, Any], chosen: Sequence[str], device: str, form: str = "packed"
) -> Iterator[Result]:
    """The results of all the chosen operators in all the types."""
    for name in chosen:
        for dtype in core.DTYPES:
            if core.supports(ops[name], dtype):
                yield from results(ops[name], dtype, device, form)


if __name__ == "__main__":
    import os

    # some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 bmm
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    import torch_dipu  # noqa: F401

    torch.set_num_threads(1)
    sys.exit(main())
