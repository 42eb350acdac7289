"""torch.profiler around device code."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from diopi import implementation
from tests.torch_dipu.interpreter import output_of
from torch_dipu import routes

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]

# torch 2.11 warns at the end of every profile
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


def _rows(recorded: profile, **options: Any) -> dict[str, Any]:
    return {row.key: row for row in recorded.key_averages(**options)}


def _trace(recorded: profile, folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_kernels_take_their_time_on_the_device() -> None:
    a = torch.ones(8, 8, device="dipu")
    with (
        torch.dipu.quirk("latency", "mm|exp", ms=5.0),
        profile(activities=BOTH) as recorded,
    ):
        for _ in range(4):
            torch.mm(a, a)
        begun = time.monotonic()
        a.exp()
        over = torch.dipu.current_stream().query()
        in_time = time.monotonic() - begun < 0.005  # else it may be over
    rows = _rows(recorded)
    assert not (over and in_time)  # the host did not wait
    assert rows["dipu_mm"].count == 4
    assert rows["dipu_mm"].self_device_time_total > 4 * 5000 - 0.01  # a difference of two times
    assert rows["dipu_exp"].self_device_time_total > 5000 - 0.01
    kernels = [e for e in recorded.events() if e.name in ("dipu_mm", "dipu_exp")]
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(spans))
    total = sum(row.self_device_time_total for row in rows.values() if row.key.startswith("dipu_"))
    of_operators = sum(rows[key].self_device_time_total for key in ("aten::mm", "aten::exp"))
    assert total == pytest.approx(of_operators)
    assert rows["LaunchKernel_dipu_mm"].count == 4


def test_the_table_has_the_columns_of_the_device() -> None:
    a = torch.ones(8, device="dipu")
    with profile(activities=BOTH, profile_memory=True) as recorded:
        a.exp()
    table = recorded.key_averages().table(sort_by="self_device_time_total", row_limit=5)
    for title in ("Self DIPU", "DIPU total", "DIPU time avg", "DIPU Mem", "Self DIPU time total"):
        assert title in table
    assert ProfilerActivity.PrivateUse1 == ProfilerActivity.DIPU


def test_memory_adds_up_to_what_was_allocated() -> None:
    a = torch.ones(1000, device="dipu")
    before = torch.dipu.memory_allocated()
    with profile(activities=BOTH, profile_memory=True) as recorded:
        kept = [a.exp(), a + a]
        a.relu()
    rows = _rows(recorded)
    assert rows["aten::exp"].device_memory_usage == 4096
    grown = sum(row.self_device_memory_usage for row in rows.values())
    assert grown == torch.dipu.memory_allocated() - before == 2 * 4096
    del kept


def test_streams_are_lanes_and_each_launch_points_to_its_kernel(tmp_path: Path) -> None:
    side = torch.dipu.Stream()
    pinned = torch.ones(100).pin_memory()
    with profile(activities=BOTH) as recorded:
        a = pinned.to("dipu", non_blocking=True)
        a.exp()
        with torch.dipu.stream(side):
            a.sin()
        torch.ones(3, device="dipu:1").cpu()
        torch.dipu.synchronize()
    events = _trace(recorded, tmp_path)
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    lanes = {e["name"]: (e["pid"], e["tid"]) for e in work}
    assert lanes == {
        "Memcpy HtoD (Pinned -> Device)": (0, 0),
        "dipu_exp": (0, 0),
        "dipu_sin": (0, 1),
        "dipu_fill__scalar": (1, 0),
        "Memcpy DtoH (Device -> Pageable)": (1, 0),
    }
    assert next(e["args"]["bytes"] for e in work if "HtoD" in e["name"]) == 400
    starts = {e["id"]: e["ts"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == len(work)
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "privateuse1_runtime"}
    assert launches == {e["args"]["correlation"] for e in work} == set(starts)
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert {"stream 0 (default)", "stream 1"} <= set(names)


def test_shapes_and_stacks_are_those_of_the_operator() -> None:
    a = torch.ones(2, 3, device="dipu")
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    with profile(
        activities=BOTH,
        record_shapes=True,
        with_stack=True,
        experimental_config=verbose,
    ) as recorded:
        torch.mm(a, a.t())
    (row,) = (r for r in recorded.key_averages(group_by_input_shape=True) if r.key == "aten::mm")
    assert row.input_shapes == [[2, 3], [3, 2]] and row.self_device_time_total > 0
    (row,) = (r for r in recorded.key_averages(group_by_stack_n=5) if r.key == "aten::mm")
    assert any("test_shapes_and_stacks_are_those_of_the_operator" in line for line in row.stack)


def test_a_schedule_records_the_steps_that_it_names(tmp_path: Path) -> None:
    a = torch.ones(8, device="dipu")
    seen: list[int] = []

    def ready(recorded: profile) -> None:
        seen.append(_rows(recorded)["dipu_exp"].count)
        torch.profiler.tensorboard_trace_handler(str(tmp_path))(recorded)

    steps = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=steps, on_trace_ready=ready) as running:
        for _ in range(8):
            a.exp()
            running.step()
    assert seen == [2, 2]
    assert len(list(tmp_path.glob("*.pt.trace.json"))) == 2


def test_a_session_does_not_see_the_work_of_another(tmp_path: Path) -> None:
    a = torch.ones(8, device="dipu")
    for _ in range(2):
        with profile(activities=BOTH) as recorded:
            a.exp()
        a.sin()
        work = [e["name"] for e in _trace(recorded, tmp_path) if e.get("cat") == "kernel"]
        assert work == ["dipu_exp"]


def test_a_vendors_kernel_is_named_and_a_forced_operator_only_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = torch.ones(3, device="dipu")
    routes.bind(implementation.of({"exp": lambda input: input.sin().cos()}, "mine"))
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", "neg")
    try:
        with profile(activities=BOTH) as recorded:
            x.exp()
            x.neg()
    finally:
        routes.unbind()
    kinds = ("kernel", "gpu_memcpy")
    work = [e["name"] for e in _trace(recorded, tmp_path) if e.get("cat") in kinds]
    assert work == [
        "diopiExp",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy HtoD (Pageable -> Device)",
    ]


def test_the_kernels_of_backward_belong_to_its_operators() -> None:
    a = torch.ones(4, 4, device="dipu", requires_grad=True)
    with profile(activities=BOTH) as recorded:
        (a @ a).sum().backward()
    row = _rows(recorded)["aten::mm"]
    assert row.count == 3 and row.self_device_time_total > 0
    assert _rows(recorded)["dipu_mm"].count == 3


def test_a_collective_is_a_row_of_the_device(tmp_path: Path) -> None:
    dist.init_process_group("dicl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(1000, device="dipu")
    try:
        dist.all_reduce(x)
        with profile(activities=BOTH) as recorded:
            dist.all_reduce(x, dist.ReduceOp.AVG)
            dist.broadcast(x, 0)
    finally:
        dist.destroy_process_group()
    rows = _rows(recorded)
    assert rows["dicl:all_reduce"].count == rows["dicl:broadcast"].count == 1  # on the host
    assert rows["dicl_all_reduce_average"].self_device_time_total > 0
    events = _trace(recorded, tmp_path)
    work = {e["name"]: e["args"] for e in events if e.get("cat") == "kernel"}
    assert list(work) == ["dicl_all_reduce_average", "dicl_broadcast"]
    about = work["dicl_all_reduce_average"]
    assert (about["Collective name"], about["dtype"], about["bytes"]) == (
        "all_reduce",
        "Float",
        4000,
    )
    assert (about["Group size"], about["Rank"], about["stream"]) == (1, 0, 1)
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "privateuse1_runtime"}
    assert {args["correlation"] for args in work.values()} <= launches


CLASSIC = """
import warnings
warnings.filterwarnings("ignore", "Warning. Profiler clears events")  # torch 2.11's
import torch, torch_dipu
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()
inputs = torch.randn(2, 3, 8, 8).cuda()
with profile(activities=BOTH, record_shapes=True) as prof:
    with record_function("model_inference"):
        model(inputs)
