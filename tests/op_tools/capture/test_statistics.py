"""Statistics and the hash: what they are, that they notice, and that both ways give the same."""

from __future__ import annotations

import ctypes
import gc
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

from op_tools import OpCapture
from op_tools.capture import statistics_store
from op_tools.core import native_library, step_counter, tool_errors
from op_tools.core.call import Level
from op_tools.core.filters import Selection
from op_tools.tensors import device_reduction, statistics, statistics_sink
from op_tools.tensors.statistics_reference import BLOCK, hash_bytes

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
SHAPES = ((), (0,), (1,), (3,), (7, 5), (129, 131), (520, 517))


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native_library, "helper", lambda: None)
    yield


@pytest.fixture(autouse=True)
def every_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has the statistics of all its tensors; references are tested in
    test_statistics_programs.py.
    """
    monkeypatch.setenv("OP_CAPTURE_INPUTS", "all")


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(3)
    if dtype == torch.complex64:
        return torch.randn(shape, dtype=dtype)
    return (torch.randn(shape, dtype=torch.float64) * 40).to(dtype)


def test_the_numbers_are_those_of_numpy(without_native: None) -> None:
    x = torch.tensor([3.0, -4.0, math.nan, math.inf, 12.0, -math.inf])
    found = statistics.of(x)
    assert found[1:] == (-4.0, 12.0, 11 / 3, 13.0, 3)


def test_without_a_finite_value_there_are_no_numbers(without_native: None) -> None:
    assert statistics.of(torch.full((4,), math.nan))[1:] == (None, None, None, None, 4)
    assert statistics.of(torch.empty(0))[1:] == (None, None, None, None, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_native_helper_gives_the_same(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")
    for shape in SHAPES:
        x = values(shape, dtype)
        kinds = [x]
        if x.is_floating_point() and x.numel() > 2:
            kinds.append(x.clone())
            kinds[1].view(-1)[0], kinds[1].view(-1)[-1] = math.nan, -math.inf
        for kind in kinds:
            fast = statistics.of(kind)
            with monkeypatch.context() as patch:
                patch.setattr(native_library, "helper", lambda: None)
                plain = statistics.of(kind)
            assert (fast.hash, fast.min, fast.max) == (plain.hash, plain.min, plain.max)
            assert fast.nonfinite == plain.nonfinite
            if fast.norm is not None and fast.mean is not None:
                assert fast.norm == pytest.approx(plain.norm, rel=1e-12)
                near = 1e-14 * fast.norm
                assert fast.mean == pytest.approx(plain.mean, rel=1e-9, abs=near)


def test_every_single_bit_counts() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5003, dtype=np.uint8)
    plain = hash_bytes(data)
    seen = {plain}
    for bit in range(0, data.size * 8, 3):
        data[bit // 8] ^= 1 << (bit % 8)
        seen.add(hash_bytes(data))
        data[bit // 8] ^= 1 << (bit % 8)
    assert len(seen) == 1 + len(range(0, data.size * 8, 3))
    assert hash_bytes(data) == plain


def test_many_random_flips_are_noticed() -> None:
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, 1 << 15, dtype=np.uint8)
    tensor = torch.from_numpy(data)
    plain = statistics.hash_of(tensor)
    for _ in range(20_000):
        places = rng.integers(0, data.size, rng.integers(1, 5))
        flips = (1 << rng.integers(0, 8, places.size)).astype(np.uint8)
        before = data[places].copy()
        np.bitwise_xor.at(data, places, flips)
        changed = not np.array_equal(before, data[places])
        assert (statistics.hash_of(tensor) != plain) == changed
        np.bitwise_xor.at(data, places, flips)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_order_and_sign_count(dtype: torch.dtype) -> None:
    x = values((1024,), dtype)
    plain = statistics.of(x).hash
    assert statistics.of(-x).hash != plain
    assert statistics.of(x.flip(0)).hash != plain
    assert statistics.of(x.roll(1)).hash != plain
    pairs = x.clone()
    pairs[:2], pairs[2:4] = -x[:2], -x[2:4]  # an even count of signs
    assert statistics.of(pairs).hash != plain
    zeros = torch.zeros(17, dtype=dtype)
    assert statistics.of(zeros).hash != statistics.of(zeros[:16]).hash
    swapped = x.clone()
    swapped[0], swapped[1] = -x[0], x[0]
    other = x.clone()
    other[0], other[1] = x[0], -x[0]
    assert statistics.of(swapped).hash != statistics.of(other).hash
    far = values((300_000,), dtype)  # over several blocks
    moved = torch.cat([far[150_000:], far[:150_000]])
    assert statistics.of(moved).hash != statistics.of(far).hash


def test_the_hash_is_the_same_forever() -> None:
    assert f"{hash_bytes(bytes(range(100))):016x}" == "f3e7330961ce95df"
    assert f"{hash_bytes(b''):016x}" == "f2fea5823ed3a667"


def test_the_hash_is_in_the_order_of_memory() -> None:
    x = values((6, 8), torch.float32)
    assert statistics.of(x.t()) == statistics.of(x)
    assert statistics.of(x.t().contiguous()).hash != statistics.of(x).hash


def test_repeated_values_count_as_often_as_they_are_seen() -> None:
    x = torch.tensor([[3.0], [math.nan]]).expand(2, 4)
    found, plain = statistics.of(x), statistics.of(x.contiguous())
    assert found[1:] == plain[1:] == (3.0, 3.0, 3.0, 6.0, 4)
    assert found.hash != statistics.of(torch.tensor([[3.0], [math.nan]])).hash


# The mode of OpCapture.


def lines(folder: Path) -> list[dict[str, object]]:
    (file,) = (folder / "op_tools_results" / "op_statistics_result").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_for_each_call_and_one_for_its_gradients(tmp_path: Path) -> None:
    x = torch.tensor([[3.0, -4.0]], device="dipu", requires_grad=True)
    with OpCapture(mode="statistics"):
        y = torch.nn.functional.relu(x)
        y.backward(torch.ones(1, 2, device="dipu"))
    forward, backward = (line for line in lines(tmp_path) if line["op"].endswith("relu"))  # type: ignore[attr-defined]
    assert forward["inputs"] == [
        {
            "dtype": "float32",
            "shape": [1, 2],
            "min": -4.0,
            "max": 3.0,
            "mean": -0.5,
            "norm": 5.0,
            "nonfinite": 0,
            "hash": statistics.of(x).hex,
        }
    ]
    assert forward["outputs"][0]["hash"] == statistics.of(y).hex  # type: ignore[index]
    assert backward["grad_inputs"][0]["max"] == 1.0  # type: ignore[index]
    assert not (tmp_path / "op_tools_results" / "op_capture_results").exists()


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_a_backward_pass_through_a_part_of_a_call_has_a_line(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_library, "helper", lambda: None)
    a, b = (torch.ones(n, device="dipu", requires_grad=True) for n in (3, 2))
    with OpCapture(mode="statistics", ops="torch.functional.meshgrid"):
        grid, _ = torch.meshgrid(a, b, indexing="ij")  # two results with a node each
        (grid * 2).sum().backward()
    (line,) = (line for line in lines(tmp_path) if "grad_inputs" in line)
    first, second = line["grad_inputs"]  # type: ignore[misc]
    assert (first["max"], second) == (4.0, None)


def test_the_hash_mode_holds_hashes_alone(tmp_path: Path) -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(mode="hash"):
        x.add_(1)
    (line,) = lines(tmp_path)
    expected = {"dtype": "float32", "shape": [3], "hash": statistics.of(torch.ones(3)).hex}
    assert line["inputs"] == [expected]
    assert line["outputs"] == [{**expected, "hash": statistics.of(torch.full((3,), 2.0)).hex}]


@pytest.mark.parametrize("native", [True, False], ids=["observers", "mode"])
def test_kernels_that_write_in_place(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_library, "helper", lambda: None)
    x, y = torch.ones(1000, device="dipu"), torch.ones(10, device="dipu")
    with OpCapture(mode="statistics", level="aten"):
        x.mul_(3)
        x.neg()
        torch._foreach_add_([x, y], 1)
    first, second, third = lines(tmp_path)
    assert first["op"] == "aten.mul_.Tensor" and third["op"].startswith("aten._foreach_add_")  # type: ignore[attr-defined]
    assert [t["max"] for t in (*first["inputs"][:1], *first["outputs"])] == [1.0, 3.0]  # type: ignore[index, misc]
    assert second["inputs"][0]["max"] == 3.0  # type: ignore[index]
    after = third["mutated"]
    assert (after["0"]["max"], after["1"]["max"]) == (4.0, 2.0)  # type: ignore[index]


@pytest.mark.parametrize("native", [True, False], ids=["observers", "mode"])
def test_a_written_list_is_seen_through_its_views(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_library, "helper", lambda: None)
    x = torch.ones(4, 4, device="dipu")
    with OpCapture(mode="statistics", level="aten"):
        x[:, :2].neg()
        torch._foreach_add_([x], 1)  # autograd counts no write
        x[:, :2].neg()
    seen = [
        line["inputs"][0]["max"] for line in lines(tmp_path) if line["op"] == "aten.neg.default"
    ]  # type: ignore[index]
    assert seen == [1.0, 2.0]


def test_a_write_that_autograd_does_not_count_is_seen(tmp_path: Path) -> None:
    x = torch.ones(1000, device="dipu")
    tool = OpCapture(mode="statistics", ops="torch.Tensor.sum")
    with tool:
        x.sum()
        x.data.mul_(2)  # neither captured nor counted
        x.sum()
    first, second = (line["inputs"][0]["max"] for line in lines(tmp_path))  # type: ignore[index]
    assert (first, second) == (1.0, 2.0)


# Tensors that the host does not see.


@pytest.mark.parametrize("seen", ["natively", "by Python"])
@pytest.mark.parametrize("level", ["api", "aten"])
def test_what_the_host_does_not_see_is_read_at_the_end(
    seen: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")
    if seen == "by Python":  # each call has a record; the native recorder measures its tensors
        monkeypatch.setattr(OpCapture, "goes_natively", lambda self, plan: False)
    monkeypatch.setattr(statistics_sink, "window", lambda kind, index: None)
    monkeypatch.setattr(statistics, "is_seen", lambda tensor: tensor.device.type == "cpu")
    monkeypatch.setattr(statistics, "of", None)  # nothing is copied to the host
    x = torch.arange(6.0, device="dipu", requires_grad=True)
    with OpCapture(mode="statistics", level=level):  # type: ignore[arg-type]
        y = x * 2
        z = y.detach().add_(1)
        y.sum().backward()
    found = lines(tmp_path)
    product = next(line for line in found if "mul" in line["op"])  # type: ignore[operator]
    assert [t["max"] for t in (product["inputs"][0], *product["outputs"])] == [5.0, 10.0]  # type: ignore[index, misc]
    added = next(line for line in found if "add_" in line["op"])  # type: ignore[operator]
    assert added["outputs"][0]["max"] == 11.0  # type: ignore[index]
    assert added["outputs"][0]["hash"] == f"{statistics.hash_of(z.detach().cpu()):016x}"  # type: ignore[index]


def test_a_device_without_the_kernels_is_read_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_sink, "window", lambda kind, index: None)
    monkeypatch.setattr(statistics, "is_seen", lambda tensor: tensor.device.type == "cpu")
    monkeypatch.setattr(device_reduction, "starter", lambda kind: None)
    with OpCapture(mode="statistics"):
        torch.ones(3, device="dipu").add_(1)
    assert lines(tmp_path)[-1]["outputs"][0]["max"] == 2.0  # type: ignore[index]


# Written down natively.

Training = tuple[torch.nn.Module, Callable[[], torch.Tensor]]  # a model, and the loss of a step


def recorded(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[], Training],
    level: Level,
    set_to_none: bool = True,
) -> list[dict[str, Any]]:
    """The lines of two steps of a training, without the numbers of calls."""
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder / "op_tools_results"))
    torch.manual_seed(5)
    step_counter.reset()
    model, loss = program()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with OpCapture(mode="statistics", level=level):
        for _ in range(2):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none)
    return [{**line, "id": 0} for line in lines(folder)]


def test_what_is_written_natively_is_what_python_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")

    def program() -> Training:
        model = torch.nn.Sequential(
            *(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten()),
            *(torch.nn.Linear(12, 1000), torch.nn.ReLU()),
        ).to("dipu")
        x = torch.randn(2, 4, 2, 4).to("dipu").transpose(1, 2)  # with gaps

        def loss() -> torch.Tensor:
            half = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            half = half.to(torch.bfloat16).expand(3, *half.shape)
            masked = half.masked_fill(half > 0.5, -math.inf)
            return (masked.softmax(-1).float() * masked.isfinite()).sum()

        return model, loss

    native = recorded(tmp_path / "native", monkeypatch, program, "aten")
    monkeypatch.setattr(OpCapture, "goes_natively", lambda self, plan: False)
    by_python = recorded(tmp_path / "python", monkeypatch, program, "aten")
    assert native == by_python
    assert {line["direction"] for line in native} == {"forward", "backward"}
    assert {line["step"] for line in native} >= {0, 1}
    assert any(line["module"] == "1" and line["direction"] == "backward" for line in native)


def test_torchs_functions_are_written_down_natively_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")

    def program() -> Training:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(inplace=True)).to("dipu")
        x = torch.randn(4, 6).to("dipu")

        def loss() -> torch.Tensor:
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            y = torch.split(y * y + y, 4, dim=1)[0]  # of the other there is no gradient
            y = y.clone()  # a view of several is not to be written
            torch.mul(x, 2, out=torch.zeros_like(x))
            y[0, 0] = -math.inf
            return torch.stack([y.isfinite() * y.nan_to_num(), y.detach()]).sum()

        return model, loss

    native = recorded(tmp_path / "native", monkeypatch, program, "api")
    monkeypatch.setattr(OpCapture, "direct", lambda self, plan: None)
    by_python = recorded(tmp_path / "python", monkeypatch, program, "api")
    assert native == by_python
    assert sum("grad_inputs" in line for line in native) > 8
    assert any("mutated" in line or line["op"].endswith("__setitem__") for line in native)  # type: ignore[attr-defined]


def test_a_backward_pass_after_the_end_is_written(tmp_path: Path) -> None:
    x = torch.ones(3, device="dipu", requires_grad=True)

    def under_a_tool() -> torch.Tensor:
        with OpCapture(mode="statistics", ops="torch.Tensor.mul"):
            return x * 2

    y = under_a_tool()
    gc.collect()
    y.sum().backward()
    assert [line.get("grad_inputs", [{}])[0].get("max") for line in lines(tmp_path)] == [None, 2.0]  # type: ignore[index]


def _tensors(found: Any) -> list[dict[str, Any]]:
    """The tensors in lines, in order."""
    if isinstance(found, dict):
        return [found] if "dtype" in found else _tensors(list(found.values()))
    return [one for each in found for one in _tensors(each)] if isinstance(found, list) else []


def _without_sums(found: Any) -> Any:
    """Lines without mean and norm, of which the last digits depend on the order of a sum."""
    if isinstance(found, dict):
        kept = {key: each for key, each in found.items() if key not in ("mean", "norm")}
        return {key: _without_sums(each) for key, each in kept.items()}
    return list(map(_without_sums, found)) if isinstance(found, list) else found


@pytest.mark.parametrize("level", ["api", "aten"])
def test_without_the_native_part_the_lines_are_the_native_ones(
    level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library.helper() is None:
        pytest.skip("no compiler here")

    def program() -> Training:
        model = torch.nn.Sequential(
            *(torch.nn.Linear(6, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 3))
        ).to("dipu")
        x = torch.randn(6, 4).to("dipu").t()

        def loss() -> torch.Tensor:
            scores = torch.split(model(x), 2, dim=1)[0]  # of the other there is no gradient
            return (scores.softmax(-1) * scores).sum()

        return model, loss

    native = recorded(tmp_path / "native", monkeypatch, program, level, set_to_none=False)
    if level == "api":
        monkeypatch.setattr(native_library, "helper", lambda: None)
    else:  # a dispatch mode, without the native part, sees other kernels than its observers
        monkeypatch.setattr(statistics_store, "statistics_sink", lambda *given, **more: None)
        monkeypatch.setattr(statistics, "native_library", SimpleNamespace(helper=lambda: None))
    reference = recorded(tmp_path / "reference", monkeypatch, program, level, set_to_none=False)
    assert [_without_sums(line) for line in native] == [_without_sums(line) for line in reference]
    assert {line["direction"] for line in native} == (
        {"forward"} if level == "api" else {"forward", "backward"}
    )
    assert any("grad_inputs" in line for line in native) == (level == "api")
    for one, other in zip(_tensors(native), _tensors(reference), strict=True):
        assert one["hash"] == other["hash"]
        assert one["norm"] == pytest.approx(other["norm"], rel=1e-12)
        assert one["mean"] == pytest.approx(other["mean"], rel=1e-9, abs=1e-14 * one["norm"])


def test_memory_that_is_used_again_is_measured_again(tmp_path: Path, without_native: None) -> None:
    with OpCapture(mode="statistics", level="aten"):
        for value in range(20):
            x = torch.full((6,), float(value), device="dipu")
            x.view(2, 3).t().neg()
            x.data.add_(1)
            x.neg()
    seen = [line["outputs"][0]["min"] for line in lines(tmp_path) if "neg" in line["op"]]  # type: ignore[index, operator]
    assert seen == [-float(value + more) for value in range(20) for more in (0, 1)]


def test_a_profiler_beside_it_sees_what_kernels_call(tmp_path: Path) -> None:
    def names() -> set[str]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            x.t().addmm(x, x)
        return {event.name for event in profile.events()}

    x = torch.ones(3, 3, device="dipu")
    plain = names()
    with OpCapture(mode="statistics", level="aten"):
        assert names() >= plain


def test_a_selection_is_kept_to_natively(tmp_path: Path) -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(mode="hash", level="aten", select=Selection(every=2)) as tool:
        for _ in range(4):
            x.add_(1)
        assert tool.started.applied == 2
    assert len(lines(tmp_path)) == 2


# By a kernel of the vendor: the reference device's memory represents one that the host cannot read.


def test_all_tensors_of_a_call_are_measured_by_one_launch_at_the_call(
    starts: list[int], tmp_path: Path
) -> None:
    x = torch.ones(4, device="dipu")
    with OpCapture(mode="hash", level="aten", disable="aten.mul_.Tensor"):
        y = x + 1
        assert starts == [2]  # its argument and its result
        y.mul_(2)  # not captured
    (line,) = lines(tmp_path)
    assert line["outputs"][0]["hash"] == statistics.of(torch.full((4,), 2.0)).hex  # type: ignore[index]


def test_another_stream_writes_after_what_waits(starts: list[int], tmp_path: Path) -> None:
    x = torch.ones(3, device="dipu")
    torch.accelerator.synchronize()
    with OpCapture(mode="statistics", level="aten"):
        x.neg()
        with torch.Stream("dipu"):
            x.mul_(4)
            x.abs()
    torch.accelerator.synchronize()
    first, _, third = lines(tmp_path)
    assert [first["inputs"][0]["max"], third["inputs"][0]["max"]] == [1.0, 4.0]  # type: ignore[index]


def test_memory_may_be_given_back_right_after_the_call(starts: list[int], tmp_path: Path) -> None:
    x = torch.ones(1000, device="dipu")
    with OpCapture(mode="statistics", level="aten"):
        x.neg()
        x.untyped_storage().resize_(0)
    (line,) = lines(tmp_path)
    assert line["inputs"][0]["max"] == 1.0  # type: ignore[index]
    assert line["outputs"][0]["max"] == -1.0  # type: ignore[index]


def test_a_kernel_that_fails_is_reported_and_the_program_goes_on(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(table: torch.Tensor, device: torch.device) -> None:
        raise RuntimeError("not now")

    monkeypatch.setattr(device_reduction, "starter", lambda kind: fails)
    with OpCapture(mode="statistics", level="aten"):
        y = torch.ones(3, device="dipu").neg()
    assert y.tolist() == [-1.0] * 3
    assert lines(tmp_path)[-1]["outputs"][0]["skipped"] == "not read"  # type: ignore[index]
    assert "not now" in tool_errors.problems("OpCapture")[0].message


Launch = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p),
    *(ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)), ctypes.c_void_p),
)
PIECE = 8 * BLOCK  # bytes


def given_to(arguments: Any, rows: int) -> tuple[list[tuple[int, ...]], Any]:
    """The rows of the table that a kernel is given, and its results as the host sees them."""
    start, host, _ = torch.dipu.host_window(torch.dipu.current_device())
    results = arguments[1].contents.value - start + host
    numbers = (ctypes.c_int64 * 66).from_address(ctypes.addressof(arguments[2].contents))
    if numbers[0] == 0:
        table = (ctypes.c_int64 * (3 * rows)).from_address(arguments[0].contents.value)
        given = [tuple(table[at : at + 3]) for at in range(0, 3 * rows, 3)]
    else:
        given = []
        for tensor in range(numbers[0]):
            address, size, kind = numbers[1 + 3 * tensor : 4 + 3 * tensor]
            assert len(given) == numbers[49 + tensor]
            whole = size // 8 * 8
            starts = range(0, whole, PIECE)
            given += [(address + at, min(PIECE, whole - at), kind) for at in starts]
            given += [(address + whole, size % 8, kind)] if size % 8 else []
        assert len(given) == rows == numbers[49 + numbers[0]]
    return given, (ctypes.c_int64 * (8 * rows)).from_address(results)


Capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))


@pytest.mark.parametrize("level", ["api", "aten"])
def test_a_kernel_is_launched_without_python_where_its_vendor_says_how(
    level: str, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of = []

    def launch(kernel: int, rows: int, *rest: Any) -> int:
        rows_of.append(rows)
        given, found = given_to(rest[-2], rows)
        device = torch.device("dipu", torch.dipu.current_device())
        start = device_reduction.starter("dipu")
        assert start is not None
        made = start(torch.tensor(given), device)()
        found[:] = made.flatten().tolist()
        return 0 if kernel == 7 else 1

    held = Launch(launch), Capturing(lambda stream, state: 0)
    one, other = (ctypes.cast(function, ctypes.c_void_p).value for function in held)
    monkeypatch.setattr(
        device_reduction, "launcher", lambda kind, index: (one, 7, 256, other, False)
    )
    x = torch.full((3, 50_000), 2.0, device="dipu", requires_grad=True)
    with OpCapture(mode="statistics", level=level):  # type: ignore[arg-type]
        y = x * 3
        y.detach().add_(1)
        y.sum().backward()
    assert rows_of
    product = next(line for line in lines(tmp_path) if "mul" in line["op"])  # type: ignore[operator]
    (given, *_), (made,) = product["inputs"], product["outputs"]  # type: ignore[misc, has-type]
    assert (given["max"], made["max"]) == (2.0, 6.0)
    assert made["hash"] == statistics.of(torch.full((3, 50_000), 6.0)).hex


def _dense(row: tuple[int, ...], held: list[torch.Tensor]) -> tuple[int, ...]:
    """A row of the table whose values lie one after the other, of a non-contiguous one."""
    address, size, kind = row
    if not kind & 32:
        return row
    words = (ctypes.c_int64 * 18).from_address(address)
    start, host, _ = torch.dipu.host_window(torch.dipu.current_device())
    width = {dtype.itemsize for dtype, code in statistics.NATIVE.items() if code == kind % 16}.pop()
    rest, offset = (kind >> 8) + np.arange(size // width), np.zeros(size // width, np.int64)
    for dim in range(words[1]):
        offset += rest % words[2 + 2 * dim] * words[3 + 2 * dim]
        rest //= words[2 + 2 * dim]
    torch.accelerator.synchronize()
    span = (ctypes.c_uint8 * ((int(offset.max()) + 1) * width)).from_address(
        words[0] - start + host
    )
    found = np.frombuffer(span, np.uint8).reshape(-1, width)[offset]
    held.append(torch.from_numpy(found.copy()).to("dipu"))
    return held[-1].data_ptr(), size, kind % 32


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("can", [True, False])
def test_values_with_gaps_are_not_copied_for_a_kernel_that_reads_them(
    can: bool, level: str, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[int] = []
    held: list[torch.Tensor] = []

    def launch(kernel: int, rows: int, *rest: Any) -> int:
        pieces, found = given_to(rest[-2], rows)
        kinds.extend(kind for _, _, kind in pieces)
        start = device_reduction.starter("dipu")
        assert start is not None
        device = torch.device("dipu", torch.dipu.current_device())
        made = start(torch.tensor([_dense(row, held) for row in pieces]), device)()
        found[:] = made.flatten().tolist()
        return 0

    functions = Launch(launch), Capturing(lambda stream, state: 0)
    one, other = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    monkeypatch.setattr(device_reduction, "launcher", lambda kind, index: (one, 7, 256, other, can))
    bases = [torch.randn(6, 5, 9000).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    bases += [torch.randn(6, 5, 90).to(torch.complex64), torch.randn(6, 5, 91) > 0]
    for base in bases:
        on_device = base.to("dipu")
        torch.accelerator.synchronize()
        ways = [
            lambda x: x[1:5, 1:4, ::2],
            lambda x: x[:, 1:4].permute(2, 1, 0),
            lambda x: x[:, :1, 3:].expand(6, 3, x.shape[2] - 3),
            lambda x: x[2:3, 2:3, 3:4].expand(2, 3, 4),
        ]
        for way in ways:
            view, folder = way(on_device), tmp_path / f"{len(held)}{len(kinds)}"
            monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder / "op_tools_results"))
            with OpCapture(mode="statistics", level=level):  # type: ignore[arg-type]
                torch.isfinite(view) if base.dtype != torch.bool else torch.logical_not(view)
            line = next(
                line for line in lines(folder) if line["inputs"][0]["shape"] == list(view.shape)
            )  # type: ignore[index]
            assert line["inputs"][0]["hash"] == statistics.of(way(base)).hex  # type: ignore[index]
    assert any(kind & 32 for kind in kinds) == can


def test_training_is_written_down_as_where_the_host_sees(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str) -> list[dict[str, object]]:
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / name / "op_tools_results"))
        monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "40")  # a few times
        torch.manual_seed(5)
        step_counter.reset()
        model = torch.nn.Sequential(
            *(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten()),
            *(torch.nn.Linear(12, 1000), torch.nn.ReLU(inplace=True)),
        ).to("dipu")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.randn(2, 4, 2, 4).to("dipu").transpose(1, 2)  # with gaps
        with OpCapture(mode="statistics", level="aten"):
            for _ in range(2):
                half = model(x).to(torch.bfloat16).expand(3, 2, 1000)
                masked = half.masked_fill(half > 0.5, -math.inf)
                (masked.softmax(-1).float() * masked.isfinite()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [{**line, "id": 0} for line in lines(tmp_path / name)]

    together = written("together")
    assert starts
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OP_CAPTURE_INPUTS", "all")
    apart = written("apart")
    assert [line["op"] for line in together] == [line["op"] for line in apart]
    for one, other in zip(together, apart, strict=True):
        pairs = [(one[side], other[side]) for side in ("inputs", "outputs")]
        for mine, plain in (two for pair in pairs for two in zip(*pair, strict=True)):  # type: ignore[call-overload]
            for near in ("mean", "norm"):
                a, b = mine.pop(near), plain.pop(near)
                assert a == b or a == pytest.approx(b, rel=1e-6, abs=1e-7)
            assert mine == plain, one["op"]
