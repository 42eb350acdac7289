"""Tensors of torch's functions wait for each other between calls, on a device that the host does
not see, for as long as nothing from outside of torch can write them; what is written of them is
what they were at their call.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from op_tools import OpCapture, OpObserve, diagnostics, gradients, outsiders
from tests import warm


def lines(folder: Path) -> list[dict[str, Any]]:
    (file,) = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def full(value: float) -> Tensor:
    return torch.full((4,), value, device="dipu")


def overwrite(address: int, count: int) -> None:
    """As a kernel from outside of torch: nothing counts it, nothing sees it."""
    torch.accelerator.synchronize()
    start, host, _ = torch.dipu.host_window(torch.dipu.current_device())
    (ctypes.c_float * count).from_address(address - start + host)[:] = [-100.0] * count


def test_calls_are_reduced_together(starts: list[int], tmp_path: Path) -> None:
    x = full(2.0)
    with OpCapture(mode="statistics"):
        for _ in range(2):  # of a function that is met for the first time nothing is known
            starts.clear()
            ((x * 3) + 1).neg().abs()
        assert not starts
    assert len(starts) == 1
    found = [(line["inputs"][0]["max"], line["outputs"][0]["max"]) for line in lines(tmp_path)]
    assert found == 2 * [(2.0, 6.0), (6.0, 7.0), (7.0, -7.0), (-7.0, 7.0)]


def test_what_waits_is_read_before_a_call_that_writes(starts: list[int], tmp_path: Path) -> None:
    x = full(2.0)
    with OpCapture(mode="statistics"):
        y = x * 3
        y.detach()[1:].data.add_(10)  # autograd counts nothing
        F.relu(y, inplace=True)
        torch.add(x, 1, out=y)
    times, *_ = lines(tmp_path)
    assert times["outputs"][0]["max"] == 6.0
    shown = [line["outputs"][0]["max"] for line in lines(tmp_path) if "relu" in line["op"]]
    assert shown == [16.0]


def test_what_waits_is_read_before_a_call_by_python(starts: list[int], tmp_path: Path) -> None:
    x, mean, variance = torch.full((4, 2), 2.0, device="dipu"), full(0.0)[:2], full(1.0)[:2]
    with OpCapture(mode="statistics"):
        before = mean + 5
        mean.neg()
        F.batch_norm(x, mean, variance, training=True)  # which says nothing of what it writes
        assert len(starts) > 0
    del before
    first, second, *_ = lines(tmp_path)
    assert [line["inputs"][0]["max"] for line in (first, second)] == [0.0, 0.0]
    assert not diagnostics.problems("OpCapture")


def test_what_waits_is_read_before_a_backward_pass_adds_to_it(
    starts: list[int], tmp_path: Path
) -> None:
    x = full(2.0).requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.1)
    with OpCapture(mode="statistics"):
        for _ in range(3):
            (x * 3).sum().backward()
            optimizer.zero_grad(set_to_none=False)
    cleared = [line for line in lines(tmp_path) if "zero_" in line["op"]]
    shown = [line["outputs"] or [*line["mutated"].values()] for line in cleared]
    assert [one["max"] for (one,) in shown] == [0.0] * 3
    assert not gradients.beforehand


@pytest.mark.parametrize("when", ["beforehand", "elsewhere"])
def test_a_backward_pass_goes_on_where_a_tool_fails_around_it(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("no space left")

    monkeypatch.setattr(gradients, when, [*getattr(gradients, when), fails])
    x = full(2.0).requires_grad_()
    with OpObserve(ops=""):
        (x * 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0] * 4
    assert "no space left" in diagnostics.problems("op_tools")[0].message


def test_another_stream_waits_for_what_it_is_to_write(starts: list[int], tmp_path: Path) -> None:
    other = torch.dipu.Stream()
    x = full(2.0)
    with OpCapture(mode="statistics"):
        y = x * 3
        other.wait_stream(torch.dipu.current_stream())
        with torch.dipu.stream(other):
            y.add_(1)
    times, added = lines(tmp_path)
    assert (times["outputs"][0]["max"], added["outputs"][0]["max"]) == (6.0, 7.0)


def test_who_asks_for_an_address_may_write_from_then_on(starts: list[int], tmp_path: Path) -> None:
    x = full(2.0)
    with OpCapture(mode="statistics"):
        y = x * 3
        assert not starts
        address = y.data_ptr()
        overwrite(address, 4)
        z = y + 1
        overwrite(address, 4)
        torch.accelerator.synchronize()
        overwrite(torch._C._data_address(z), 4)  # by now nobody is asked
        z.neg()
    times, added, negated = (line for line in lines(tmp_path) if "outputs" in line)
    assert times["outputs"][0]["max"] == 6.0
    assert (added["inputs"][0]["max"], added["outputs"][0]["max"]) == (-100.0, -99.0)
    assert negated["inputs"][0]["max"] == -100.0


@pytest.mark.parametrize("name", ["untyped_storage", "__dlpack__", "__cuda_array_interface__"])
def test_each_way_to_an_address_is_known(
    name: str, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = full(2.0)
    with OpCapture(mode="statistics"):
        x.neg()
        assert not starts
        try:
            found = getattr(x, name)
            if callable(found):
                found()
        except (AttributeError, BufferError, RuntimeError, ValueError):
            pass  # the reference device has no such memory; another one has it
        before = len(starts)
        x.neg()
        assert len(starts) > before


def load(file: Path, name: str) -> None:
    """As Python loads the library of a module; this one is none."""
    spec = spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
    assert spec is not None
    with pytest.raises(ImportError):
        module_from_spec(spec)


@pytest.mark.parametrize(
    ("name", "of", "ends"),
    [
        ("numbers_of", b"_ZN5numpy", False),
        ("guest", b"_ZN3c1010TensorImplE", True),
        ("cupy._core.core", b"", True),
        ("__triton_launcher", b"", True),
    ],
)
def test_a_module_of_an_outsiders_ends_the_waiting(
    name: str, of: bytes, ends: bool, starts: list[int], tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.so"
    file.write_bytes(b"\x7fELF " + of)
    plain = ExtensionFileLoader.create_module
    x = full(2.0)
    with OpCapture(mode="statistics"):
        x.neg()
        load(file, name)
        assert len(starts) == ends
        x.neg()
        assert len(starts) == 2 * ends
    assert ExtensionFileLoader.create_module is plain


def test_all_are_told_where_one_of_them_fails() -> None:
    def fails() -> None:
        raise OSError("no space left")

    told: list[str] = []
    first, last = lambda: told.append("first"), lambda: told.append("last")
    assert all(outsiders.begin(one) for one in (first, fails, last))
    outsiders.met("torch.Tensor.data_ptr")
    assert told == ["last", "first"]
    assert "no space left" in diagnostics.problems("op_tools")[0].message


def test_torchs_compiler_ends_the_waiting(starts: list[int]) -> None:
    plain, x = torch.compile, full(2.0)
    with OpCapture(mode="statistics"):
        x.neg()
        assert not starts
        torch.compile(lambda one: one.mul_(2), backend="eager")
        assert len(starts) == 1
        x.neg()
        assert len(starts) == 2
    assert torch.compile is plain


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("there", ["library", "launcher", "module", "compiled", "group"])
def test_nothing_is_known_from_one_call_to_the_next_where_an_outsider_is(
    there: str, level: Any, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = tmp_path / ("__triton_launcher.so" if there == "launcher" else "guest.so")
    guest.write_bytes(b"\x7fELF _ZN3c1010TensorImplE" if there == "library" else b"\x7fELF")
    if there in ("library", "launcher"):
        monkeypatch.setattr(outsiders, "_libraries", lambda: iter([str(guest)]))
    elif there == "module":
        monkeypatch.setitem(sys.modules, "cupy", sys)
    elif there == "compiled":
        monkeypatch.setattr(outsiders, "_has_compiled", lambda: True)
    else:
        monkeypatch.setitem(outsiders.groups, "a group", None)
    x = full(2.0)
    address = x.data_ptr()
    with OpCapture(mode="statistics", level=level):
        y = x * 3
        overwrite(address, 4)
        (x + y).neg()
    times, added, _ = lines(tmp_path)
    assert [times[side][0]["max"] for side in ("inputs", "outputs")] == [2.0, 6.0]
    assert [one["max"] for one in added["inputs"]] == [-100.0, 6.0]


@pytest.mark.parametrize("level", ["api", "aten"])
def test_nothing_waits_once_there_is_a_process_group(
    level: Any, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = full(2.0)
    address = x.data_ptr()
    with OpCapture(mode="statistics", level=level):
        x.neg()
        assert not starts
        monkeypatch.setitem(outsiders.groups, "a group", None)
        x.neg()
        assert len(starts) > 0
        overwrite(address, 4)
        x.neg()
        monkeypatch.delitem(outsiders.groups, "a group")
    assert [line["inputs"][0]["max"] for line in lines(tmp_path)] == [2.0, 2.0, -100.0]
    assert outsiders.groups is torch.distributed.distributed_c10d._world.pg_map


ALONE = """
import torch_dipu, op_tools
from op_tools import kernels, outsiders
kernels.helper()
print([file for file in outsiders._libraries() if outsiders._is_guest(file)])
print(outsiders.begin(print))
"""


def test_torch_the_device_and_the_tools_are_no_outsiders() -> None:
    found = warm.run(["-c", ALONE], os.environ, warn="ignore")
    assert found.stdout.split("\n") == ["[]", "True", ""], found.stderr
