"""The packed archive: each content once, within its memory, whole up to the last record."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools import OpCapture, arena, copying, diagnostics, kernels, packed, recording, spool
from op_tools.archive import Archive
from op_tools.arena import BLOCK, Arena
from op_tools.packed import PackedStore
from op_tools.snapshot import describe
from op_tools.store import Part, Recorded


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
    with OpCapture(format="packed") as tool:
        for _ in range(20):
            x + x.clone()  # the clone is new memory each time, and the same content
    assert tool._run.store.bytes < 3 * x.numel() * 4 < tool._run.store.saved  # type: ignore[union-attr, attr-defined]
    assert len(list(Path("op_tools_results").rglob("*.opcap"))) == 1


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


class Sends:
    """The copies that a device was asked for."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.packers: list[Any] = []

    def __len__(self) -> int:
        return len(self.seen) + sum(packer.sent for packer in self.packers)


class Kernel:
    """What a vendor gives for copies: rows of a table, copied in one launch."""

    LAUNCH = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
        ctypes.c_void_p,
    )
    CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))

    def __init__(self) -> None:
        self.launches: list[int] = []  # the rows of each
        self.failing = False
        window = recording.window("dipu", 0)
        assert window is not None
        self._device, self._host, self._bytes = window
        self._functions = self.LAUNCH(self.launch), self.CAPTURING(lambda stream, state: 0)

    def launcher(self, kind: str, index: int) -> tuple[int, int, int, int]:
        launch, capturing = (
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions
        )
        return launch, 0, 8, capturing

    def launch(self, *given: Any) -> int:
        if self.failing:
            return 1
        rows, table = given[2], given[9][0]
        self.launches.append(rows)
        torch.accelerator.synchronize()  # as in the order of a stream
        for row in range(rows):
            start, to, size = table[3 * row : 3 * row + 3]
            ctypes.memmove(self._address(to), self._address(start), size)
        return 0

    def _address(self, at: int) -> int:
        is_devices = self._device <= at < self._device + self._bytes
        return at - self._device + self._host if is_devices else at


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The device copies many tensors with one kernel, and the host does not see its memory."""
    made = Kernel()
    monkeypatch.setattr(copying, "launcher", made.launcher)
    monkeypatch.setattr(recording, "window", lambda kind, index: None)
    return made


@pytest.mark.parametrize("near", [True, False], ids=["near", "locked"])
def test_the_tensors_of_a_part_are_copied_with_one_kernel(
    near: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if near:
        monkeypatch.setattr(spool, "FEW", 0)
    given = [torch.full((i + 1,), float(i), device="dipu") for i in range(70)]
    given += [torch.arange(12.0, device="dipu").view(3, 4)[:, 1:3]]  # torch copies what has gaps
    with OpCapture(format="packed"):
        made = torch._foreach_add(given, 1)
        torch._foreach_mul_(made, 2)
    added, multiplied = calls()
    for i in range(70):
        assert added.args[0][i].eq(i).all() and added.output[i].eq(i + 1).all()
        assert multiplied.output[i].eq(2 * i + 2).all() and len(multiplied.output[i]) == i + 1
    assert added.args[0][70].tolist() == [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]
    # of each part of a call 64 and then the rest; what is known again, not once more
    assert kernel.launches == [64, 6, 64, 7, 64, 7]
    assert archive().lost == 0 and diagnostics.problems() == []


@pytest.mark.parametrize("near", [True, False], ids=["near", "locked"])
@pytest.mark.parametrize("drained", [True, False])
def test_a_few_elements_are_looked_at_by_the_same_kernel(
    near: bool, drained: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if near:
        monkeypatch.setattr(spool, "FEW", 0)
    x = torch.zeros(100, device="dipu")
    with OpCapture(format="packed", ops="torch.Tensor.neg") as tool:
        x.neg()
        if drained:
            tool._run.store._spool.drain()  # type: ignore[union-attr, attr-defined]
        x.neg()
        x.data.add_(1)  # neither counted nor seen
        x.neg()
    assert [call.args[0][7].item() for call in calls()] == [0.0, 0.0, 1.0]
    assert len(kernel.launches) == 7  # x, a result, a look, a result, a look, x again, a result


def test_a_kernel_that_cannot_be_started_is_told_and_nothing_of_it_is_taken_for_known(
    kernel: Kernel,
) -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(format="packed"):
        kernel.failing = True
        x.neg()
        kernel.failing = False
        x.exp()
    assert [call.args[0].tolist() for call in calls("torch.Tensor.exp")] == [[1.0] * 3]
    assert "was not started" in str(diagnostics.problems()[0])
    diagnostics.clear()


@pytest.fixture(params=["native", "near", "python"])
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sends]:
    """The device copies on its own, as one does whose memory the host does not see, and late; into
    the host's memory or, as when there is more of it ("near"), into its own at first.
    """
    sends, plain, helper = Sends(), packed.send, kernels.helper()
    assert helper is not None
    make = helper.Packer

    def send(*given: Any) -> Any:
        sends.seen.append(given[1].shape)
        return plain(*given)

    def packer(*given: Any) -> Any:
        sends.packers.append(make(*given))
        return sends.packers[-1]

    if request.param == "near":
        monkeypatch.setattr(spool, "FEW", 0)
        monkeypatch.setattr(spool, "_is_bounded", lambda: False)
    if request.param != "python":
        monkeypatch.setattr(recording, "window", lambda kind, index: None)
        monkeypatch.setattr(helper, "Packer", packer)
    else:
        monkeypatch.setattr("op_tools.kernels.helper", lambda: None)
        monkeypatch.setattr(packed, "send", send)
    with torch.dipu.quirk("late_copy"):
        yield sends


def test_what_a_device_copies_on_its_own_is_as_it_was(sent: Sends) -> None:
    x = torch.zeros(1000, device="dipu")
    with OpCapture(format="packed"):
        for _ in range(3):
            x.neg()
            x.add_(1)  # behind the copy, in the same stream
        x.t()  # as it was: not copied again
        x.data.add_(1)  # not counted by autograd, and seen: it is a call
        x.neg()
    assert [call.args[0][7].item() for call in calls("torch.Tensor.neg")] == [0.0, 1.0, 2.0, 4.0]
    assert [call.output[7].item() for call in calls("torch.Tensor.add_")][:2] == [1.0, 2.0]
    # x at first, four results of neg, four of add_, and x twice more: `data` counts for itself
    assert len(sent) == 11
    assert archive().lost == 0


def test_a_written_list_is_copied_anew_through_its_views(sent: Sends) -> None:
    x = torch.ones(4, 4, device="dipu")
    with OpCapture(format="packed", level="aten"):
        x[:, :2].neg()
        torch._foreach_add_([x], 1)  # autograd counts no write
        x[:, :2].neg()
    given = [call.args[0] for call in calls("aten.neg.default")]
    assert [values.max().item() for values in given] == [1.0, 2.0]
    assert len(sent) > 0


def test_of_a_part_of_the_calls_a_few_elements_are_looked_at(sent: Sends) -> None:
    x = torch.zeros(100, device="dipu")
    with OpCapture(format="packed", ops="torch.Tensor.neg") as tool:
        x.neg()
        tool._run.store._spool.drain()  # type: ignore[union-attr, attr-defined]
        x.neg()
        x.data.add_(1)  # neither counted nor seen
        x.neg()
    assert [call.args[0][7].item() for call in calls()] == [0.0, 0.0, 1.0]
    assert len(sent) == 5  # x twice, three results


def test_what_is_on_its_way_when_memory_is_full_is_not_torn(
    sent: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_CAPTURE_MEMORY", "1MB")
    made = [torch.full((2000 + 7 * i,), float(i), device="dipu") for i in range(120)]
    with OpCapture(format="packed"):
        for x in made:
            x.neg()
    for i, call in enumerate(calls()):
        assert call.args[0].eq(i).all() and call.output.eq(-i).all()
    assert len(sent) == 240 and archive().lost == 0


def test_a_tensor_that_the_device_could_not_copy_in_time_is_no_torn_record(
    sent: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __init__(self, waiting: Any) -> None:
            self.first, self.clear = waiting.first, waiting.clear
            self.waiting = waiting

        def settle(self, stop: int) -> None:
            self.first = self.waiting.first
            if self.first < stop:
                raise RuntimeError("an illegal memory access")

        def land(self, stop: int, *given: Any) -> None:
            self.settle(stop)

    def broken(path: Path, problem: Any, waiting: Any, filling: Any) -> spool.Spool:
        return plain(path, problem, Broken(waiting), filling)

    plain = spool.Spool
    monkeypatch.setattr(packed, "Spool", broken)
    x = torch.ones(100, device="dipu")
    with OpCapture(format="packed"):
        x.neg()
    assert calls() == []
    assert [p.tool for p in diagnostics.problems()] == ["OpCapture"]
    assert "an illegal memory access" in str(diagnostics.problems()[0])
    diagnostics.clear()


@pytest.mark.parametrize("native", [True, False], ids=["observers", "mode"])
def test_kernels_that_write_in_place(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("op_tools.kernels.helper", lambda: None)
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


def gradients_of_a_program() -> list[tuple[str, Any, Any, bool]]:
    """Composite, in-place, many results, an argument twice, a pass through a part of a call."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, device="dipu", requires_grad=True)
    words = torch.nn.Embedding(5, 6, sparse=True, device="dipu")
    before = set(Path().rglob("*.opcap"))
    with OpCapture(format="packed"):
        y = torch.nn.functional.layer_norm(x * x, (6,)).relu_()
        a, b, c = y.unbind(1)[:3]
        z = torch.nn.functional.linear(torch.stack([a, b]), x[0, :4].expand(3, 4))
        (z.sum() + words(torch.tensor([1, 1], device="dipu")).sum() + c.clone().sum()).backward()
        first, _ = torch.broadcast_tensors(x[:1], x[:, :1])
        first.sum().backward()
    (path,) = set(Path().rglob("*.opcap")) - before
    held = Archive(path)
    made = [held.load(call) for call in held]
    return [(call.name, call.grad_inputs, call.grad_outputs, call.complete) for call in made]


