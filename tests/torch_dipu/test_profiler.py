"""torch.profiler around device code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

# torch 2.11 says so at the end of every profile
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


def _events(**options: bool) -> dict[str, object]:
    a = torch.ones(64, 64, device="dipu")
    with profile(activities=[ProfilerActivity.CPU], **options) as recorded:
        with record_function("my part"):
            torch.mm(a, a)
            a.relu()
        torch.dipu.synchronize()
    return {event.key: event for event in recorded.key_averages()}


def test_the_ops_of_the_device_are_recorded_by_name() -> None:
    assert {"aten::mm", "aten::relu", "my part"} <= set(_events())


def test_shapes_are_recorded() -> None:
    a = torch.ones(2, 3, device="dipu")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        torch.mm(a, a.t())
    rows = recorded.key_averages(group_by_input_shape=True)
    assert [[2, 3], [3, 2]] in [row.input_shapes for row in rows if row.key == "aten::mm"]


def test_a_trace_is_written(tmp_path: Path) -> None:
    a = torch.ones(8, device="dipu")
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        a.exp()
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "aten::exp" in names
