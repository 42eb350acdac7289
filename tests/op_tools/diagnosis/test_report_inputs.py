"""What the searches, one-iter and the monitor write, as it stands on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from op_tools.diagnosis import result_files
from op_tools.diagnosis.report import readers
from op_tools.diagnosis.report.model import Content

PAIR = result_files.Pair(
    a=3, b=3, op="aten.mm.default", op_b="aten.mm.default", module="head", site="train.py:9",
    step=0, direction="forward", rank=0, how="same", error_in=0.0, error=0.5, status="diverges",
    message="B is wrong",
)  # fmt: skip


def shown(tmp_path: Path, found: Any) -> Content:
    (tmp_path / "found.json").write_text(json.dumps(found))
    return readers.read(tmp_path)


def diff(status: str) -> dict[str, Any]:
    side = {"path": "run", "problems": ["rank 3 is missing"]}
    after = {**PAIR, "op": "aten.relu.default", "error_in": 0.5, "status": "propagated"}
    growth = {"step": 0, "module": "head", "direction": "forward", "error_in": None, "error": 0.5}
    return {
        "kind": "diff", "a": side, "b": side, "status": status, "verdict": "They part at mm.",
        "first": PAIR, "growth": [growth], "pairs": [PAIR, after], "collectives": [],
    }  # fmt: skip


def test_a_diff_reports_the_first_and_not_those_behind_it(tmp_path: Path) -> None:
    content = shown(tmp_path, diff("diverges"))
    (finding,) = content.findings
    assert (finding.level, finding.title, finding.site) == ("bad", "They part at mm.", "train.py:9")
    missing = "rank 3 is missing"
    assert finding.lines == ("B is wrong", "A: run", "B: run", missing, missing)
    states = [(row.op, row.state) for row in content.rows]
    assert states == [("aten.mm.default", "wrong"), ("aten.relu.default", "unknown")]
    (chart,) = content.charts
    assert (chart.labels, chart.series[1].values) == (["step 0 head forward"], [0.5])


@pytest.mark.parametrize(
    ("status", "level"), [("rounding", "good"), ("same", "good"), ("nothing in common", "warn")]
)
def test_runs_without_a_call_in_common_are_not_called_alike(
    status: str, level: str, tmp_path: Path
) -> None:
    assert shown(tmp_path, diff(status)).findings[0].level == level


@pytest.mark.parametrize(
    ("status", "level"), [("differs", "bad"), ("same", "good"), ("broken", "warn")]
)
def test_what_is_not_the_same_twice_is_shown_with_what_was_kept(
    status: str, level: str, tmp_path: Path
) -> None:
    tensor = {"label": "output[0]", "dtype": "float32", "shape": [2], "differing": 1}
    found = {
        "kind": "determinism", "status": status, "verdict": "mm is not the same.", "first": PAIR,
        "tensors": [{**tensor, "max_abs": 0.25}], "kept": ["a.opcap#3"],
    }  # fmt: skip
    (finding,) = shown(tmp_path, found).findings
    assert (finding.level, finding.site) == (level, "train.py:9")
    assert finding.lines == (
        "output[0] float32 [2]: 1 element differs, by 0.25 at most",
        "kept: a.opcap#3",
    )


def layer(name: str, drift: Any, passed: bool) -> dict[str, Any]:
    item = {"what": "output", "passed": passed, "message": "2 of 4 beyond", "ratio": "inf"}
    return {
        "layer": name, "name": "Linear", "call": 0, "site": "model.py:4", "drift": drift,
        "gradient_drift": None, "forward": [item], "backward": [],
    }  # fmt: skip


def test_one_iter_shows_the_layer_that_goes_wrong_first_and_the_drift(tmp_path: Path) -> None:
    first = {"layer": "blocks.1", "call": 0, "direction": "forward"}
    layers = [layer("blocks.0", 1e-7, True), layer("blocks.1", "nan", False)]
    content = shown(tmp_path, {"layers": layers, "first": first})
    (finding,) = content.findings
    assert finding.title == "First diverging layer: blocks.1, forward"
    assert (finding.lines, finding.site) == (("output: 2 of 4 beyond",), "model.py:4")
    assert [(row.module, row.state) for row in content.rows] == [
        ("blocks.0", "right"),
        ("blocks.1", "wrong"),
    ]
    (chart,) = content.charts
    assert (chart.labels, chart.series[0].values) == (["blocks.0", "blocks.1"], [1e-7, None])
    good = shown(tmp_path, {"layers": layers[:1], "first": None})
    assert [each.level for each in good.findings] == ["good"]


def test_the_monitors_table_is_a_chart_of_memory(tmp_path: Path) -> None:
    file = tmp_path / "process_monitor_result_pid1.csv"
    file.write_text("runningtime(Seconds),rss(MB),device_memusage(MB)\n1,10,3\n2,12,\n")
    (chart,) = readers.read(tmp_path).charts
    assert (chart.kind, chart.labels) == ("memory", ["1", "2"])
    assert [(one.name, one.values) for one in chart.series] == [
        ("process", [10.0, 12.0]),
        ("device", [3.0, 0.0]),
    ]
