"""Write what the operator tools cost, as tables and a chart, from the JSON of a benchmark.

    python -m benchmarks.bench_real_size --json RUN.json      measure, once or several times
    python -m scripts.cost_pages --measured RUN.json …        keep the measurements, and write
    python -m scripts.cost_pages                              write the pages anew

The measurements are kept in docs/data/real_size.json, the chart in docs/images/costs.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA, CHART = ROOT / "docs/data/real_size.json", ROOT / "docs/images/costs.svg"
PAGES = {
    "en": ROOT / "docs/reference/measurements/op_tools.md",
    "zh": ROOT / "docs/zh/reference/measurements/op_tools.md",
}
COMMAND = "python -m benchmarks.bench_real_size --json RUN.json"
# The tables: a tool, and its rows of the benchmark.
TABLES = {
    "OpAutoCompare": (
        "compare", "compare, aten", "compare, budget 25%", "compare, once per signature",
    ),
    "OpCapture": (
        "statistics, api", "statistics, aten", "capture of linear, packed",
        "capture of linear, packed, first 1", "capture of linear, folders, first 1",
        "capture, packed, first 1",
    ),
    "OpTimeMeasure": ("time", "tools that want no operator"),
    "OpOverflowCheck": ("overflow",),
    "Guard": ("guard",),
    "FlightRecorder": ("flight recorder",),
    "OpFallback, OpDtypeCast": ("fallback of silu", "cast of linear to float32"),
    "torch": ("torch.profiler", "torch DebugMode", "torch detect_anomaly"),
}  # fmt: skip
TEXTS = {
    "en": {
        "note": "<!-- Written by `python -m scripts.cost_pages`; do not edit. -->",
        "title": "Costs of op_tools",
        "intro": (
            "Each number is the CPU time of a training step under a tool, as a multiple of the "
            "plain step of the same process: 1.00 is free. The model is a Llama of 6 layers and "
            "width 512 in bfloat16 with AdamW, 2 x 128 tokens, on the "
            "[reference device](../../explanation/reference_device.md). CPU time counts all "
            "threads of the process, and hardly depends on other processes of the machine."
        ),
        "how": "Measured by {command}; number of runs: {runs}, of {steps} steps each; "
        "torch {torch}, Python {python}, {cores} shared cores, {date}. "
        "A range is that of the runs.",
        "gpu": "No number of these tools on a GPU is available.",
        "chart": "Bars: CPU time of a step under each tool, as a multiple of the plain step",
        "head": ("what", "mean step", "first step", "written"),
        "first": (
            "The first step includes work that is done once for each operator: reading schemas, "
            "and the first call of each signature. Verdicts that OpAutoCompare computes in other "
            "processes, and after the last step, are not counted."
        ),
        "torch": "For comparison, the tools of torch itself",
    },
    "zh": {
        "note": "<!-- 由 `python -m scripts.cost_pages` 生成；请勿直接修改。 -->",
        "title": "op_tools 的开销",
        "intro": (
            "每个数字是在工具下一个训练步的 CPU 时间，与同一进程中普通训练步之比："
            "1.00 表示没有开销。"
            "模型是 6 层、宽 512 的 Llama，bfloat16，AdamW，2 x 128 个 token，运行在"
            "[参考设备](../../../explanation/reference_device.md)上。"
            "CPU 时间包括进程的所有线程，几乎不受机器上其他进程的影响。"
        ),
        "how": "由 {command} 测得，{runs} 次运行，每次 {steps} 步，torch {torch}，Python {python}，"
        "{cores} 个共享的核，{date}。区间是各次运行的范围。",
        "gpu": "目前没有这些工具在 GPU 上的数字。",
        "chart": "条形图：各工具下一个训练步的 CPU 时间与普通训练步之比",
        "head": ("项目", "平均每步", "第一步", "写出"),
        "first": (
        "第一步包括每个算子只做一次的工作：读取 schema，以及每种签名的第一次调用。"
        "OpAutoCompare 在其他进程中和最后一步之后计算的判定不计入。"
        ),
        "torch": "作为对照，torch 自己的工具",
    },
}  # fmt: skip


def page(data: dict[str, Any], language: str) -> str:
    """The page of a language."""
    text = TEXTS[language]
    how = {**data["conditions"], "command": f"`{COMMAND}`", "runs": len(data["runs"])}
    images = os.path.relpath(CHART, PAGES[language].parent)
    parts = [f"# {text['title']}", text["note"], text["intro"]]
    parts += [text["how"].format(**how), text["gpu"], f"![{text['chart']}]({images})"]
    for tool, rows in TABLES.items():
        parts.append(f"## {text['torch'] if tool == 'torch' else tool}")
        lines = [text["head"], ("---",) * 4, *((row, *_cells(data, row)) for row in rows)]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    return "\n\n".join([*parts, text["first"]]) + "\n"


def _cells(data: dict[str, Any], row: str) -> tuple[str, str, str]:
    size = [run[row]["gigabytes"] for run in data["runs"] if run[row].get("gigabytes")]
    written = f"{statistics.median(size):.2f} GiB" if size else "–"
    return _range(data, row, "cpu"), _range(data, row, "cpu_first"), written


def _range(data: dict[str, Any], row: str, key: str) -> str:
    values = sorted(run[row][key] for run in data["runs"])
    low, high = f"{values[0]:.2f}", f"{values[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def chart(data: dict[str, Any]) -> str:
    """A bar for each row: the median of the runs, on a linear axis that starts at 0."""
    rows = [row for rows in TABLES.values() for row in rows]
    values = {row: statistics.median(run[row]["cpu"] for run in data["runs"]) for row in rows}
    left, width, bar = 260, 420, 20
    scale = width / max(values.values())
    height = 34 + bar * len(rows) + 26
    parts = []
    for tick in range(int(max(values.values())) + 1):
        x = left + tick * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{height - 22}" stroke="#7d8590" '
            f'stroke-opacity="{0.8 if tick == 1 else 0.25}"/>'
            f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{tick}x</text>'
        )
    for at, row in enumerate(rows):
        y = 34 + at * bar
        colour = "#8b949e" if row in TABLES["torch"] else "#2f81f7"
        parts.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(row)}</text>'
            f'<rect x="{left}" y="{y}" width="{values[row] * scale:.1f}" height="{bar - 6}" '
            f'rx="2" fill="{colour}"/>'
            f'<text x="{left + values[row] * scale + 6:.1f}" y="{y + 12}">{values[row]:.2f}</text>'
        )
    title = TEXTS["en"]["chart"]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 60} {height}" '
        f'width="{left + width + 60}" height="{height}" role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n"
        "<style>text{font:12px system-ui,sans-serif;fill:#7d8590}</style>\n"
        f'<text x="{left}" y="18">CPU time of a step, as a multiple of the plain step</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def files(data: dict[str, Any]) -> dict[Path, str]:
    """What the measurements become. A Chinese page is written once its folder exists."""
    pages = {path: page(data, language) for language, path in PAGES.items()}
    return {CHART: chart(data), **pages}


def kept() -> dict[str, Any]:
    """The measurements in the repository."""
    found: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return found


def main() -> None:
    """Keep measurements, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measured", type=Path, nargs="+", help="JSON of the benchmark")
    parser.add_argument("--date", help="of the measurement, as 2026-11-19")
    options = parser.parse_args()
    if options.measured:
        import torch

        runs = [json.loads(path.read_text("utf-8")) for path in options.measured]
        conditions = {
            "steps": runs[0]["steps"],
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "date": options.date,
        }
        data = {"command": COMMAND, "conditions": conditions, "runs": [r["rows"] for r in runs]}
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    for path, text in files(kept()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
