"""Run the commands of the symptom table in both READMEs, and write the table with what they print.

Run `python -m scripts.readme_output`. The program is examples/train_small.py; each fault is
switched on in the reference device.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "examples/train_small.py"
PAGES = {"en": ROOT / "README.md", "zh": ROOT / "docs/zh/README.md"}
BEGIN, END = "<!-- python -m scripts.readme_output -->", "<!-- end -->"
HEADS = {
    "en": "| symptom | command | cost | it prints |",
    "zh": "| 症状 | 命令 | 代价 | 输出 |",
}
LONGEST = 110


@dataclass(frozen=True)
class Row:
    """A line: a symptom, a command, its cost, a fault, and which lines of the output are shown."""

    symptom: dict[str, str]
    command: str
    cost: dict[str, str]
    fault: str
    shown: tuple[str, ...]  # each shows the first line that it matches, or its group of it


ROWS = (
    Row(
        {"en": "the loss is wrong", "zh": "loss 不对"},
        "deeplink bisect train.py",
        {"en": "5 to 13 short runs", "zh": "5 到 13 次短运行"},
        "ignore_strides:mm",
        (r"^Cause", r"^(?:Workaround|Fix until)"),
    ),
    Row(
        {"en": "a NaN or Inf", "zh": "出现 NaN 或 Inf"},
        "deeplink why-nan train.py",
        {"en": "1 run", "zh": "1 次运行"},
        "nan:gelu:call=9",
        (r"^why-nan: ", r"^Where: +(?:/.*/)?(.*)"),
    ),
    Row(
        {"en": "which operators are wrong, on which lines", "zh": "哪些算子错了，在哪一行"},
        "deeplink run --autocompare train.py",
        {"en": "1 run", "zh": "1 次运行"},
        "ignore_strides:mm",
        (r"^ *(torch.* train\.py:\d+ +\S+ +\d+)", r"^.*calls compared.*"),
    ),
    Row(
        {"en": "two runs differ", "zh": "两次运行结果不同"},
        "deeplink determinism train.py",
        {"en": "2 to 4 runs", "zh": "2 到 4 次运行"},
        "",
        (r"^The two runs|^First",),
    ),
    Row(
        {"en": "a step is slow", "zh": "训练太慢"},
        "deeplink run --time train.py",
        {"en": "1 run", "zh": "1 次运行"},
        "latency:gelu:ms=5",
        (r"^ *(op +calls +total ms +share)", r"^ *(torch\.nn\.functional\.gelu .*?%)"),
    ),
)


def printed(row: Row) -> list[str]:
    """The lines of the command's output that the table shows."""
    with tempfile.TemporaryDirectory(prefix="deeplink_") as folder:
        shutil.copy(PROGRAM, Path(folder, "train.py"))
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
            "DIPU_QUIRKS": row.fault,
        }
        done = subprocess.run(
            row.command.split(),
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return [_shown(done.stdout, pattern, row.command) for pattern in row.shown]


def _shown(output: str, pattern: str, command: str) -> str:
    for line in output.splitlines():
        found = re.search(pattern, line)
        if found:
            text = re.sub(r" {2,}", "  ", (found[1] if found.lastindex else line).strip())
            return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
    sys.exit(f"{command}: no line matches {pattern!r}:\n{output}")


def main() -> None:
    """Run all commands, and write both pages."""
    outputs = []
    for row in ROWS:
        outputs.append(printed(row))
        print(f"$ {row.command}", *outputs[-1], sep="\n", flush=True)
    for language, page in PAGES.items():
        lines = [HEADS[language], "|---|---|---|---|"]
        for row, output in zip(ROWS, outputs, strict=True):
            said = "<br>".join(f"`{text}`" for text in output)
            cells = (row.symptom[language], f"`{row.command}`", row.cost[language], said)
            lines.append(f"| {' | '.join(cells)} |")
        table = "\n".join(lines)
        start, _, rest = page.read_text("utf-8").partition(BEGIN)
        _, end, last = rest.partition(END)
        if not end:
            sys.exit(f"{page}: no {BEGIN} … {END}")
        page.write_text(f"{start}{BEGIN}\n{table}\n{END}{last}", "utf-8")


if __name__ == "__main__":
    main()
