"""The packed archive: each content once, within its memory, whole up to the last record."""

from __future__ import annotations

import ctypes
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_tools import OpCapture
from op_tools.capture.encoding import Part, Recorded
from op_tools.capture.packed_reader import Archive
from op_tools.capture.packed_store import PackedStore
from op_tools.core import native_library, tool_errors
from op_tools.tensors import staging


def archive() -> Archive:
    (path,) = Path("op_tools_results/op_capture_results").glob("*.opcap")
    return Archive(path)


def calls(name: str = "") -> list[Recorded]:
    held = archive()
    return [call for call in map(held.load, held) if not name or call.name == name]


def step(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.linear(x, x)
    y = y.relu_()
    values, _ = y.topk(2)
    values[0] = 0
    return values.sum()


def test_everything_comes_back() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, device="dipu", requires_grad=True)
    with OpCapture(format="packed"):
        step(x).backward()
    linear, relu, topk, setitem, total = calls()
    assert [call.name.rpartition(".")[2] for call in (linear, relu, topk, setitem, total)] == [
        *("linear", "relu_", "topk", "__setitem__", "sum")
    ]
    assert linear.args[0] is linear.args[1] and torch.equal(linear.args[0], x.detach().cpu())
    assert linear.devices == ["dipu:0", "dipu:0"] and linear.args[0].requires_grad
    assert torch.equal(relu.args[0], linear.output)  # as it was before it was written
    assert torch.equal(relu.output, linear.output.relu())
    assert type(topk.output) is torch.return_types.topk
    assert setitem.output is None and setitem.mutated[0][0].tolist() == [0.0] * 2
    assert topk.grad_outputs is not None
    assert topk.grad_outputs[0].tolist() == [[0.0, 0.0]] + [[1.0, 1.0]] * 3  # type: ignore[union-attr]
    assert torch.equal(total.grad_outputs[0], torch.ones(()))  # type: ignore[index, arg-type]
    assert x.grad is not None and linear.grad_inputs is not None
    assert torch.equal(linear.grad_inputs[0], x.grad.cpu())  # type: ignore[arg-type]
    assert linear.header["site"].startswith("test_packed.py:")
    assert archive().lost == 0


def test_each_content_is_written_once() -> None:
    x = torch.randn(512, 512, device="dipu")
    with OpCapture(format="packed"):
        for _ in range(20):
            x + x.clone()  # the clone is new memory each time, and the same content
    assert archive().path.stat().st_size < 3 * x.nbytes


def test_memory_that_is_used_again_is_not_mistaken() -> None:
    seen = []
    with OpCapture(format="packed", ops="torch.Tensor.neg"):
        for i in range(50):
            x = torch.full((1000,), float(i), device="dipu")
            x.neg()
            seen.append(x.data_ptr())
            del x
    assert len(set(seen)) < 50  # the allocator did use addresses again
    assert [call.args[0][0].item() for call in calls()] == [float(i) for i in range(50)]


def test_a_write_between_two_calls_is_seen() -> None:
    x = torch.zeros(100, device="dipu")
    with OpCapture(format="packed", ops="torch.Tensor.neg"):
        x.neg()
        x.add_(1)
        x.neg()
        x.data.add_(1)  # not counted by autograd
        x.neg()
    assert [call.args[0][7].item() for call in calls()] == [0.0, 1.0, 2.0]


@pytest.fixture
def late() -> Iterator[None]:
    """The device makes its copies to page-locked memory late."""
    with torch.dipu.quirk("late_copy"):
        yield


@pytest.mark.usefixtures("late")
def test_what_a_device_copies_on_its_own_is_as_it_was() -> None:
    x = torch.zeros(1000, device="dipu")
    with OpCapture(format="packed"):
        for _ in range(3):
            x.neg()
            x.add_(1)  # behind the copy, in the same stream
        x.t()
        x.data.add_(1)  # not counted by autograd
        x.neg()
    assert [call.args[0][7].item() for call in calls("torch.Tensor.neg")] == [0.0, 1.0, 2.0, 4.0]
    assert [call.output[7].item() for call in calls("torch.Tensor.add_")][:2] == [1.0, 2.0]
    assert archive().lost == 0


