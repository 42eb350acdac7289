"""The kernel that holds results against references on a GPU, run by the host's threads: it finds
what torch's kernels find.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink import native
from op_tools import device_figures, device_kernel, kernels
from op_tools.accepted import Accepted
from op_tools.device_kernel import FlatRows, Table
from op_tools.device_list_verdicts import Verdicts
from op_tools.device_lists import Flats
from op_tools.device_pairs import Near
from tests.deeplink_vendors.test_cuda_statistics import compiled

SOURCE = Path(native.__file__).parents[1] / "deeplink_vendors" / "cuda" / "differences.cu"
ODD = (0.0, -0.0, math.inf, -math.inf, math.nan, 65519.9, 65520.0, 3e-8, 6e-8, 1e-40, 1e39, -5.0)
Start = Callable[[Tensor, torch.device], Callable[[], Tensor]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    if not native.has_compiler():
        pytest.skip("no compiler here")
    library = compiled(tmp_path_factory.mktemp("kernel"), SOURCE, "measure_pieces")

    def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
        results = torch.zeros(len(table), device_kernel.FOUND, dtype=torch.int64)
        addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (table, results))
        library.run(*addresses, len(table))
        return lambda: results

    return start


def pairs(dtype: torch.dtype, unit: torch.dtype) -> list[Near]:
    torch.manual_seed(0)
    right = torch.randn(40, 70, dtype=torch.float64)
    right[0] *= 1e-6
    mine = (right * (1 + 1e-3 * torch.randn_like(right))).to(dtype)
    odd = torch.tensor(ODD, dtype=torch.float64)
    return [
        Near(mine, right, unit),
        Near(right.to(dtype), right, unit),
        Near(mine.t(), right.t(), unit),
        Near(mine[:0], right[:0], unit),
        *(Near(odd[i : i + 1].to(dtype), odd[i : i + 1], unit) for i in range(len(ODD))),
        Near(odd.to(dtype), odd.roll(1), unit),
    ]


@pytest.mark.parametrize("dtype", device_kernel.KINDS)
@pytest.mark.parametrize("unit", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_finds_what_torchs_find(
    start: Start, dtype: torch.dtype, unit: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_kernel, "PIECE", 1000)  # the first three are of several pieces
    near = pairs(dtype, unit)
    table = Table()
    for pair in near:
        table.add(pair)
    made = table.started(start, torch.device("cpu"))()
    plain, _ = device_figures.figures(near, [], device_figures.ELEMENTS)
    for a, b in zip(made, plain, strict=True):
        assert asdict(a) == pytest.approx(asdict(b), rel=1e-12, nan_ok=True)


def test_pairs_in_one_piece_of_memory_are_measured_as_alone(start: Start) -> None:
    some = pairs(torch.float32, torch.float32)[:4]
    mine = torch.cat([pair.mine.reshape(-1) for pair in some])
    right = torch.cat([pair.theirs.reshape(-1) for pair in some])
    sizes = [pair.mine.numel() for pair in some]
    table = Table()
    table.add_flat(mine, right, FlatRows(sizes, torch.float32, torch.float32))
    plain, _ = device_figures.figures(some, [], device_figures.ELEMENTS)
    for a, b in zip(table.started(start, mine.device)(), plain, strict=True):
        assert asdict(a) == pytest.approx(asdict(b), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_that_are_added_at_once_are_those_that_are_added_one_by_one(
    start: Start, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_kernel, "PIECE", 5)
    near = pairs(dtype, torch.bfloat16)
    assert kernels.helper() is not None
    one, together = Table(), Table()
    for pair in near:
        one.add(pair)
    together.add_all(near)
    found = [list(table.started(start, torch.device("cpu"))()) for table in (one, together)]
    for a, b in zip(*found, strict=True):
        assert asdict(a) == pytest.approx(asdict(b), rel=1e-12, nan_ok=True)


def test_nothing_is_launched_for_tensors_without_elements(start: Start) -> None:
    table = Table()
    table.add_all([Near(torch.ones(0), torch.ones(0, dtype=torch.float64), torch.float32)])
    (found,) = table.started(start, torch.device("cpu"))()
    assert found.gap == 0.0


def test_verdicts_rest_on_the_kernel_where_there_is_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = pairs(torch.float32, torch.float32)
    plain, _ = device_figures.figures(near, [], device_figures.ELEMENTS)
    flats = Flats()
    some = [pair for pair in near[:4] if pair.mine.is_contiguous()]
    cpu = torch.device("cpu")
    made = flats.copy([pair.mine for pair in some], torch.float32, cpu)
    right = flats.copy([pair.theirs for pair in some], torch.float64, cpu)
    calls: Any = [SimpleNamespace(made=made, right=right, dtype=torch.float32)] * 2
    verdicts = Verdicts(Accepted())
    assert verdicts._by_kernel(calls) is None
    launched = []

    def started(table: Table, device: torch.device) -> Any:
        launched.append(table)
        return table.started(start, device)

    monkeypatch.setattr(device_kernel, "starter", lambda kind: start)
    monkeypatch.setattr(device_kernel, "started", started)
    found, _ = device_figures.figures(near, [], device_figures.ELEMENTS)
    each = verdicts._by_kernel(calls)
    assert len(launched) == 2 and each is not None
    by_torch = verdicts._by_torch(calls, device_figures.ELEMENTS)
    for a, b in zip(
        [*found, *each[0], *each[1]], [*plain, *by_torch[0], *by_torch[1]], strict=True
    ):
        assert asdict(a) == pytest.approx(asdict(b), rel=1e-12, nan_ok=True)
