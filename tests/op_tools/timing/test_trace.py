"""The trace of OpTimeMeasure: a file that Perfetto opens, with slices that lie as they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deeplink.errors import SettingError
from op_tools.timing.tool import OpTimeMeasure

Event = dict[str, Any]


def traced(path: Path, mode: str = "events") -> list[Event]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2))).to("dipu")
    with OpTimeMeasure(trace=str(path), mode=mode):
        for _ in range(2):
            model(torch.ones(3, 4, device="dipu")).sum().backward()
    events: list[Event] = json.loads(path.read_text())
    return events


def slices(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event.get("cat") == category and event["ph"] == "X"]


@pytest.mark.parametrize("mode", ["events", "sync"])
def test_operators_backward_and_modules_are_slices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    events = traced(tmp_path / "trace.json", mode)
    forward = [event["name"] for event in slices(events, "forward")]
    assert forward.count("torch.nn.functional.linear") == 4
    assert {event["name"] for event in slices(events, "backward")} >= {
        "torch.nn.functional.linear",
        "torch.nn.functional.relu",
    }
    assert {event["name"] for event in slices(events, "module")} >= {"0", "1", "1.0", "1.1"}
    for event in slices(events, "forward"):
        assert event["dur"] >= 0 and event["args"]["line"] and event["args"]["arguments"]
    assert f"trace saved to {tmp_path / 'trace.json'}" in capsys.readouterr().out.replace("\n", "")


def test_slices_of_a_track_lie_within_or_after_each_other(tmp_path: Path) -> None:
    events = [event for event in traced(tmp_path / "trace.json") if event["ph"] == "X"]
    for track in {event["tid"] for event in events}:
        on = sorted(
            (event for event in events if event["tid"] == track),
            key=lambda event: (event["ts"], -event["dur"]),
        )
        open_: list[Event] = []
        for event in on:
            while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"] + 0.01:
                open_.pop()
            if open_:
                end = open_[-1]["ts"] + open_[-1]["dur"]
                assert event["ts"] + event["dur"] <= end + 0.01, (event, open_[-1])
            open_.append(event)


def test_a_calls_module_holds_it_and_the_devices_clock_is_the_hosts(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    launches = {event["args"]["id"]: event for event in slices(events, "launch")}
    modules = slices(events, "module")
    for event in slices(events, "forward"):
        launch = launches[event["args"]["id"]]
        # the reference device works at once; a second is for a machine that is busy
        assert abs(event["ts"] - launch["ts"]) < 1_000_000
        inside = [m for m in modules if m["name"] == event["args"]["module"]]
        if inside:
            assert any(
                m["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= m["ts"] + m["dur"]
                for m in inside
            )


def test_gradients_are_tied_to_their_calls(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    starts = {event["id"] for event in events if event["ph"] == "s"}
    ends = {event["id"] for event in events if event["ph"] == "f"}
    assert starts == ends and len(starts) >= 6


def test_tracks_have_names(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "dipu:0 operators" in names
    assert any(name.startswith("host thread") for name in names)


def test_each_rank_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with OpTimeMeasure(trace=str(tmp_path / "trace.json")):
        torch.ones(4, device="dipu") + 1
    assert [path.name for path in tmp_path.glob("*.json")] == ["trace_rank1.json"]


def test_a_setting_requests_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TIME_MEASURE_TRACE", str(tmp_path / "deep" / "t.json"))
    with OpTimeMeasure():
        torch.ones(4, device="dipu") + 1
    assert json.loads((tmp_path / "deep" / "t.json").read_text())


def test_where_it_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"the trace .* cannot be written"):
        OpTimeMeasure(trace=str(tmp_path / "file" / "t.json")).start()


def test_no_hook_is_left_on_modules(tmp_path: Path) -> None:
    from torch.nn.modules import module

    before = len(module._global_forward_hooks), len(module._global_forward_pre_hooks)
    traced(tmp_path / "trace.json")
    assert (len(module._global_forward_hooks), len(module._global_forward_pre_hooks)) == before