@pytest.mark.usefixtures("late")
def test_what_is_overwritten_right_after_its_call_is_as_it_was() -> None:
    x = torch.full((100_000,), 2.0, device="dipu")
    other = torch.dipu.Stream()
    with OpCapture(format="packed", ops="torch.Tensor.mul"):
        for value in range(5):
            y = x.mul(value)
            other.wait_stream(torch.dipu.current_stream())
            with torch.dipu.stream(other):
                torch._foreach_zero_([y, x])  # autograd counts no write
                x.data.fill_(value)
            torch.dipu.current_stream().wait_stream(other)
    assert [call.args[0].unique().item() for call in calls()] == [2.0, 0.0, 1.0, 2.0, 3.0]
    assert [call.output.unique().item() for call in calls()] == [0.0, 0.0, 2.0, 6.0, 12.0]


@pytest.mark.usefixtures("late")
def test_gradients_are_as_they_were_when_a_hook_writes_them() -> None:
    x = torch.full((1000,), 3.0, device="dipu", requires_grad=True)
    with OpCapture(format="packed", ops="torch.Tensor.mul"):
        y = x * 2
        y.register_hook(lambda gradient: gradient.zero_())
        (y * 5).sum().backward()
    first, second = calls()
    assert second.grad_inputs is not None and first.grad_outputs is not None
    assert second.grad_inputs[0].unique().tolist() == [5.0]  # type: ignore[union-attr]
    assert first.grad_outputs[0].unique().tolist() == [0.0]  # type: ignore[union-attr]


def test_values_that_an_untracked_writer_has_changed_are_captured_again() -> None:
    x = torch.full((4,), 2.0, device="dipu")
    start, host, _ = torch.dipu.host_window(0)
    with OpCapture(format="packed"):
        y = x * 3
        torch.accelerator.synchronize()
        (ctypes.c_float * 4).from_address(x.data_ptr() - start + host)[:] = [-100.0] * 4
        x + y
    times, added = calls()
    assert [one.max().item() for one in (times.args[0], *added.args)] == [2.0, -100.0, 6.0]


@pytest.mark.usefixtures("late")
def test_a_written_list_is_copied_anew_through_its_views() -> None:
    x = torch.ones(4, 4, device="dipu")
    with OpCapture(format="packed", level="aten"):
        x[:, :2].neg()
        torch._foreach_add_([x], 1)  # autograd counts no write
        x[:, :2].neg()
    given = [call.args[0] for call in calls("aten.neg.default")]
    assert [values.max().item() for values in given] == [1.0, 2.0]


@pytest.mark.usefixtures("late")
def test_what_is_on_its_way_when_memory_is_full_is_not_torn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OP_CAPTURE_MEMORY", "1MB")
    made = [torch.full((2000 + 7 * i,), float(i), device="dipu") for i in range(120)]
    with OpCapture(format="packed"):
        for x in made:
            x.neg()
    for i, call in enumerate(calls()):
        assert call.args[0].eq(i).all() and call.output.eq(-i).all()
    assert archive().lost == 0


def test_a_tensor_that_the_device_could_not_copy_in_time_is_no_torn_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access")

    plain = staging._copy
    monkeypatch.setattr(staging, "_copy", lambda flat, size: (plain(flat, size)[0], Broken()))
    x = torch.ones(100, device="dipu")
    with OpCapture(format="packed"):
        assert x.neg()[0].item() == -1.0
    assert calls() == []
    assert [p.tool for p in tool_errors.problems()] == ["OpCapture"]
    assert "an illegal memory access" in str(tool_errors.problems()[0])
    tool_errors.clear()


