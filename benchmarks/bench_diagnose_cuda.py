"""Accuracy of diagnosis on a CUDA GPU: the commands, as typed by a user, on a small transformer's
training (planted_training.py) with a fault in one kernel, and without one.

    python benchmarks/bench_diagnose_cuda.py [--only bisect] [--jobs 8] [--keep DIR] [--json FILE]

Each case is a command in its own process; several run concurrently. "right" is whether exactly the
faulty operator is named, or nothing where no fault was planted. `--device dipu` runs the cases
on the reference device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "planted_training.py"
DEEPLINK = [sys.executable, "-m", "deeplink"]


@dataclass(frozen=True)
class Case:
    """One command on one training, and the expected result."""

    tool: str
    fault: str
    wanted: str  # the operator; "" for none
    more: str = ""  # of the training


CASES = (
    Case("bisect", "mm", "aten.mm.default"),
    Case("bisect", "mm", "aten.mm.default", "--dtype bfloat16 --fused"),
    Case("bisect", "layer_norm", "aten.native_layer_norm.default"),
    Case("bisect", "layer_norm", "aten.native_layer_norm.default", "--dtype bfloat16"),
    Case("bisect", "none", ""),
    Case("bisect", "none", "", "--fused"),
    Case("bisect", "none", "", "--dtype bfloat16 --fused"),
    Case("bisect --check nan", "nan", "aten.gelu.default"),
    Case("diff", "mm", "aten.mm.default"),
    Case("diff", "layer_norm", "aten.native_layer_norm.default", "--dtype bfloat16"),
    Case("diff", "none", "", "--fused"),
    Case("why-nan", "nan", "aten.gelu.default"),
    Case("why-nan", "none", "", "--fused"),
    Case("recorder", "nan", "nan"),
    Case("recorder", "signal", "signal"),
    Case("recorder", "none", ""),
    Case("determinism", "atomics", "aten.index_add.default"),
    Case("determinism", "none", ""),
    Case("diagnose --symptom nan", "nan", "aten.gelu.default"),
    Case("report", "none", ""),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    case: Case
    named: str
    runs: int
    seconds: float
    right: bool
    told: str


class Trial:
    """A case in its own folder."""

    def __init__(self, case: Case, device: str, folder: Path, timeout: float) -> None:
        self.case, self.folder, self.device, self.timeout = case, folder, device, timeout
        folder.mkdir(parents=True)

    def program(self, fault: str = "") -> list[str]:
        given = f"--device {self.device} --fault {fault or self.case.fault} {self.case.more}"
        if self.case.tool.startswith("recorder"):
            given += " --steps 24"
        return [str(PROGRAM), *given.split()]

    def deeplink(self, *line: str) -> int:
        """Run `deeplink …` in the folder; store its output and return its status."""
        with (self.folder / "output.txt").open("a") as out:
            print("$ deeplink", *line, file=out, flush=True)
            done = subprocess.run(
                [*DEEPLINK, *line], cwd=self.folder, stdout=out, stderr=out, timeout=self.timeout,
                check=False,
            )  # fmt: skip
        return done.returncode

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


Found = tuple[str, int, str]  # the named operator, the number of runs, and the output


def bisect(trial: Trial) -> Found:
    options = trial.case.tool.split()[1:]
    trial.deeplink("bisect", *options, "--", "python", *trial.program())
    found = trial.read("bisect_results/bisect.json")
    named = " ".join(row["op"] for row in found["guilty"])
    if found["status"] not in ("found", "nothing"):
        named = found["status"]
    return named, len(found["runs"]), found["verdict"]


def diff(trial: Trial) -> Found:
    for name, fault in (("a", "none"), ("b", trial.case.fault)):
        trial.deeplink(
            *("run", "--capture", "--first", "0", "--level", "aten", "--results", name),
            *trial.program(fault),
        )
    trial.deeplink("diff", "a", "b")
    found = trial.read("diff.json")
    first = found["first"]
    return first["op"] if first else "", 2, f"{found['status']}: {found['verdict']}"


def why_nan(trial: Trial) -> Found:
    trial.deeplink("why-nan", "-o", "found", "--", "python", *trial.program())
    (file,) = trial.folder.glob("found/why_nan/*.json")
    found = json.loads(file.read_text())
    named = found["origin"]["op"] if found["status"] == "found" else ""
    return named, 1, found["verdict"]


def recorder(trial: Trial) -> Found:
    trial.deeplink("run", "--recorder", "--results", "kept", *trial.program())
    lines: list[dict[str, Any]] = []
    for file in sorted(trial.folder.glob("kept/recorder/*.[01].jsonl")):
        lines += [json.loads(line) for line in file.read_text().splitlines()]
    events = [line for line in lines if "event" in line]
    texts = "; ".join(line["text"] for line in events)
    steps = sum("ms" in line for line in lines)
    return " ".join(line["event"] for line in events), 1, f"{steps} steps; {texts}"


def determinism(trial: Trial) -> Found:
    trial.deeplink("determinism", "--", "python", *trial.program())
    found = trial.read("determinism_results/determinism.json")
    named = found["first"]["op"] if found["first"] else ""
    if found["status"] == "broken":
        named = "broken"
    if named and len(found["kept"]) != 2:
        named += " (not kept)"
    return named, len(found["runs"]), found["verdict"]


def diagnose(trial: Trial) -> Found:
    options = trial.case.tool.split()[1:]
    status = trial.deeplink("diagnose", *options, "-o", "found", "--", "python", *trial.program())
    named = next((w.strip(",.:") for w in trial.output.split() if w.startswith("aten.")), "")
    page = (trial.folder / "found" / "report.html").exists()
    return named if page else f"{named}, no page", 1, f"status {status}, page {page}"


def report(trial: Trial) -> Found:
    trial.deeplink("run", "--time", "--autocompare", "--results", "made", *trial.program())
    files = ("--perfetto", "trace.json", "--output", "report.html")
    status = trial.deeplink("report", "made", *files)
    events = len(trial.read("trace.json"))
    size = (trial.folder / "report.html").stat().st_size
    named = "" if status == 0 and events else f"status {status}"
    return named, 1, f"page of {size} bytes, {events} events of the trace"


TOOLS: dict[str, Callable[[Trial], Found]] = {
    "bisect": bisect, "diff": diff, "why-nan": why_nan, "recorder": recorder,
    "determinism": determinism, "diagnose": diagnose, "report": report,
}  # fmt: skip


def tried(case: Case, device: str, folder: Path, timeout: float) -> Outcome:
    """Run one case; a missing output counts as wrong."""
    trial, begun = Trial(case, device, folder, timeout), time.monotonic()
    try:
        named, runs, told = TOOLS[case.tool.split()[0]](trial)
        right = named == case.wanted
    except Exception as error:  # a row of the table must not end it
        named, runs, told, right = "", 0, f"{type(error).__name__}: {error}", False
    return Outcome(case, named, runs, time.monotonic() - begun, right, told)


def main() -> int:
    """Run the cases; return 0 if all are named correctly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="cases with this in their tool or fault")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a command")
    parser.add_argument("--keep", type=Path, help="where the files stay")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases = [c for c in CASES if given.only in f"{c.tool} {c.fault} {c.more}"]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(given.jobs) as pool:
        place = given.keep or Path(temporary)
        trials = [
            pool.submit(tried, case, given.device, place / f"{at:02}", given.timeout)
            for at, case in enumerate(cases)
        ]
        found = [trial.result() for trial in trials]
    made = Table("tool", "fault", "named", "runs", "time", "status", title=f"on {given.device}")
    for row in found:
        fault = f"{row.case.fault} {row.case.more}"
        status = "ok" if row.right else "FAILED"
        named = row.named or "nobody"
        made.add_row(row.case.tool, fault, named, str(row.runs), f"{row.seconds:.0f} s", status)
    Console().print(made)
    for row in found:
        print(f"{'ok' if row.right else 'FAILED'} {row.case.tool} {row.case.fault}: {row.told}")
    if given.json is not None:
        rows = [{**vars(row), "case": vars(row.case)} for row in found]
        given.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row.right for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