def test_gradients_are_heard_natively_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    natively = gradients_of_a_program()
    monkeypatch.setattr("op_tools.kernels.helper", lambda: None)
    in_python = gradients_of_a_program()
    assert repr(natively) == repr(in_python)
    assert sum(gradient is not None for _, gradient, _, _ in natively) > 10
    assert not all(complete for _, _, _, complete in natively)


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


def test_a_damaged_byte_is_told() -> None:
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
    taken = describe(tensor, store.take(tensor))
    store.write(Part("input", {"id": number, "name": "x", "time": ""}, (taken,), {}))


def test_what_waits_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_CAPTURE_MEMORY", "1MB")
    plain = spool.Spool._write
    peaks = []

    def slow(self: spool.Spool, piece: arena.Arena, stop: int) -> None:
        peaks.append(sum(each.size for each in self._full))
        plain(self, piece, stop)

    monkeypatch.setattr(spool.Spool, "_write", slow)
    store = PackedStore()
    for i in range(40):
        put(store, i, torch.full((50_000,), float(i)))
    store.close()
    assert max(peaks) <= 1 << 20
    held = archive()
    assert [held.load(call).args[0][-1].item() for call in held] == [float(i) for i in range(40)]


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
        monkeypatch.setattr(kernels, "helper", lambda: None)
    x = torch.arange(24.0).reshape(4, 6).to(device)
    laid = [(name, layout(x)) for name, layout in LAYOUTS.items()]
    store = PackedStore()
    for turn in range(2):  # the second time nothing has changed
        for number, (_, tensor) in enumerate(laid):
            put(store, turn * len(laid) + number, tensor)
        before = store._spool.end
    store.close()
    held = archive()
    for call in held:
        name, tensor = laid[call % len(laid)]
        (made,) = held.load(call).args
        assert torch.equal(made, tensor.cpu()) and made.dtype == tensor.dtype, name
        assert made.stride() == tensor.stride(), name
    assert before < 50_000 and held.lost == 0


