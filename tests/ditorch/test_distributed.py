"""Programs that say nccl and cuda, on two ranks of the vendor's own back end."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from deeplink.errors import DeeplinkError
from deeplink.vendor import choose
from tests.ditorch import ranks_cuda

COLLECTIVE = {"reference": "dicl", "cpu": "gloo"}
EXPECTED: dict[str, list[Any]] = {
    "names": [["nccl", "nccl", "cuda:nccl", True, True, "nccl", True]] * 2,
    "gloo group": [("gloo", 2.0)] * 2,
    "gloo on device": [
        {
            "broadcast": [1.0, 1.0],
            "all_reduce": ([3.0, 3.0], True),
            "all_gather": [[0.0, 0.0], [1.0, 1.0]],
            "of the cpu": [2.0],
            "objects": [0, 1],
            "name": "gloo",
            "ddp": [[0.5, 0.5]],
        }
    ]
    * 2,
    "all_reduce SUM": [[3.0, 5.0]] * 2,
    "all_reduce AVG": [[1.5, 2.5]] * 2,
    "all_reduce MAX": [[2.0, 4.0]] * 2,
    "all_reduce MIN": [[1.0, 1.0]] * 2,
    "all_reduce PRODUCT": [[2.0, 4.0]] * 2,
    "collectives": [
        {
            "all_gather": [[0.0, 0.0], [1.0, 1.0]],
            "all_gather_into_tensor": [0.0, 0.0, 1.0, 1.0],
            "reduce_scatter_tensor": [[0.0, 1.0], [2.0, 3.0]][rank],
            "broadcast": [1.0, 1.0],
            "reduce": [None, [0.5, 0.5]][rank],
            "recv": [[-1.0, -1.0], [5.0, 5.0]][rank],
            "async": [1.0, 1.0],
            "objects": [0, 1],
        }
        for rank in range(2)
    ],
    "ddp": [True, True],
    "fsdp": [True, True],
    "premultiplied": [
        [
            [1.5, 2.5],
            [None, [1.5, 1.5]][rank],
            [[0.0, 1.0], [2.0, 3.0]][rank],
            [0.0, 1.0, 2.0, 3.0],
            [[0.75] * 4],
        ]
        for rank in range(2)
    ],
    "mesh": [(2.0, "nccl", 2)] * 2,
    "differentiable": [[2.0, 2.0], [4.0, 4.0]],
}


def _run(vendor: str, jobs: list[str], **options: Any) -> list[dict[str, Any]]:
    """The results of both ranks."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    args = (vendor, jobs, options, queue)
    processes = [
        context.Process(target=ranks_cuda.main, args=(rank, *args))
        for rank in range(ranks_cuda.WORLD)
    ]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    return [results[rank] for rank in range(ranks_cuda.WORLD)]


OTHERS = ["random DTensors", "meta init", "timeout"]  # the last: its group does not work after it


@pytest.fixture(scope="module", params=COLLECTIVE)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    rendezvous = tmp_path_factory.mktemp("nccl") / "rendezvous"
    jobs = [*EXPECTED, *OTHERS]
    return _run(request.param, jobs, backend="nccl", init_method=f"file://{rendezvous}")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_that_says_nccl_gets_what_it_would(
    name: str, results: list[dict[str, Any]]
) -> None:
    assert [rank[name] for rank in results] == EXPECTED[name]


def test_the_timeout_of_a_group_is_set(results: list[dict[str, Any]]) -> None:
    assert "imed out" in results[0]["timeout"]
    assert "1000" in results[0]["timeout"]


@pytest.mark.parametrize("results", ["reference"], indirect=True)
def test_a_dtensor_draws_other_numbers_in_each_shard(results: list[dict[str, Any]]) -> None:
    drawn, again = results[0]["random DTensors"]
    assert results[1]["random DTensors"] == (drawn, again)
    assert drawn == again  # a seed repeats all draws
    for name in ("normal_", "rand", "dropout", "replicated"):
        assert drawn[name][:2] != drawn[name][2:], name
    assert drawn["normal_"] != drawn["again"]
    assert {value for row in drawn["replicated"] for value in row} & {
        value for row in drawn["again"] for value in row
    } == set()


