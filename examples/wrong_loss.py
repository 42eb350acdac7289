"""A chip with a fault: the loss is wrong, a tool names the operator, another fixes the run, and a
page shows both.

The program is train_cuda_style.py, unchanged. The fault is switched on in the reference device: its
matrix product reads a transposed matrix as if it were not transposed.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

PATH, HERE = Path(__file__).resolve().with_name("train_cuda_style.py"), Path.cwd()
PROGRAM = str(PATH.relative_to(HERE) if PATH.is_relative_to(HERE) else PATH)
FAULT = {"DEEPLINK_VENDOR": "reference", "DIPU_QUIRKS": "ignore_strides:mm"}
RESULTS = Path("op_tools_results/demo")
PAGE = (RESULTS / "report.html").resolve()
console = Console(highlight=False, soft_wrap=True)


def run(title: str, *tools: str, steps: int, **environment: str) -> tuple[int, str]:
    """`deeplink run tools… train_cuda_style.py` with the fault: its status and output."""
    shown = " ".join(["deeplink run", *tools, PROGRAM])
    fault = f"DIPU_QUIRKS={FAULT['DIPU_QUIRKS']}"
    console.print(f"\n[bold]{title}[/bold]\n$ {fault} {shown} --steps {steps}", style="cyan")
    line = [sys.executable, "-m", "deeplink", "run", *tools, PROGRAM, "--steps", str(steps)]
    done = subprocess.run(
        line,
        env={**os.environ, **FAULT, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    losses = [text for text in done.stdout.splitlines() if text.startswith("Loss ")]
    if not losses:
        console.print(done.stdout, style="red")
        sys.exit("the program did not come to its end")
    console.print(losses[-1])
    return done.returncode, done.stdout


def wrong_operators(folder: Path) -> Counter[str]:
    """The operators whose results or gradients were wrong, by the tool's CSV file."""
    found: Counter[str] = Counter()
    for file in folder.glob("op_autocompare_result/*.csv"):
        with file.open() as rows:
            found.update(
                row["name"].split()[0] for row in csv.DictReader(rows) if row["allclose"] != "True"
            )
    return found


def verdict(said: str) -> str:
    """What OpAutoCompare says about the worst result: the lines down to the workaround."""
    for paragraph in re.split(r"\n\s*\n", said):
        lines = paragraph.splitlines()
        for at, line in enumerate(lines):
            if "deeplink run --fallback" in line:
                return "\n".join(lines[: at + 1])
    return ""


def main() -> int:
    """Run the program three times and write the page; 0 when the fault is found and fixed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="training steps (default 30)")
    steps = parser.parse_args().steps
    shutil.rmtree(RESULTS, ignore_errors=True)
    results = {"OP_TOOLS_RESULTS": str(RESULTS)}
    title = "1. The chip has a fault: the loss is wrong. (Two of the steps are timed.)"
    timed = ["--time", "--trace", str(RESULTS / "trace.json"), "--steps", "3-4"]
    status, _ = run(title, *timed, steps=steps, **results)
    if status == 0:
        sys.exit("the fault did no harm")
    compare = ["--autocompare", "--steps", "0-1"]
    _, said = run("2. Which operator is it?", *compare, steps=2, **results)
    found = wrong_operators(RESULTS)
    if not found:
        sys.exit("no operator was found wrong")
    operator, count = found.most_common(1)[0]
    others = ", ".join(name for name in found if name != operator) or "no other"
    console.print(f"wrong: [bold red]{operator}[/bold red] ({count} times); {others}")
    console.print(verdict(said), markup=False)
    title = "3. With this operator on the CPU the run is correct."
    status, said = run(title, "--fallback", operator, steps=steps)
    fixed = status == 0 and re.search(r"\(within", said) is not None
    console.print("fixed" if fixed else "NOT fixed", style="green" if fixed else "bold red")
    console.print(
        f"\n[bold]4. The report of these runs.[/bold]\n$ deeplink report {RESULTS}", style="cyan"
    )
    line = [sys.executable, "-m", "deeplink", "report", str(RESULTS), "-o", str(PAGE)]
    shown = subprocess.run(line, check=False).returncode
    return 0 if fixed and shown == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
