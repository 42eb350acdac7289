"""Two processes, one device each, over the back end `dicl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp

from tests.torch_dipu import ranks, ranks_reductions, ranks_table
from tests.torch_dipu.interpreter import output_of

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
    "versions": [[0, 0, 0]] * 2,
    "reduce_scatter": [[0.0, 3.0], [6.0, 9.0]],
    "all_to_all_single": [[0.0, 10.0], [1.0, 11.0]],
    "send_recv": [[5.0, 5.0]] * 2,
    "scatter": [[0.0], [1.0]],
    "asynchronous": [[2.0, 2.0]] * 2,
    "strided": [[[2.0, 2.0]] * 3] * 2,
    "objects": [[{"rank": 0}, {"rank": 1}]] * 2,
    "barrier": ["passed"] * 2,
    "new_group": [[2.0]] * 2,
    "left at once": [{2.0}] * 2,
    "ddp": [True, True],
    "ddp times": [[True] * 3] * 2,
    "ddp bucket views": [True, True],
    "ddp unused parameters": [True, True],
    "ddp static graph": [True, True],
    "fsdp": [True, True],
    **{f"reductions {name}": [[], []] for name in ranks_reductions.DTYPES},
    **{name: [[], []] for name in ranks_table.JOBS},
    "carried by": [("dicl", "dicl", True)] * 2,
    "reduce to each": [[], []],
    "sub-group": [[], []],
    "average of large halves": [[40000.0, 40000.0]] * 2,
    "premultiplied sum": [
        ([1.5, 1.5], [0.0, 6.0], [0.0, 1.0, 2.0, 3.0]),
        ([1.5, 1.5], [12.0, 18.0], [0.0, 1.0, 2.0, 3.0]),
    ],
    "average of bool": [
        "TypeError: dicl: ReduceOp.AVG has no meaning for bool; found a tensor of Bool, allowed "
        "are floats, complex numbers and integers (their average is truncated)"
    ]
    * 2,
    "premultiplied int": [
        "TypeError: dicl: PREMUL_SUM is for floats; found a tensor of Long",
    ]
    * 2,
    "average, waited for": [(False, [2.0])] * 2,
    "average, polled": [(False, [2.0])] * 2,
    "average, by future": [(False, [2.0])] * 2,
    "recv from any": [None, (0, [5.0, 5.0])],
    "sync_batch_norm": [True, True],
}


def run_ranks(
    backend: str, names: list[str], folder: Path, world: int = ranks.WORLD
) -> list[dict[str, Any]]:
    """The results of every rank."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    args = (str(folder / "rendezvous"), backend, names, queue, world)
    processes = [context.Process(target=ranks.main, args=(r, *args)) for r in range(world)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * world
    return [results[rank] for rank in range(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("dicl", list(EXPECTED), tmp_path_factory.mktemp("dicl"))


def test_every_job_has_an_expectation() -> None:
    assert set(ranks.JOBS) == set(EXPECTED)


# find_unused_parameters warns, on purpose, that nothing was unused: that is the rank's stderr
@pytest.mark.parametrize("name", EXPECTED)
def test_both_ranks_get_what_they_should(name: str, results: list[dict[str, Any]]) -> None:
    assert [rank[name] for rank in results] == EXPECTED[name]


def test_the_device_back_end_serves_beside_one_for_the_host(tmp_path: Path) -> None:
    first, second = run_ranks("cpu:gloo,dipu:dicl", ["all_reduce sum", "objects"], tmp_path)
    assert first["all_reduce sum"] == ("dipu:0", [3.0, 5.0])
    assert second["objects"] == [{"rank": 0}, {"rank": 1}]


def test_three_ranks_reduce_to_each_and_in_a_sub_group(tmp_path: Path) -> None:
    names = ["reductions float32", "reductions bfloat16", "reductions int64"]
    names += ["reduce to each", "sub-group"]
    assert run_ranks("dicl", names, tmp_path, world=3) == [{name: [] for name in names}] * 3


@pytest.mark.slow
def test_four_ranks_do_all_of_it(tmp_path: Path) -> None:
    names = [f"reductions {name}" for name in ranks_reductions.DTYPES]
    names += ["reduce to each", "sub-group", *ranks_table.JOBS]
    assert run_ranks("dicl", names, tmp_path, world=4) == [{name: [] for name in names}] * 4


@pytest.mark.slow
def test_gloo_by_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as between hosts, out of reach of the chip's own communicator."""
    monkeypatch.setenv("DIPU_COLLECTIVES", "gloo")
    # gloo has neither all of the types nor lists of unequal tensors in all_to_all
    names = [n for n in EXPECTED if n != "carried by" and not n.startswith("table ")]
    first, second = run_ranks("dicl", [*names, "carried by"], tmp_path)
    found = {name: [first[name], second[name]] for name in names}
    assert {name: got for name, got in found.items() if got != EXPECTED[name]} == {}
    assert first["carried by"] == ("dicl", "dicl", False)


GROUP = """
import os, sys, time
import torch, torch.distributed as dist, torch_dipu

dist.init_process_group("dicl", store=dist.HashStore(), rank=0, world_size=1)
work = dist.all_reduce(torch.ones(3, device="dipu"), async_op=True)
"""


def test_a_program_may_end_while_the_groups_thread_calls_python() -> None:
    later = "print('heard', flush=True)"
    source = (
        f"def later(done):\n    time.sleep(0.5)\n    {later}\nkept = work.get_future().then(later)"
    )
    assert output_of(GROUP + source) == "heard"


def test_a_fork_of_a_process_with_a_group_ends() -> None:
    source = "work.wait()\nchild = os.fork()\nif child == 0: sys.exit(7)\n"
    source += "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    assert output_of(GROUP + source) == "7"
