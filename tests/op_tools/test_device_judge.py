"""Calls that are judged natively, by the vendor's kernel, and beside the program: what is told of
them is what Python tells.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deeplink import native
from op_tools import (
    OpAutoCompare,
    OpObserve,
    device_judge,
    device_kernel,
    device_kinds,
    device_reference,
    diagnostics,
    kept_before,
    kernels,
)
from op_tools.call import Call, Site
from op_tools.comparison_report import texts
from tests.deeplink_vendors.test_cuda_statistics import compiled
from tests.op_tools.test_autocompare import CSV, healthy, leaf, on_device, rows
from tests.op_tools.test_device_kernel import SOURCE
from tests.op_tools.test_device_reference import looks, name_one_of_twelve, network, train

Start = Callable[[Tensor, torch.device], Callable[[], Tensor]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """The kernel of a GPU, on the reference device's memory."""
    if not native.has_compiler():
        pytest.skip("no compiler here")
    library = compiled(tmp_path_factory.mktemp("kernel"), SOURCE, "measure_pieces")
    alone = threading.Lock()  # its threads meet at one place

    def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
        window = torch.dipu.host_window(device)
        if window is None:
            pytest.skip("the host does not see the device's memory")
        torch.accelerator.synchronize(device)
        seen = table.clone()
        seen[:, :2] += window[1] - window[0]
        results = torch.zeros(len(table), device_kernel.FOUND, dtype=torch.int64)
        addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (seen, results))
        with alone:
            library.run(*addresses, len(table))
        return lambda: results

    return start


