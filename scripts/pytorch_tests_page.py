"""Write the page of the results of PyTorch's own test files on the reference device.

    deeplink pytorch-tests --sources PYTORCH --files test_torch.py -o torch.csv    run, per file
    python -m scripts.pytorch_tests_page --measured torch.json …     keep the summaries, and write
    python -m scripts.pytorch_tests_page                             write the page anew

The summaries are kept in docs/data/pytorch_tests.json: counts, and the names of failing tests. No
source of PyTorch is kept. The reasons come from the gaps.toml of the vendor.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs/data/pytorch_tests.json"
PAGE = ROOT / "docs/reference/pytorch_tests.md"
NOTE = "<!-- Written by `python -m scripts.pytorch_tests_page`; do not edit. -->"
EXAMPLE = "torch_openreg/tests/"  # torch's example device; its tests do not exist for the CPU
INTRO = """\
PyTorch's test files run on the device by its own name and, test by test, on the plain CPU in a
process that loads no device ([how](../howto/cuda_programs.md#pytorchs-own-tests)). What counts is
a test that the CPU passes: does the device pass it?

Label: the **reference device**, which is a CPU; nothing here is about a chip. torch {torch},
Python {python}. The sources are those of PyTorch's main branch on 2026-06-10, where the branch of
release 2.13 begins: all but 15 of the 2,281 Python files of torch's wheel are the same there. A
test is *skipped* where its own decorators leave this device out, mostly because they name CUDA.
A test that PyTorch expects to fail, and that fails, counts as passed.

Not run yet: the files of distributed, fsdp, inductor and dynamo, the profiler, and what the column
"what ran" leaves out. Processes that a distributed test starts do not load the device.
"""
LISTED = """\
Each failure that the CPU does not share is listed in the `gaps.toml` of the vendor, by a pattern
of test names, with its reason ([kinds](../howto/gaps.md)).
"""


def kept() -> dict[str, Any]:
    """Return the kept summaries, by file of PyTorch."""
    found: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return found


def keep(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge summaries into the kept ones; a file that was run anew replaces its earlier results."""
    found = kept() if DATA.is_file() else {"files": {}}
    for summary in summaries:
        found |= {key: summary[key] for key in ("torch", "python", "vendor", "device")}
        for line in summary["files"]:
            if line["file"] == "total":
                continue
            own = [f for f in summary["failures"] if f["test"].startswith(f"{line['file']}::")]
            reasons = Counter((f["kind"], f["reason"]) for f in own)
            found["files"][line["file"]] = {
                **{key: value for key, value in line.items() if key not in ("file", "known")},
                "selection": summary.get("selection", ""),
                "failures": [[*why, count] for why, count in sorted(reasons.items())],
            }
    found["files"] = dict(sorted(found["files"].items()))
    return found


def page(found: dict[str, Any]) -> str:
    """Return the text of the page."""
    files: dict[str, Any] = found["files"]
    own = {name: line for name, line in files.items() if EXAMPLE not in name}
    example = {name: line for name, line in files.items() if EXAMPLE in name}
    parts = [f"{NOTE}\n\n# PyTorch's own tests\n", INTRO.format(**found), _table(own)]
    if example:
        parts += [
            "## torch_openreg\n",
            "The tests of PyTorch's example of a device, with the name of this device in place\n"
            "of its own. The CPU has no such tests, so every test counts.\n",
            _table(example),
        ]
    parts += ["## What only the device fails\n", LISTED, _reasons(files)]
    return "\n".join(parts)


def _table(files: dict[str, Any]) -> str:
    rows = [
        "| file | what ran | device: passed | failed | skipped | CPU passes "
        "| of these, device passes | share |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, line in files.items():
        rows.append(_row(f"`{name.rpartition(EXAMPLE)[2]}`", line["selection"] or "all", line))
    sums = {
        key: sum(line[key] for line in files.values())
        for key in ("passed", "failed", "skipped", "cpu_passed", "both")
    }
    share = round(100 * sums["both"] / max(sums["cpu_passed"], 1), 2)
    rows.append(_row("**total**", "", {**sums, "share": share}))
    return "\n".join(rows) + "\n"


def _row(name: str, selection: str, line: dict[str, Any]) -> str:
    counts = (line[key] for key in ("passed", "failed", "skipped", "cpu_passed", "both"))
    numbers = " | ".join(f"{count:,}" for count in counts)
    share = f"{line['share']:.2f} %" if line["cpu_passed"] else "–"
    return f"| {name} | {selection} | {numbers} | {share} |"


def _reasons(files: dict[str, Any]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    names: dict[tuple[str, str], list[str]] = {}
    for name, line in files.items():
        for kind, reason, count in line["failures"]:
            counts[kind, reason] += count
            names.setdefault((kind, reason), []).append(name.rpartition("/")[2])
    rows = ["| tests | kind | files | reason |", "|--:|---|---|---|"]
    for (kind, reason), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        shown = ", ".join(f"`{name}`" for name in sorted(set(names[kind, reason])))
        text = (reason or "**not listed**").replace("|", "\\|")
        rows.append(f"| {count} | {kind} | {shown} | {text} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Keep new summaries, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", nargs="*", type=Path, default=[], metavar="SUMMARY.json")
    chosen = parser.parse_args()
    if chosen.measured:
        found = keep([json.loads(path.read_text("utf-8")) for path in chosen.measured])
        DATA.write_text(f"{json.dumps(found, indent=1, ensure_ascii=False)}\n", "utf-8")
    PAGE.write_text(page(kept()), "utf-8")


if __name__ == "__main__":
    main()
