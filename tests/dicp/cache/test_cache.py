"""Compiled graphs on disk: found again, by other processes too, and never half written."""

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from dicp import Backend
from dicp.dynamo_bridge import disk_cache, report
from tests.dicp import blocks, toy


def compiled(backend: Backend, model: nn.Module, x: torch.Tensor) -> report.Record:
    torch.compiler.reset()
    with torch.no_grad():
        result = torch.compile(model, backend=backend)(x)
        torch.testing.assert_close(result, model(x))
    return report.RECORDS[-1]


def counting(made: list[int], **fields: Any) -> Backend:
    def compile_blob(blob: bytes) -> bytes:
        made.append(1)
        return blob

    return toy.make(compile=compile_blob, **fields)


def test_a_graph_is_compiled_once_for_all_weights_shapes_and_versions_alike() -> None:
    made: list[int] = []
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    assert compiled(counting(made), model, torch.randn(3, 4)).cached == 0
    assert compiled(counting(made), other, torch.randn(3, 4)).cached == 1  # other weights
    assert len(made) == 1
    assert compiled(counting(made), model, torch.randn(5, 4)).cached == 0  # other sizes
    assert compiled(counting(made, version=lambda: "2"), model, torch.randn(5, 4)).cached == 0


def test_a_later_process_neither_traces_nor_compiles_again() -> None:
    made: list[int] = []
    model, args = blocks.llama()
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=counting(made))(*args)
    assert "trace" in report.RECORDS[-1].seconds
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend=counting(made))
        torch.testing.assert_close(compiled(*args), model(*args))
        assert list(report.RECORDS[-1].seconds) == ["load"]
        model.q.weight.mul_(2)  # what was derived from it is derived anew
        torch.testing.assert_close(compiled(*args), model(*args))
    assert len(made) == 1 and report.RECORDS[-1].refreshed == 1


def test_a_graph_that_was_split_comes_back_split() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(F.max_pool1d(x + x, 1), 0) * x

    x = torch.randn(1, 3)
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model, backend=toy.make())(x), model(x))
    record = report.RECORDS[-1]
    assert list(record.seconds) == ["load"]
    assert "aten.cumsum.default" in [row["op"] for row in record.eager]


def test_a_later_process_loads_what_serves_all_sizes() -> None:
    model, made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), list[int]()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(model, backend=counting(made, dynamic="native"), dynamic=True)
        with torch.no_grad():
            for rows in (3, 5, 40):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(compiled(x), model(x))
    assert made == [1] and list(report.RECORDS[-1].seconds) == ["load"]


def rows_of(gm: fx.GraphModule) -> Any:
    """The rows of the first tensor among the inputs, which may be a symbol."""
    given = (node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    return next(value.shape[0] for value in given if isinstance(value, torch.Tensor))


def test_what_was_taken_for_granted_of_a_size_holds_in_a_later_process() -> None:
    sizes: list[bool] = []

    def large(gm: fx.GraphModule) -> fx.GraphModule:
        sizes.append(bool(rows_of(gm) > 4))  # torch guards it
        return gm

    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    def run(*rows: int) -> None:
        torch.compiler.reset()
        compiled = torch.compile(double, backend=toy.make(passes=(large,), dynamic="native"))
        for count in rows:
            x = torch.randn(count, 3)
            torch._dynamo.mark_dynamic(x, 0)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), x + x)

    run(8, 9)
    assert sizes == [True]
    run(8, 9)
    assert sizes == [True] and list(report.RECORDS[-1].seconds) == ["load"]
    run(3)  # the entry is for another process
    assert sizes == [True, False]
    run(8, 3)  # nor is what was loaded
    assert sizes == [True, False, False]


def test_a_size_that_compiling_fixed_is_compiled_by_every_process() -> None:
    fixed: list[int] = []

    def four(gm: fx.GraphModule) -> fx.GraphModule:
        fixed.append(int(rows_of(gm)))
        return gm

    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(
            lambda x: x + x, backend=toy.make(passes=(four,), dynamic="native"), dynamic=True
        )
        for rows in (4, 6):
            x = torch.randn(rows, 3)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), x + x)
    assert fixed == [4, 6, 4, 6]


def test_a_torn_file_counts_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    compiled(counting(made), model, x)
    (blob,) = (tmp_path / "cache" / "toygraph").glob("*.blob")
    blob.write_bytes(blob.read_bytes()[:-3])
    assert compiled(counting(made), model, x).cached == 0
    assert f"{blob} is damaged" in caplog.text
    assert compiled(counting(made), model, x).cached == 1


def test_a_foreign_plan_is_said_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    compiled(toy.make(), model, x)
    (plan,) = (tmp_path / "cache" / "toygraph").glob("*.plan")
    blob = b"no pickle"
    plan.write_bytes(hashlib.sha256(blob).digest() + blob)
    assert "trace" in compiled(toy.make(), model, x).seconds
    assert f"{plan} cannot be read" in caplog.text
    assert list(compiled(toy.make(), model, x).seconds) == ["load"]


def _get(folder: str, barrier: Any, made: Any) -> None:
    def make() -> bytes:
        with made.get_lock():
            made.value += 1
        return b"blob"

    barrier.wait()
    assert disk_cache.get("key", toy.make(), make)[0] == b"blob"


def test_of_processes_that_want_the_same_graph_one_makes_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, made = context.Barrier(4), context.Value("i", 0)
    workers = [context.Process(target=_get, args=(str(tmp_path), barrier, made)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert made.value == 1