@pytest.mark.parametrize("results", ["reference"], indirect=True)
def test_parameters_on_meta_are_initialised_shard_by_shard(results: list[dict[str, Any]]) -> None:
    first, second = (rank["meta init"] for rank in results)
    assert first == second
    weight = first[0]
    assert len({value for row in weight for value in row}) == 16 * 8
    assert max(abs(value) for row in weight for value in row) <= 8**-0.5


def test_a_launchers_environment_and_a_bound_device(tmp_path: Path) -> None:
    jobs = ["true name", "names", "ddp", "mesh", "options"]
    environment = ranks_cuda.launcher_environment()
    for rank in _run(
        "reference", jobs, backend="nccl", init_method="env://", device_id="own",
        environment=environment,
    ):  # fmt: skip
        assert rank["true name"] == ["dicl"]
        assert rank["names"] == EXPECTED["names"][0]
        assert rank["ddp"] is True
        assert rank["mesh"] == (2.0, "nccl", 2)
        assert rank["options"] == [
            ("ProcessGroupNCCL.Options has no meaning for 'dicl'", True),
        ]


@pytest.mark.parametrize(
    ("asked", "truth", "heard"),
    [
        (None, "dicl", "cuda:nccl"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,dipu:dicl", "cpu:gloo,cuda:nccl"),
    ],
)
def test_a_back_end_for_each_device(
    asked: str | None, truth: str, heard: str, tmp_path: Path
) -> None:
    options = {"backend": asked, "init_method": f"file://{tmp_path / 'rendezvous'}"}
    for rank in _run("reference", ["true name", "names", "all_reduce AVG"], **options):
        assert rank["true name"] == [truth]
        assert rank["names"][2] == heard
        assert rank["all_reduce AVG"] == [1.5, 2.5]


@pytest.fixture
def target(active: ModuleType) -> Any:
    """Plain CPU, with ditorch imported and undone."""
    from ditorch.target import load

    active.undo()
    return load(choose("cpu").vendor)


def _backend(target: Any, asked: str, **changes: Any) -> str:
    from ditorch.distributed import Groups

    return Groups(replace(target, vendor=replace(target.vendor, **changes)))._backend(asked)


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("nccl", "gloo"),
        ("NCCL", "gloo"),
        ("mpi", "mpi"),
        ("cuda:nccl", "cpu:gloo"),
        ("cpu:gloo, cuda:nccl", "cpu:gloo"),
        ("xpu:xccl,cuda:nccl", "xpu:xccl,cpu:gloo"),
    ],
)
def test_names_of_back_ends_are_mapped_by_device(asked: str, ours: str, target: Any) -> None:
    assert _backend(target, asked) == ours


def test_a_vendor_without_collectives_is_reported(target: Any) -> None:
    with pytest.raises(DeeplinkError, match="'cpu' has no collective back end"):
        _backend(target, "nccl", collective="")


def test_a_back_end_that_torch_does_not_know_is_reported(target: Any) -> None:
    with pytest.raises(DeeplinkError, match=r"names the back end 'accl', which torch.*known: .*gl"):
        _backend(target, "cuda:nccl", collective="accl")


def test_two_back_ends_for_one_device_are_refused(target: Any) -> None:
    with pytest.raises(DeeplinkError, match="names both mpi and gloo on cpu"):
        _backend(target, "cpu:mpi,cuda:nccl")


def test_undo_is_exact(target: Any) -> None:
    from ditorch.distributed import apply
    from ditorch.patches import Patches

    functions = [dist.init_process_group, dist.new_group, dist.get_backend, dist.is_nccl_available]
    functions += [dist.device_mesh.DeviceMesh.__init__]
    before = [inspect.unwrap(function).__code__ for function in functions]
    init = nn.parallel.DistributedDataParallel.__init__
    names = set(vars(dist.distributed_c10d))
    patches = Patches()
    apply(patches, target)
    assert not any(
        inspect.unwrap(function).__code__ is code
        for function, code in zip(functions, before, strict=True)
    )
    patches.undo()
    assert all(
        inspect.unwrap(function).__code__ is code
        for function, code in zip(functions, before, strict=True)
    )
    assert nn.parallel.DistributedDataParallel.__init__ is init
    assert names == set(vars(dist.distributed_c10d))
