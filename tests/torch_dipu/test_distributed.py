"""Two processes, one device each, over the back end `dicl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp

from tests.torch_dipu import ranks

EXPECTED: dict[str, list[Any]] = {
    "all_reduce sum": [("dipu:0", [3.0, 5.0]), ("dipu:1", [3.0, 5.0])],
    "all_reduce max": [("dipu:0", [2.0, 4.0]), ("dipu:1", [2.0, 4.0])],
    "all_reduce min": [("dipu:0", [1.0, 1.0]), ("dipu:1", [1.0, 1.0])],
    "all_reduce product": [("dipu:0", [2.0, 4.0]), ("dipu:1", [2.0, 4.0])],
    "all_reduce avg": [("dipu:0", [1.5, 2.5]), ("dipu:1", [1.5, 2.5])],
    "broadcast": [[10.0, 11.0, 12.0]] * 2,
    "reduce": [[3.0, 3.0], None],
    "all_gather": [[[0.0, 0.0], [1.0, 1.0]]] * 2,
    "all_gather_into_tensor": [[0.0, 0.0, 1.0, 1.0]] * 2,
    "reduce_scatter": [[0.0, 3.0], [6.0, 9.0]],
    "all_to_all_single": [[0.0, 10.0], [1.0, 11.0]],
    "send_recv": [[5.0, 5.0]] * 2,
    "scatter": [[0.0], [1.0]],
    "asynchronous": [[2.0, 2.0]] * 2,
    "strided": [[[2.0, 2.0]] * 3] * 2,
    "objects": [[{"rank": 0}, {"rank": 1}]] * 2,
    "barrier": ["passed"] * 2,
    "new_group": [[2.0]] * 2,
    "ddp": [True, True],
    "ddp bucket views": [True, True],
    "ddp unused parameters": [True, True],
    "ddp static graph": [True, True],
    "fsdp": [True, True],
    "sync_batch_norm": [True, True],
}


def _run(backend: str, names: list[str], folder: Path) -> list[dict[str, Any]]:
    """The results of both ranks."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    args = (str(folder / "rendezvous"), backend, names, queue)
    processes = [context.Process(target=ranks.main, args=(r, *args)) for r in range(ranks.WORLD)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return [results[rank] for rank in range(ranks.WORLD)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return _run("dicl", list(EXPECTED), tmp_path_factory.mktemp("dicl"))


def test_every_job_has_an_expectation() -> None:
    assert set(ranks.JOBS) == set(EXPECTED)


# find_unused_parameters warns, on purpose, that nothing was unused: that is the rank's stderr
@pytest.mark.parametrize("name", EXPECTED)
def test_both_ranks_get_what_they_should(name: str, results: list[dict[str, Any]]) -> None:
    assert [rank[name] for rank in results] == EXPECTED[name]


def test_the_device_back_end_serves_beside_one_for_the_host(tmp_path: Path) -> None:
    first, second = _run("cpu:gloo,dipu:dicl", ["all_reduce sum", "objects"], tmp_path)
    assert first["all_reduce sum"] == ("dipu:0", [3.0, 5.0])
    assert second["objects"] == [{"rank": 0}, {"rank": 1}]
