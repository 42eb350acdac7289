"""Write which planted faults OpAutoCompare names, as pages, from the JSON of a benchmark.

    python -m benchmarks.bench_faults --json RUN.json        measure; `--only` measures a part
    python -m scripts.fault_pages --measured RUN.json …      keep the measurements, and write
    python -m scripts.fault_pages                            write the pages anew

The measurements are kept in docs/data/faults.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs/data/faults.json"
PAGES = {
    "en": ROOT / "docs/reference/measurements/faults.md",
    "zh": ROOT / "docs/zh/reference/measurements/faults.md",
}
COMMAND = "python -m benchmarks.bench_faults"
TEXTS = {
    "en": {
        "note": "<!-- Written by `python -m scripts.fault_pages`; do not edit. -->",
        "title": "Faults that OpAutoCompare names",
        "intro": (
            "Measured on the [reference device](../../explanation/reference_device.md) by "
            "`{command}`; torch {torch}, Python {python}, {date}. No number of a GPU is available."
        ),
        "planted": "Planted faults",
        "cells": (
            "Each fault is planted in one kernel of a Llama of 2 layers and width 256 in bfloat16 "
            "with AdamW. It is in each call of the kernel, at the same place. A "
            "number is the step in which OpAutoCompare with its defaults named the operator, of "
            "20. {named} of {count} faults are named, and no other operator is."
        ),
        "others": "{named} of {count} faults are named. Other operators were named in {others} "
        "runs.",
        "fault": "fault",
        "healthy": "Trainings without a fault",
        "false": (
            "BERT, Llama, ResNet and UNet shapes with few layers, `bfloat16` and `float16` under "
            "autocast. Calls and gradients that were reported as wrong:"
        ),
        "head": "model,precision,steps,compared calls,OpAutoCompare,Guard",
        "more": "[How a large call is compared](../../explanation/comparison.md) describes what "
        "each check finds.",
    },
    "zh": {
        "note": "<!-- 由 `python -m scripts.fault_pages` 生成；请勿直接修改。 -->",
        "title": "OpAutoCompare 能指出的故障",
        "intro": (
            "由 `{command}` 在[参考设备](../../../explanation/reference_device.md)上测得；"
            "torch {torch}，Python {python}，{date}。目前没有 GPU 上的数字。"
        ),
        "planted": "植入的故障",
        "cells": (
            "每个故障植入一个算子实现，模型是 2 层、宽 256 的 Llama，bfloat16，AdamW。"
            "故障位于该算子实现的每次调用，位置相同。"
            "数字是 OpAutoCompare 以默认设置指出该算子的步，共 20 步。"
            "{count} 个故障中指出 {named} 个，没有指出其他算子。"
        ),
        "others": "{count} 个故障中指出 {named} 个。{others} 次运行指出了其他算子。",
        "fault": "故障",
        "healthy": "没有故障的训练",
        "false": (
            "BERT、Llama、ResNet 和 UNet 的形状，层数很少，"
            "`bfloat16` 和 `float16` 使用 autocast。报告为错误的调用和梯度："
        ),
        "head": "模型,精度,步数,对比的调用,OpAutoCompare,Guard",
        "more": "每种检查能发现什么，见[大规模调用如何对比](../../explanation/comparison.md)。",
    },
}


def page(data: dict[str, Any], language: str) -> str:
    """The page of a language."""
    text, faults = TEXTS[language], data["faults"]
    counts = {
        "named": sum(one["step"] is not None for one in faults),
        "count": len(faults),
        "others": sum(bool(one["others"]) for one in faults),
    }
    cells = text["cells"].format(**counts)
    if counts["others"]:
        cells = text["others"].format(**counts)
    parts = [f"# {text['title']}", text["note"]]
    parts.append(text["intro"].format(**data["conditions"], command=COMMAND))
    parts += [f"## {text['planted']}", cells, _faults(faults, text["fault"])]
    parts += [f"## {text['healthy']}", text["false"], _healthy(data["healthy"], text["head"])]
    return "\n\n".join([*parts, text["more"]]) + "\n"


def _faults(faults: list[dict[str, Any]], name: str) -> str:
    operators = list(dict.fromkeys(one["operator"] for one in faults))
    steps = {(one["fault"], one["operator"]): one["step"] or "–" for one in faults}
    rows = [
        (fault, *(str(steps.get((fault, operator), "")) for operator in operators))
        for fault in dict.fromkeys(one["fault"] for one in faults)
    ]
    return _table((name, *operators), rows)


def _healthy(runs: list[dict[str, Any]], head: str) -> str:
    names = "model", "precision", "steps", "compared", "compare", "guard"
    rows = [tuple(f"{run[name]:,}" if name == "compared" else str(run[name]) for name in names)
            for run in runs]  # fmt: skip
    return _table(tuple(head.split(",")), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def files(data: dict[str, Any]) -> dict[Path, str]:
    """What the measurements become."""
    return {path: page(data, language) for language, path in PAGES.items()}


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
        python = platform.python_version()
        data: dict[str, Any] = {
            "conditions": {"torch": torch.__version__, "python": python, "date": options.date}
        }
        for part in ("faults", "healthy"):
            data[part] = [row for run in runs for row in run[part]]
        DATA.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    for path, text in files(kept()).items():
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