@pytest.fixture
def judged(start: Start, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The host looks at nothing that the device finds right; how many items were told natively."""
    assert kernels.helper() is not None
    monkeypatch.setattr(device_kinds, "FIRST", 0)
    monkeypatch.setattr(kept_before, "REREAD_FIRST", 0)  # calls whose arguments are read again
    monkeypatch.setattr(device_kernel, "starter", lambda kind: start)
    told: list[int] = []
    plain = OpAutoCompare._told

    def counted(tool: OpAutoCompare, portion: Any) -> None:
        told.append(portion.items)
        plain(tool, portion)

    monkeypatch.setattr(OpAutoCompare, "_told", counted)
    return told


def by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_judge.Judge, "is_native", lambda judge, place: False)


def details() -> list[dict[str, Any]]:
    (path,) = Path(CSV).glob("*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    first = min(line["id"] for line in found)
    begun = min(line["step"] for line in found)
    return [line | {"id": line["id"] - first, "step": line["step"] - begun} for line in found]


def lines() -> list[tuple[str, ...]]:
    found = rows()
    for path in Path(CSV).glob("*.csv"):
        path.unlink()
    first = min(int(row["forward_id"]) for row in found)
    return [(str(int(row.pop("forward_id")) - first), *row.values()) for row in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_told_natively_is_what_python_tells(
    judged: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> OpAutoCompare:
        with OpAutoCompare(reference="device") as tool:
            train(network().to(dtype), 3) if dtype is torch.float32 else forward(dtype)
        return tool

    mine = run()
    of_mine, about = lines(), details()
    by_python(monkeypatch)
    theirs = run()
    assert sum(judged) > 10
    assert sorted(of_mine) == sorted(lines())
    key = ["id", "item"]
    assert sorted(about, key=lambda line: [line[k] for k in key]) == sorted(
        details(), key=lambda line: [line[k] for k in key]
    )
    assert looks(mine) == looks(theirs) and mine.compared == theirs.compared
    assert mine.items == theirs.items
    healthy(mine)


def forward(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 32, device="dipu", dtype=dtype, requires_grad=True)
    w = torch.randn(32, 32, device="dipu", dtype=dtype, requires_grad=True)
    for _ in range(4):
        torch.nn.functional.gelu(x @ w).sum().backward()


def test_calls_are_judged_beside_the_program_which_is_not_changed(
    judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(network(), 6)
    monkeypatch.setattr(device_reference, "WAITING", 20)
    threads: set[str] = set()
    settle = device_judge.Judge.settle

    def heard(judge: Any, *args: Any) -> None:
        threads.add(threading.current_thread().name)
        settle(judge, *args)

    monkeypatch.setattr(device_judge.Judge, "settle", heard)
    with OpAutoCompare(reference="device") as tool:
        seen = train(network(), 6)
    assert all(map(torch.equal, plain, seen))
    assert {"op_tools", "MainThread"} <= threads  # those, and what was left at the end
    assert len(judged) > 4 and tool._there is not None and tool._there.held == 0
    healthy(tool)


@pytest.mark.parametrize("waiting", [4, 1024])
def test_a_fault_is_named_and_nothing_else(
    judged: list[int], waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_reference, "WAITING", waiting)
    name_one_of_twelve()
    assert sum(judged) == 10  # of one, arguments were read again


def test_a_wrong_gradient_is_named(judged: list[int]) -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    with OpAutoCompare(reference="device") as tool:
        made = torch.mm(x, w)
        with torch.dipu.quirk("bit_flip", "mm", p=1.0, seed=2):
            made.backward(torch.ones_like(made))
    assert {failure.item for failure in tool.failures} <= {"grad[0]", "grad[1]"}
    assert tool.failures and {failure.name for failure in tool.failures} == {"torch.mm"}


def test_errors_that_were_accepted_pass_until_others_are(judged: list[int]) -> None:
    """A product of many factors errs by more than steps: it passes like those that the host saw."""
    x, w = on_device(64, 512), on_device(512, 64)
    with OpAutoCompare(reference="device", ops="torch.mm") as tool:
        assert tool._there is not None
        for _ in range(3):
            torch.mm(x, w)
        tool._there.settle()
        first = looks(tool)[0]
        for _ in range(5):
            torch.mm(x, w)
        tool._there.settle()
        assert looks(tool)[0] == first  # what the host accepted is known natively
    assert tool._there.accepted.limits("no such kind") == (-1.0, -1.0)
    healthy(tool)


def test_calls_inside_of_a_backward_pass_wait_for_no_thread(
    judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_reference, "WAITING", 4)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to("dipu")
    with OpAutoCompare(reference="device") as tool:
        for _ in range(6):
            made = checkpoint(model, leaf(4, 8), use_reentrant=False)
            made.square().sum().backward()
    assert tool.compared > 40 and sum(judged) > 40
    healthy(tool)


def test_a_kernel_that_fails_leaves_all_to_python(
    judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
        raise RuntimeError("not now")

    monkeypatch.setattr(device_kernel, "starter", lambda kind: fail)
    with OpAutoCompare(reference="device") as tool:
        train(network(), 2)
    assert not judged and tool.compared > 20 and looks(tool)[1] > 20
    healthy(tool)


def test_an_error_beside_the_program_is_told(
    judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_reference, "WAITING", 4)

    def fail(*args: Any) -> None:
        raise RuntimeError("the judge is out")

    monkeypatch.setattr(device_judge.Judge, "settle", fail)
    with OpAutoCompare(reference="device"):
        for _ in range(6):
            on_device(4) * 2
    assert any("the judge is out" in str(problem) for problem in diagnostics.problems())


def test_a_name_is_quoted_as_a_line_needs_it() -> None:
    call = Call(7, 'mine."a", b', len, (), {}, site=Site("train.py", 3, "step"))
    name, first, second = texts(call, True, "grad[1]", torch.float32, torch.Size([2]))
    assert name == '"mine.""a"", b grad[1]"'
    assert json.loads(f'{{"id": 7{first}2{second}0.5}}') == {
        "id": 7,
        "op": 'mine."a", b',
        "item": "grad[1]",
        "direction": "backward",
        "step": 2,
        "module": "",
        "site": "train.py:3",
        "dtype": "float32",
        "shape": [2],
        "passed": True,
        "ratio": 0.0,
        "max_abs": 0.5,
    }


@pytest.mark.parametrize("natively", [True, False])
def test_its_own_work_is_seen_by_no_other_tool(
    judged: list[int], natively: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of references are computed by autograd's thread, which hears of modes."""
    monkeypatch.setattr(device_reference, "WAITING", 20)
    if not natively:
        by_python(monkeypatch)

    def kernels_seen(**given: Any) -> list[str]:
        seen: list[str] = []
        monkeypatch.setattr(OpObserve, "before", lambda tool, call: seen.append(call.name))
        monkeypatch.setattr(OpObserve, "after", lambda tool, call, state, result: None)
        with OpObserve(level="aten"), OpAutoCompare(**given):
            train(network(), 4)
        return seen

    plain = kernels_seen(ops="")
    assert len(plain) > 100 and kernels_seen(reference="device") == plain
    assert (sum(judged) > 40) is natively
