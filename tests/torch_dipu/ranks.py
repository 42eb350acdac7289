"""The jobs of each of two ranks in the tests of collectives; a table by name."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests import rank_training as training
from tests.torch_dipu import ranks_reductions, ranks_table

WORLD = 2
Job = Callable[[int, torch.device], Any]


def main(
    rank: int, rendezvous: str, backend: str, names: list[str], queue: Any, world: int = WORLD
) -> None:
    """Joins the group, runs the jobs and puts {name: result or error} on the queue."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["DIPU_DEVICE_COUNT"] = str(world)
    import torch_dipu  # noqa: F401

    torch.set_num_threads(1)
    torch.dipu.set_device(_device(rank))
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=300),
    )
    results = {name: _attempt(JOBS[name], rank) for name in names}
    queue.put((rank, results))
    dist.destroy_process_group()


def _device(rank: int) -> torch.device:
    """A chip may have fewer devices than there are ranks."""
    return torch.device("dipu", rank % torch.dipu.device_count())


def _attempt(job: Job, rank: int) -> Any:
    try:
        return job(rank, _device(rank))
    except Exception as error:  # one job's error is that job's result
        return f"{type(error).__name__}: {error}"


def _reduced(operation: Any) -> Job:
    def job(rank: int, device: torch.device) -> Any:
        x = torch.tensor([rank + 1.0, 4.0 - 3 * rank], device=device)
        dist.all_reduce(x, operation)
        return str(x.device), x.tolist()

    return job


def _broadcast(rank: int, device: torch.device) -> Any:
    x = torch.arange(3.0, device=device) + 10 * rank
    dist.broadcast(x, 1)
    return x.tolist()


def _reduce(rank: int, device: torch.device) -> Any:
    x = torch.full((2,), rank + 1.0, device=device)
    dist.reduce(x, 0)
    return x.tolist() if rank == 0 else None


def _all_gather(rank: int, device: torch.device) -> Any:
    parts = [torch.empty(2, device=device) for _ in range(WORLD)]
    dist.all_gather(parts, torch.full((2,), float(rank), device=device))
    return [part.tolist() for part in parts]


def _versions(rank: int, device: torch.device) -> Any:
    """A result that arrives after the call does not change versions, as with NCCL."""
    x, gathered, part = (torch.ones(n, device=device) for n in (2, 2 * WORLD, 1))
    works = [
        dist.all_gather_into_tensor(gathered, x, async_op=True),
        dist.reduce_scatter_tensor(part, x, async_op=True),
        dist.all_reduce(x[:1], async_op=True),
    ]
    for work in works:
        assert work is not None
        work.wait()
    return [t._version for t in (x, gathered, part)]


def _all_gather_into_tensor(rank: int, device: torch.device) -> Any:
    out = torch.empty(4, device=device)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank), device=device))
    return out.tolist()


def _reduce_scatter(rank: int, device: torch.device) -> Any:
    out = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(out, torch.arange(4.0, device=device) * (rank + 1))
    return out.tolist()


def _all_to_all_single(rank: int, device: torch.device) -> Any:
    out = torch.empty(2, device=device)
    dist.all_to_all_single(out, torch.tensor([0.0, 1.0], device=device) + 10 * rank)
    return out.tolist()


def _send_recv(rank: int, device: torch.device) -> Any:
    x = torch.full((2,), 5.0 + rank, device=device)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x.tolist()


def _scatter(rank: int, device: torch.device) -> Any:
    out = torch.empty(1, device=device)
    parts = [torch.full((1,), float(i), device=device) for i in range(WORLD)]
    dist.scatter(out, parts if rank == 0 else None, 0)
    return out.tolist()