@pytest.mark.parametrize("past", [True, False], ids=["past the cache", "through it"])
def test_large_and_small_ones_in_a_row(past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not past:  # as on a file system that cannot
        monkeypatch.setattr(spool, "_open_direct", lambda path: None)
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


def test_a_file_system_that_refuses_a_direct_write_gets_a_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = os.pwrite

    def refusing(file: int, data: Any, at: int) -> int:
        if file == store._spool._direct:
            raise OSError(22, "Invalid argument")
        return plain(file, data, at)

    store = PackedStore()
    monkeypatch.setattr(os, "pwrite", refusing)
    tensor = torch.randn(300_000)
    put(store, 1, tensor)
    store.close()
    assert not store.failed and torch.equal(archive().load(1).args[0], tensor)


def test_a_full_disk_ends_the_archive_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.pwrite

    def full(file: int, data: memoryview, at: int) -> int:
        if at + len(data) > 20_000:
            plain(file, data[: 20_000 - at], at)
            raise OSError(28, "No space left on device")
        return plain(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    x = torch.zeros(10, device="dipu")
    with OpCapture(format="packed") as tool:
        for i in range(60):
            x = x + i
    assert x[0].item() == sum(range(60))
    assert "No space left" in tool._run.store.failed  # type: ignore[union-attr]
    assert archive().lost == 0 and len(archive()) >= 1


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


def test_memory_is_real_while_a_program_is_traced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = Arena(BLOCK)
    made.view[:3] = b"abc"
    assert bytes(made.view[:4])[:3] == b"abc"
    assert made.address % BLOCK == 0
