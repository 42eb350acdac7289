"""A chip with a fault: the loss goes wrong, a tool names the operator, another mends the run, and a
page shows it all.

The program is train_cuda_style.py, which knows nothing of any of this. The fault is switched on
in the reference device: its matrix product reads a transposed matrix as if it were not.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

PROGRAM = str(Path(__file__).with_name("train_cuda_style.py"))
FAULT = "ignore_strides:mm"
RESULTS = Path("op_tools_results/demo")
PAGE = (RESULTS / "report.html").resolve()
console = Console(highlight=False, soft_wrap=True)


def run(title: str, *tools: str, steps: int, **environment: str) -> tuple[int, str]:
    """`deeplink run tools… train_cuda_style.py`; its status and what it printed."""
    shown = " ".join(["deeplink run", *tools, "examples/train_cuda_style.py"])
    console.print(f"\n[bold]{title}[/bold]\n$ {shown} --steps {steps}", style="cyan")
    line = [sys.executable, "-m", "deeplink", "run", *tools, PROGRAM, "--steps", str(steps)]
    done = subprocess.run(
        line, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    losses = [text for text in done.stdout.splitlines() if text.startswith("Loss ")]
    if not losses:
        console.print(done.stdout, style="red")
        sys.exit("the program did not come to its end")
    console.print(losses[-1])
    return done.returncode, done.stdout


def guilty(folder: Path) -> Counter[str]:
    """The operators whose results or gradients were wrong, by the tool's CSV file."""
    found: Counter[str] = Counter()
    for file in folder.glob("op_autocompare_result/*.csv"):
        with file.open() as rows:
            found.update(
                row["name"].split()[0] for row in csv.DictReader(rows) if row["allclose"] != "True"
            )
    return found


def first_finding(said: str, operator: str) -> str:
    """What the tool says first about an operator: by how much it is wrong, and on which line."""
    lines = said.splitlines()
    for line, following in itertools.pairwise(lines):
        if line.startswith(operator) and following.strip().startswith("at "):
            return f"{line}\n{following}"
    return ""


def main() -> int:
    """The story in three runs and a page; 0 when it ends as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="training steps (default 30)")
    steps = parser.parse_args().steps
    shutil.rmtree(RESULTS, ignore_errors=True)
    faulty = {"DIPU_QUIRKS": FAULT, "OP_TOOLS_RESULTS": str(RESULTS)}
    title = "1. The chip has a fault: the loss goes wrong. (Two of the steps are timed.)"
    timed = ["--time", "--trace", str(RESULTS / "trace.json"), "--steps", "3-4"]
    status, _ = run(title, *timed, steps=steps, **faulty)
    if status == 0:
        sys.exit("the fault did no harm")
    compare = ["--autocompare", "--steps", "0-1"]
    _, said = run("2. Which operator is it?", *compare, steps=2, **faulty)
    found = guilty(RESULTS)
    if not found:
        sys.exit("no operator was found wrong")
    operator, count = found.most_common(1)[0]
    others = ", ".join(name for name in found if name != operator) or "no other"
    console.print(f"wrong: [bold red]{operator}[/bold red] ({count} times); {others}")
    console.print(first_finding(said, operator), markup=False)
    title = "3. Meanwhile, that operator on the CPU: the run is mended."
    status, said = run(title, "--fallback", operator, steps=steps, DIPU_QUIRKS=FAULT)
    mended = status == 0 and re.search(r"\(within", said) is not None
    console.print("mended" if mended else "NOT mended", style="green" if mended else "bold red")
    console.print(
        f"\n[bold]4. All of it on one page.[/bold]\n$ deeplink report {RESULTS}", style="cyan"
    )
    line = [sys.executable, "-m", "deeplink", "report", str(RESULTS), "-o", str(PAGE)]
    shown = subprocess.run(line, check=False).returncode
    return 0 if mended and shown == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