def _asynchronous(rank: int, device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    return x.tolist()


def _strided(rank: int, device: torch.device) -> Any:
    x = torch.ones(2, 3, device=device).t()
    dist.all_reduce(x)
    return x.tolist()


def _objects(rank: int, device: torch.device) -> Any:
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": rank})
    return gathered


def _barrier(rank: int, device: torch.device) -> Any:
    dist.barrier()
    return "passed"


# what a process has mapped while a chip's communicator is in use
MEMORY = {"reference": "/memfd:dipu_group", "droplet": "/dev/shm/droplet-"}


def _carried_by(rank: int, device: torch.device) -> Any:
    from deeplink.vendor import choose

    vendor = choose().vendor
    maps = Path("/proc/self/maps").read_text()
    return vendor.collective, dist.get_backend(), MEMORY[vendor.name] in maps


def _new_group(rank: int, device: torch.device) -> Any:
    x = torch.ones(1, device=device)
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    return x.tolist()


def _left_at_once(rank: int, device: torch.device) -> Any:
    """The first rank to be notified leaves; the other is still notified."""
    found = []
    for _ in range(40):
        group = dist.new_group([0, 1])
        x = torch.ones(1, device=device)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        found.append(x.item())
    return set(found)


def _any_source(rank: int, device: torch.device) -> Any:
    x = torch.full((2,), 5.0 + rank, device=device)
    if rank == 0:
        dist.send(x, 1)
        return None
    return dist.recv(x), x.tolist()


def _ddp(**options: Any) -> Job:
    def job(rank: int, device: torch.device) -> Any:
        net, x, y = training.data()
        replica = copy.deepcopy(net).to(device)
        parallel = nn.parallel.DistributedDataParallel(replica, device_ids=[rank], **options)
        training.train(parallel, x[rank::2].to(device), y[rank::2].to(device))
        training.train(net, x, y)
        return training.distance(replica, net) < 1e-6

    return job


def _ddp_times(rank: int, device: torch.device) -> Any:
    """DDP's own statistics, which it has where the device has a clock for it."""
    net, x, y = training.data()
    parallel = nn.parallel.DistributedDataParallel(net.to(device), device_ids=[rank])
    parallel.reducer._set_ddp_runtime_logging_sample_rate(1)
    training.train(parallel, x[rank::2].to(device), y[rank::2].to(device))
    logged = parallel._get_ddp_logging_data()
    names = ("forward_compute_time", "backward_compute_time", "backward_comm_time")
    return [logged.get(f"avg_{name}", 0) > 0 for name in names]


def _fsdp(rank: int, device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, x, y = training.data()
    sharded = copy.deepcopy(net).to(device)
    fully_shard(sharded, mesh=init_device_mesh("dipu", (WORLD,)))
    training.train(sharded, x[rank::2].to(device), y[rank::2].to(device))
    training.train(net, x, y)
    return training.distance(sharded, net) < 1e-5


def _sync_batch_norm(rank: int, device: torch.device) -> Any:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 2)
    whole = nn.BatchNorm1d(3)
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)).to(device)
    actual = layer(x[rank * 4 : rank * 4 + 4].to(device))
    expected = whole(x)[rank * 4 : rank * 4 + 4]
    return bool((actual.cpu() - expected).abs().max() < 1e-5)


JOBS: dict[str, Job] = {
    "all_reduce sum": _reduced(dist.ReduceOp.SUM),
    "all_reduce max": _reduced(dist.ReduceOp.MAX),
    "all_reduce min": _reduced(dist.ReduceOp.MIN),
    "all_reduce product": _reduced(dist.ReduceOp.PRODUCT),
    "all_reduce avg": _reduced(dist.ReduceOp.AVG),
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "versions": _versions,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "send_recv": _send_recv,
    "scatter": _scatter,
    "asynchronous": _asynchronous,
    "strided": _strided,
    "objects": _objects,
    "barrier": _barrier,
    "new_group": _new_group,
    "left at once": _left_at_once,
    "ddp": _ddp(),
    "ddp times": _ddp_times,
    "ddp bucket views": _ddp(gradient_as_bucket_view=True),
    "ddp unused parameters": _ddp(find_unused_parameters=True),
    "ddp static graph": _ddp(static_graph=True),
    "fsdp": _fsdp,
    **ranks_reductions.JOBS,
    **ranks_table.JOBS,
    "carried by": _carried_by,
    "recv from any": _any_source,
    "sync_batch_norm": _sync_batch_norm,
}