@pytest.mark.parametrize("native", [True, False], ids=["observers", "mode"])
def test_kernels_that_write_in_place(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("op_tools.core.native_library.helper", lambda: None)
    x = torch.ones(1000, device="dipu")
    with OpCapture(format="packed", level="aten"):
        x.mul_(3)
        torch._foreach_add_([x], 1)
        x.neg()
    multiplied, added, negated = calls()
    assert multiplied.args[0][0].item() == 1.0 and multiplied.output[0].item() == 3.0
    assert added.args[0][0][0].item() == 3.0 and added.mutated[0][0].item() == 4.0
    assert negated.args[0][0].item() == 4.0


def test_a_late_backward_is_written_too() -> None:
    x = torch.ones(3, device="dipu", requires_grad=True)
    with OpCapture(format="packed"):
        y = x * 2
    y.sum().backward()
    (call,) = calls()
    assert call.grad_inputs is not None and call.grad_inputs[0].tolist() == [2.0] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 1000, 5000])
def test_a_file_cut_anywhere_is_whole_up_to_there(cut: int) -> None:
    torch.manual_seed(0)
    with OpCapture(format="packed"):
        for _ in range(3):
            step(torch.randn(16, 16, device="dipu"))
    whole = archive()
    count, data = len(whole), whole.path.read_bytes()
    whole.path.write_bytes(data[:-cut])
    held = archive()
    assert 0 < len(held) <= count
    for call in held:
        held.load(call)  # each that is there can be read
    assert held.lost < len(data)


def thirty_calls() -> tuple[Path, bytes]:
    x = torch.ones(4, 4, device="dipu")
    with OpCapture(format="packed"):
        for i in range(30):
            x.mul(i)
    path = archive().path
    return path, path.read_bytes()


