"""Draw docs/images/overhead.svg from the measurements in docs/images/overhead.json.

Run `python -m scripts.overhead_chart`; with `--measured FILE …` (the JSON of `python -m
benchmarks.bench_op_tools --json FILE`, of one or several runs) the bars of this repository are
replaced first, by the medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA, PAGE = ROOT / "docs/images/overhead.json", ROOT / "docs/images/overhead.svg"
COLOURS = {"DeepLink": "#2f81f7", "published op_tools": "#d29922", "msprobe 26.2": "#a371f7"}
LABELS, WIDTH, BAR, LARGEST = 270, 460, 18, 20.0
STYLE = "text{font:13px system-ui,sans-serif;fill:#7d8590}.t{font-weight:600}"


def svg(data: dict[str, Any]) -> str:
    """The chart: a group of bars for each task, on a logarithmic axis that begins at 1."""
    parts, y = [], 56
    for task in data["tasks"]:
        parts.append(f'<text class="t" x="12" y="{y + 13}">{escape(task["task"])}</text>')
        for bar in task["bars"]:
            length = max(2.0, WIDTH * math.log(max(1.0, bar["ratio"])) / math.log(LARGEST))
            shown = f"{bar['ratio']:.2f}" if bar["ratio"] < 10 else f"{bar['ratio']:.0f}"
            parts.append(
                f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR - 4}" rx="2" '
                f'fill="{COLOURS[bar["tool"]]}"/>'
                f'<text x="{LABELS + length + 6:.1f}" y="{y + 12}">{shown}x</text>'
            )
            y += BAR
        y += 12
    legend, x = [], LABELS
    for tool, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="14" width="12" height="12" rx="2" fill="{colour}"/>')
        legend.append(f'<text x="{x + 18}" y="25">{escape(tool)}</text>')
        x += 48 + 8 * len(tool)
    ticks = []
    for tick in (1, 2, 5, 10, 20):
        at = LABELS + WIDTH * math.log(tick) / math.log(LARGEST)
        ticks.append(
            f'<line x1="{at:.1f}" y1="44" x2="{at:.1f}" y2="{y - 6}" stroke="#7d8590" '
            f'stroke-opacity="0.3"/><text x="{at - 8:.1f}" y="{y + 10}">{tick}x</text>'
        )
    width, height = LABELS + WIDTH + 70, y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(data["title"])}">\n'
        f"<title>{escape(data['title'])}</title>\n<style>{STYLE}</style>\n"
        + "\n".join([*legend, *ticks, *parts])
        + "\n</svg>\n"
    )


def replaced(data: dict[str, Any], runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The data with this repository's bars from measurements."""
    for task in data["tasks"]:
        for bar in task["bars"]:
            if bar["tool"] == "DeepLink":
                own = [row["ratio"] for run in runs for row in run if row["what"] == bar["case"]]
                bar["ratio"] = round(statistics.median(own), 2)
                bar.pop("range", None)
                if len(own) > 1:
                    bar["range"] = f"{min(own):.2f} to {max(own):.2f}"
    return data


def main() -> None:
    """Draw the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--measured", type=Path, nargs="+", help="JSON of benchmarks.bench_op_tools, of each run"
    )
    options = parser.parse_args()
    data = json.loads(DATA.read_text("utf-8"))
    if options.measured:
        data = replaced(data, [json.loads(file.read_text("utf-8")) for file in options.measured])
        DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(svg(data), "utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
