"""The history of memory in torch's own form, read by torch's own viewer."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from tests.torch_dipu.interpreter import output_of


@pytest.fixture
def recorded() -> Iterator[None]:
    torch.dipu.empty_cache()
    torch.dipu.memory._record_memory_history(stacks="python", clear_history=True)
    yield
    torch.dipu.memory._record_memory_history(None, clear_history=True)


def _actions(device: int = 0) -> list[tuple[str, int]]:
    trace = torch.dipu.memory._snapshot()["device_traces"][device]
    return [(event["action"], event["size"]) for event in trace]


@pytest.mark.usefixtures("recorded")
def test_each_allocation_and_free_is_an_event_with_its_stack() -> None:
    tensor = torch.empty(3 << 20, dtype=torch.uint8, device="dipu:1")
    del tensor
    torch.dipu.empty_cache()
    assert _actions(1)[:5] == [
        ("segment_alloc", 20 << 20),
        ("alloc", 3 << 20),
        ("free_requested", 3 << 20),
        ("free_completed", 3 << 20),
        ("segment_free", 20 << 20),
    ]
    event = torch.dipu.memory._snapshot()["device_traces"][1][1]
    names = [frame["name"] for frame in event["frames"]]
    assert names[0] == "test_each_allocation_and_free_is_an_event_with_its_stack"


@pytest.mark.usefixtures("recorded")
def test_torchs_viewer_reads_the_snapshot(tmp_path: Path) -> None:
    kept = torch.ones(1 << 20, device="dipu")
    path = tmp_path / "memory.pickle"
    torch.dipu.memory._dump_snapshot(path)
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    mine = next(block for block in blocks if block["address"] == kept.data_ptr())
    assert mine["frames"][0]["name"] == "test_torchs_viewer_reads_the_snapshot"
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in plot(snapshot)
    assert "4.0MiB" in _memory_viz.trace(snapshot)
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    told = _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "test_torchs_viewer_reads_the_snapshot" in told
    del kept


def test_the_history_can_be_bounded_and_left_without_stacks() -> None:
    torch.dipu.memory._record_memory_history("all", context=None, max_entries=2, clear_history=True)
    try:
        torch.ones(10, device="dipu")
        trace = torch.dipu.memory._snapshot()["device_traces"][0]
    finally:
        torch.dipu.memory._record_memory_history(None)
    assert [event["action"] for event in trace] == ["free_completed", "snapshot"]
    assert all(event["frames"] == [] for event in trace)


def test_off_nothing_is_kept() -> None:
    torch.dipu.memory._record_memory_history(None, clear_history=True)
    torch.ones(10, device="dipu")
    assert _actions() == []


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected enabled=None, 'state' or 'all'.*'some'"):
        torch.dipu.memory._record_memory_history("some")


def test_running_out_of_memory_is_an_event_and_says_what_is_in_the_way() -> None:
    text = output_of(
        """
import torch, torch_dipu
torch.dipu.memory._record_memory_history(stacks="python")
held = [torch.empty(9 << 20, dtype=torch.uint8, device="dipu") for _ in range(6)][::2]
try:
    torch.empty(20 << 20, dtype=torch.uint8, device="dipu")
except torch.OutOfMemoryError as error:
    print(error)
event = next(e for e in torch.dipu.memory._snapshot()["device_traces"][0] if e["action"] == "oom")
print(event["size"] >> 20, event["device_free"] >> 20, event["frames"][0]["name"])
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    message, event = text.splitlines()
    assert message.startswith(
        "DIPU out of memory. Tried to allocate 20.00 MiB. Device 0 has a total capacity of "
        "64.00 MiB of which 4.00 MiB is free. Of the allocated memory 27.00 MiB is allocated by "
        "PyTorch, and 33.00 MiB is reserved by PyTorch but unallocated, the largest piece of it "
        "11.00 MiB. Outside PyTorch's allocator 0 bytes is in use. Enough is reserved, but in "
    )
    assert event == "20 4 <module>"


def test_the_largest_free_piece_is_counted() -> None:
    torch.dipu.empty_cache()
    first, second = (torch.empty(3 << 20, dtype=torch.uint8, device="dipu") for _ in range(2))
    del first
    stats = torch.dipu.memory_stats()
    assert stats["cached.blocks"] >= 2
    assert stats["cached.largest"] == 14 << 20
    assert stats["inactive_split_bytes.large_pool.current"] >= (3 + 14) << 20
    row = next(r for r in torch.dipu.memory_summary().splitlines() if "Cached, free" in r)
    assert row.endswith("14336 KiB |")
    del second


@pytest.fixture
def recorded_on_the_host() -> Iterator[None]:
    torch.dipu.memory._record_memory_history(
        stacks="python", clear_history=True, record_pinned_host_memory=True, record_cuda=False
    )
    yield
    torch.dipu.memory._record_memory_history(None, clear_history=True)


@pytest.mark.usefixtures("recorded_on_the_host")
def test_pinned_memory_has_segments_and_events() -> None:
    pinned = torch.empty(3000, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(8, device="dipu")
    snapshot = torch.dipu.memory._snapshot()
    mine = next(s for s in snapshot["host_segments"] if s["address"] == pinned.data_ptr())
    assert (mine["total_size"], mine["blocks"][0]["state"]) == (3000, "active_allocated")
    names = [frame["name"] for frame in mine["blocks"][0]["frames"]]
    assert "test_pinned_memory_has_segments_and_events" in names
    del pinned, on_device
    snapshot = torch.dipu.memory._snapshot()
    actions = [event["action"] for event in snapshot["host_traces"] if event["size"] == 3000]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert [e["action"] for e in snapshot["device_traces"][0] if e["action"] != "snapshot"] == []


@pytest.mark.usefixtures("recorded")
def test_pinned_memory_has_no_events_unless_they_are_requested() -> None:
    pinned = torch.empty(3000, dtype=torch.uint8, pin_memory=True)
    snapshot = torch.dipu.memory._snapshot()
    assert snapshot["host_traces"] == []
    assert pinned.data_ptr() in [segment["address"] for segment in snapshot["host_segments"]]