def test_a_closed_archive_that_was_cut_says_how_many_calls_are_missing() -> None:
    path, data = thirty_calls()
    assert Archive(path).problem == ""
    cut = data.index(b'"id":', len(data) * 2 // 3)
    path.write_bytes(data[:cut])
    held = Archive(path)
    assert 0 < len(held) < 30
    assert held.problem.startswith(f"{30 - len(held)} of 30 calls are missing or damaged (")
    assert f"the last {len(data) - cut} of {len(data)} bytes are gone)" in held.problem


def test_an_archive_that_was_cut_between_two_records_is_not_whole() -> None:
    path, data = thirty_calls()
    path.write_bytes(data[: data.rindex(b"OPC1")])
    assert "missing or damaged" in Archive(path).problem


@pytest.mark.parametrize("place", [b"OPC1", b'"name":"torch.Tensor.mul"'])
def test_calls_behind_a_damaged_place_are_read(place: bytes) -> None:
    path, data = thirty_calls()
    at = data.index(place, len(data) // 2)
    path.write_bytes(data[:at] + bytes(16) + data[at + 16 :])
    held = Archive(path)
    assert len(held) >= 29 and "missing or damaged" in held.problem
    assert [held.load(call).args[1] for call in held][-1] == 29


def test_a_damaged_byte_is_reported() -> None:
    with OpCapture(format="packed"):
        torch.ones(4, 4, device="dipu").neg()
    path = archive().path
    data = bytearray(path.read_bytes())
    place = data.index(torch.ones(4, 4).numpy().tobytes())
    data[place + 5] ^= 1
    path.write_bytes(data)
    held = Archive(path)
    with pytest.raises(ValueError, match="damaged"):
        for call in held:
            held.load(call)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.opcap").write_bytes(b"hello" * 100)
    with pytest.raises(ValueError, match="no archive of captured calls"):
        Archive(tmp_path / "x.opcap")


CHILD = """
import torch, torch_dipu
from op_tools import OpCapture
tool = OpCapture(format="packed").start()
i = 0
while True:
    x = torch.full((500, 100), float(i), device="dipu")
    y = x + i
    i += 1
    if i == 20:
        print("going", flush=True)
"""


def test_an_archive_is_readable_after_kill_9(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "going\n"
    deadline = time.monotonic() + 60
    root = tmp_path / "op_tools_results"
    while sum(path.stat().st_size for path in root.rglob("*.opcap")) < 3_000_000:
        assert time.monotonic() < deadline
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    held = archive()
    added = [held.load(call) for call in held if held.header(call)["name"] == "torch.Tensor.add"]
    assert len(added) >= 5
    for number, call in enumerate(added):
        assert call.args[0][3, 4].item() == number == call.args[1]
        if call.has_output:
            assert call.output[0, 0].item() == 2 * number
    assert sum(call.has_output for call in added) >= len(added) - 1


def put(store: PackedStore, number: int, tensor: torch.Tensor) -> None:
    """A call with one argument."""
    taken = store.take(tensor)
    store.write(Part("input", {"id": number, "name": "x", "time": ""}, (taken,), {}))


def test_copies_in_the_queue_stay_within_their_bound() -> None:
    held = staging.Staging(100)
    seen = []

    def release() -> None:
        seen.append(held._held)
        held.release(80)

    held.reserve(80)
    threading.Timer(0.05, release).start()
    held.reserve(60)  # blocks until the other is released
    assert seen == [80] and held._held == 60
    held.release(60)
    held.reserve(1000)  # more than all: alone


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t(),
    "gaps": lambda x: x[:, 1:],
    "every second": lambda x: x[::2, ::2],
    "expanded": lambda x: x[:1].expand(4, -1),
    "overlapping": lambda x: x.as_strided((3, 4), (1, 2)),
    "one element": lambda x: x[2, 3],
    "empty": lambda x: x[:0],
    "negated": lambda x: torch._neg_view(x),
    "bool": lambda x: x > 8,
    "complex": lambda x: torch.view_as_complex(x.reshape(-1, 2)),
    "bfloat16": lambda x: x.bfloat16(),
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("device", ["cpu", "dipu"])
def test_tensors_of_every_layout_come_back(
    native: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_library, "helper", lambda: None)
    x = torch.arange(24.0).reshape(4, 6).to(device)
    laid = [(name, layout(x)) for name, layout in LAYOUTS.items()]
    store = PackedStore()
    for turn in range(2):
        for number, (_, tensor) in enumerate(laid):
            put(store, turn * len(laid) + number, tensor)
    store.close()
    held = archive()
    for call in held:
        name, tensor = laid[call % len(laid)]
        (made,) = held.load(call).args
        assert torch.equal(made, tensor.cpu()) and made.dtype == tensor.dtype, name
        assert made.stride() == tensor.stride(), name
    assert held.lost == 0


def test_large_and_small_ones_in_a_row() -> None:
    store = PackedStore()
    torch.manual_seed(0)
    sizes = [3, 1_000_000, 700_001, 5, 2_000_000, 1, 60_000, 1_048_560, 1_048_576, 7] * 2
    made = [torch.randn(size) for size in sizes]
    for number, tensor in enumerate(made):
        put(store, number, tensor)
    store.close()
    held = archive()
    for number, tensor in enumerate(made):
        assert torch.equal(held.load(number).args[0], tensor)
    assert held.lost == 0 and held.whole == store.bytes


def test_a_full_disk_ends_the_archive_and_not_the_program() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    x = torch.zeros(10, device="dipu")
    with OpCapture(format="packed") as tool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        for i in range(60):
            x = x + i
        tool.stop()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert x[0].item() == sum(range(60))
    assert "File too large" in str(tool_errors.problems()[0])
    assert archive().lost == 0 and 1 <= len(archive()) < 60


UNSTOPPED = """
import torch, torch_dipu
from op_tools import OpCapture
OpCapture(format="packed").start()
for i in range(30):
    x = torch.full((100, 100), float(i), device="dipu") + i
"""


def test_what_waits_is_written_at_the_exit_also_of_two_processes(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", UNSTOPPED], cwd=tmp_path, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0 and b"OpCapture: 60 calls of 2 operators" in said
    paths = sorted(Path("op_tools_results/op_capture_results").glob("*.opcap"))
    assert {path.name.split("-")[1] for path in paths} == {str(p.pid) for p in running}
    for held in map(Archive, paths):
        found = [held.load(call) for call in held]
        assert held.lost == 0 and len(found) == 60
        assert found[-1].output[5, 5].item() == 58.0
