"""Accuracy of diagnosis: each numeric fault of the reference device, planted in the training of a
transformer and of a CNN, in float32 and bfloat16, is searched by bisect, then by diff.

    python benchmarks/bench_diagnose.py [--quick] [--only tf32] [--json FILE]

All runs share one process, which saves imports. "runs" counts the runs of the search and its
preparation; "right" is whether exactly the faulty operators are named, and by diff the first
incorrect call. The last lines: correct trainings, for which nothing may be reported, and the speed
of comparing two archives.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import op_tools
import torch_dipu  # noqa: F401
from deeplink.console import console, table
from op_tools.core import native_library, step_counter
from op_tools.diagnosis.bisect.ddmin import Search
from op_tools.diagnosis.bisect.driver import Asked, Bisection
from op_tools.diagnosis.bisect.runner import Function
from op_tools.diagnosis.diff import recordings
from op_tools.diagnosis.diff.driver import diff
from op_tools.diagnosis.diff.recordings import Recording

STEPS = 3


class Transformer(nn.Module):
    """Two layers, with attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x.flatten(2).transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(self.norm(x).mean(1))
        return made


class Convolutional(nn.Module):
    """Two convolutions with batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 32, 3)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(32)])
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.first(x)))
        x = F.relu(self.norms[1](self.second(x))) * 1.5
        made: Tensor = self.head(x.mean((2, 3)))
        return made


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "cnn": Convolutional}


@dataclass(frozen=True)
class Planted:
    """A fault, the operators that have it, and the models that call them."""

    quirk: str
    ops: str  # of the quirk
    models: str
    more: tuple[tuple[str, float], ...] = ()
    dtypes: str = "float32 bfloat16"


PLANTED = (
    Planted("ignore_strides", "mm", "transformer cnn"),
    Planted("bf16_accumulate", "addmm", "transformer"),
    Planted("bf16_accumulate", "mm", "transformer"),
    Planted("bf16_accumulate", "mm", "cnn", dtypes="float32"),  # in bfloat16 it has no effect there
    Planted("tf32", "addmm", "transformer cnn", dtypes="float32"),
    Planted("tf32", ".*convolution.*", "cnn", dtypes="float32"),
    Planted("wrong_epsilon", ".*layer_norm", "transformer"),
    Planted("wrong_epsilon", ".*batch_norm", "cnn"),
    Planted("nan", "native_layer_norm", "transformer", (("call", 7),)),
    Planted("nan", "relu", "cnn", (("call", 4),)),
    Planted("bit_flip", "add.Tensor", "transformer", (("p", 1.0), ("seed", 1))),
    Planted("bit_flip", "mul.Tensor", "cnn", (("p", 1.0), ("seed", 2))),
)


def training(model: str, dtype: torch.dtype, planted: Planted | None) -> Callable[[], list[float]]:
    """Return a function that runs an equal training each time."""

    def run() -> list[float]:
        step_counter.reset()
        if planted is None:
            return _train(model, dtype)
        with torch.dipu.quirk(  # type: ignore[attr-defined]
            planted.quirk, planted.ops, **dict(planted.more)
        ):
            return _train(model, dtype)

    return run


def _train(model: str, dtype: torch.dtype) -> list[float]:
    torch.manual_seed(0)
    network = MODELS[model]().to("dipu", dtype)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, 8, 8, 8).to("dipu", dtype)
        target = torch.randint(0, 4, (8,)).to("dipu")
        loss = F.cross_entropy(network(x).float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@dataclass(frozen=True)
class Outcome:
    """The outcome of one planted fault, or of a correct training."""

    fault: str
    model: str
    dtype: str
    named: str
    runs: int
    seconds: float
    first: str
    right: bool


def tried(model: str, name: str, planted: Planted | None, folder: Path) -> Outcome:
    """Run bisect and diff on one training."""
    dtype: torch.dtype = getattr(torch, name)
    call, begun = training(model, dtype, planted), time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        found = Bisection(Function(call, ["train"]), folder, Asked(places=False)).run()
        taken = time.monotonic() - begun
        a = recorded(training(model, dtype, None), folder / "a")
        b = recorded(call, folder / "b")
        parted = diff(a, b)
    named = [row["op"] for row in found["guilty"]]
    first = parted["first"]["op"] if parted["first"] else ""
    right = not named and not first
    if planted is not None:
        mine = [bool(re.fullmatch(planted.ops, _short(op, planted))) for op in [*named, first]]
        right = bool(named) and all(mine)
    fault = f"{planted.quirk}:{planted.ops}" if planted is not None else "healthy"
    return Outcome(fault, model, name, " ".join(named), len(found["runs"]), taken, first, right)


def _short(op: str, planted: Planted) -> str:
    """Return the name in a quirk: mm for aten.mm.default,
    with the overload where the quirk has one.
    """
    parts = op.split(".")
    if len(parts) < 3:
        return op
    full = f"{parts[1]}.{parts[2]}"
    return full if "Tensor" in planted.ops else parts[1]


def recorded(call: Callable[[], list[float]], folder: Path) -> Recording:
    """Record the training with every kernel in a packed archive."""
    folder.mkdir(parents=True)
    before = op_tools.core.output_paths.folder
    op_tools.core.output_paths.folder = lambda kind: folder
    try:
        with op_tools.OpCapture(level="aten", format="packed"):
            call()
    finally:
        op_tools.core.output_paths.folder = before
    return recordings.read(folder)


def speed(size: int = 1 << 24) -> float:
    """Measure GB/s of one core, both sides counted, from memory."""
    helper = native_library.helper()
    if helper is None:
        return 0.0
    a = torch.randn(size)
    b = a * 1.0001
    best = float("inf")
    for _ in range(5):
        begun = time.process_time()
        helper.compare(a.data_ptr(), b.data_ptr(), size, 0)
        best = min(best, time.process_time() - begun)
    return 2 * a.nbytes / best / 1e9


def counts() -> tuple[int, int]:
    """Return the maximum runs for one faulty among 1,000,
    and for two together, with preparation.
    """
    most = [0, 0]
    for at in range(0, 1000, 7):
        for kind, bad in enumerate(({at}, {at, (at * 37 + 11) % 1000})):
            search = Search(list(range(1000)), lambda some, bad=bad: bad <= set(some))  # type: ignore[misc]
            search.run()
            most[kind] = max(most[kind], search.checks + 2)
    return most[0], most[1]


def cases(only: str, quick: bool) -> list[tuple[str, str, Planted | None]]:
    rows: list[tuple[str, str, Planted | None]] = [
        (model, dtype, planted)
        for planted in PLANTED
        for model in planted.models.split()
        for dtype in planted.dtypes.split()
        if only in planted.quirk
    ]
    rows += [(model, dtype, None) for model in MODELS for dtype in ("float32", "bfloat16")]
    return rows[::4] if quick else rows


def main() -> int:
    """Run the cases; return 0 if all are named correctly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fourth case")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--json", type=Path, help="write the rows")
    given = parser.parse_args()
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases(given.only, given.quick)):
            found.append(tried(*case, Path(folder) / str(number)))
            row = found[-1]
            mark = "ok" if row.right else "FAILED"
            print(f"{mark} {row.fault} {row.model} {row.dtype}: {row.named}", file=sys.stderr)
    rows = [
        (row.fault, row.model, row.dtype, row.named or "nobody", str(row.runs),
         f"{row.seconds:.1f} s", row.first or "nothing", "ok" if row.right else "FAILED")
        for row in found
    ]  # fmt: skip
    columns = ("fault", "model", "dtype", "bisect", "runs", "time", "diff", "status")
    console().print(table("Diagnosis on the reference device", columns, rows))
    one, two = counts()
    minutes = sum(row.seconds for row in found) / 60
    print(f"{sum(row.right for row in found)} of {len(found)} right, {minutes:.1f} minutes")
    print(f"one faulty among 1,000: at most {one} runs; two together: at most {two}")
    print(f"comparing from memory, float32: {speed():.1f} GB/s of one core")
    if given.json:
        given.json.write_text(json.dumps([vars(row) for row in found], indent=1))
    return 0 if all(row.right for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