print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=20))
shapes = prof.key_averages(group_by_input_shape=True)
print(shapes.table(sort_by="cpu_time_total", row_limit=20))
verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
with profile(activities=BOTH, with_stack=True, experimental_config=verbose) as prof:
    model(inputs)
stacks = prof.key_averages(group_by_stack_n=5)
print(stacks.table(sort_by="self_cuda_time_total", row_limit=4))

def trace_handler(p):
    print(p.key_averages().table(sort_by="self_cuda_time_total", row_limit=10))
    p.export_chrome_trace("trace_" + str(p.step_num) + ".json")

steps = torch.profiler.schedule(wait=1, warmup=1, active=2)
with profile(activities=BOTH, schedule=steps, on_trace_ready=trace_handler) as p:
    for idx in range(8):
        model(inputs)
        p.step()
"""


def test_a_program_that_profiles_cuda_sees_the_device(tmp_path: Path) -> None:
    source = f"import os; os.chdir({str(tmp_path)!r})\n{CLASSIC}"
    printed = output_of(source, DIPU_MOCK_CUDA="True", DITORCH_QUIET="1")
    for wanted in (
        "model_inference",
        "aten::convolution_overrideable",
        "dipu_native_batch_norm",
        "LaunchKernel_dipu_native_batch_norm",
        "[[2, 3, 8, 8], [4, 3, 3, 3], ",
        "_conv_forward",  # of a stack
        "nn.Module: Conv2d_0",
    ):
        assert wanted in printed, printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace_4.json", "trace_8.json"]
