"""The program of each rank in the tests of torch.distributed: it names cuda and nccl only."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import get_backend, init_process_group  # names taken before ditorch

from tests import rank_training as training

WORLD = 2
Job = Callable[[int], Any]


def main(rank: int, vendor: str, jobs: list[str], options: dict[str, Any], queue: Any) -> None:
    """Joins the group as CUDA code does, runs the jobs, puts {name: result or error}."""
    os.environ |= {"DEEPLINK_VENDOR": vendor, "GLOO_SOCKET_IFNAME": "lo", "DITORCH_QUIET": "1"}
    os.environ |= options.pop("environment", {}).get(rank, {})
    import ditorch  # noqa: F401

    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    init_process_group(**{"timeout": timedelta(seconds=300), **_ranked(options, rank)})
    results = {name: _attempt(JOBS[name], rank) for name in jobs}
    queue.put((rank, results))
    dist.destroy_process_group()


def launcher_environment() -> dict[int, dict[str, str]]:
    """Return torchrun's variables for each rank, with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORLD)}


def _ranked(options: dict[str, Any], rank: int) -> dict[str, Any]:
    """The options with this rank where they say so."""
    if options.get("device_id") == "own":
        options = {**options, "device_id": torch.device("cuda", rank)}
    if options.get("init_method", "").startswith("file://"):
        options = {**options, "rank": rank, "world_size": WORLD}
    return options


def _attempt(job: Job, rank: int) -> Any:
    try:
        return job(rank)
    except Exception as error:  # one job's error is that job's result
        return f"{type(error).__name__}: {error}"


def _names(rank: int) -> Any:
    group = dist.new_group([0, 1], backend="nccl")
    return [
        str(get_backend()),
        str(dist.get_backend(group)),
        dist.get_backend_config(),
        dist.is_nccl_available(),
        dist.is_backend_available("nccl"),
        dist.get_default_backend_for_device("cuda"),
        dist.get_backend() == dist.Backend.NCCL,
    ]


def _true_name(rank: int) -> Any:
    """The names that torch itself sees, and the device of the group."""
    group = dist.group.WORLD
    assert group is not None
    return [str(dist.distributed_c10d._world.pg_map[group][0])]


def _gloo_group(rank: int) -> Any:
    group = dist.new_group([0, 1], backend="gloo")
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return str(dist.get_backend(group)), x.item()


def _gloo_on_device(rank: int) -> Any:
    """Run gloo with CUDA tensors, and with tensors of the CPU in the same group."""
    group = dist.new_group([0, 1], backend="gloo")
    own = torch.full((2,), float(rank), device="cuda")
    found: dict[str, Any] = {}
    x = own.clone()
    dist.broadcast(x, 1, group=group)
    found["broadcast"] = x.tolist()
    dist.all_reduce(x.add_(rank), group=group)
    found["all_reduce"] = x.tolist(), x.is_cuda
    gathered = [torch.empty_like(own) for _ in range(WORLD)]
    dist.all_gather(gathered, own, group=group)
    found["all_gather"] = [part.tolist() for part in gathered]
    host = torch.ones(1)
    dist.all_reduce(host, group=group)
    found["of the cpu"] = host.tolist()
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, rank, group=group)
    found["objects"] = objects
    dist.barrier(group=group)
    found["name"] = str(dist.get_backend(group))
    replica = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).cuda(), process_group=group)
    replica(own.unsqueeze(0)).sum().backward()
    assert replica.module.weight.grad is not None
    found["ddp"] = replica.module.weight.grad.tolist()
    return found


def _timeout(rank: int) -> Any:
    """The error of a collective that the other rank does not join."""
    group = dist.new_group([0, 1], backend="nccl")
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["the other has failed"])
        return ""
    try:
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    finally:
        store.set("the other has failed", "")
    return "no error"


def _random_dtensors(rank: int) -> Any:
    """Draws on DTensors: their local parts, and what each kind of operator draws as a whole."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (WORLD,))
    torch.manual_seed(3)
    start = torch.zeros(4, 4, device="cuda")
    sharded = dt.distribute_tensor(start, mesh, [dt.Shard(0)])
    draws: dict[str, Callable[[], Any]] = {
        "normal_": lambda: sharded.normal_().clone(),
        "again": lambda: sharded.normal_().clone(),
        "rand": lambda: dt.rand(4, 4, device_mesh=mesh, placements=[dt.Shard(0)]),
        "dropout": lambda: nn.functional.dropout(sharded + 1, 0.5),
        "replicated": lambda: dt.randn(4, 4, device_mesh=mesh, placements=[dt.Replicate()]),
        "plain": lambda: torch.rand(4, 4, device="cuda"),
    }

    def values() -> dict[str, Any]:
        torch.manual_seed(3)
        drawn = {name: draw() for name, draw in draws.items()}
        return {name: getattr(x, "full_tensor", x.clone)().tolist() for name, x in drawn.items()}

    return values(), values()


def _meta_init(rank: int) -> Any:
    """FSDP2 of a model on meta, whose parameters are initialised when they are sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    fully_shard(net, mesh=init_device_mesh("cuda", (WORLD,)))
    net.to_empty(device="cuda")
    torch.manual_seed(5)
    for layer in net:
        layer.reset_parameters()
    return [training.whole(parameter).tolist() for parameter in net.parameters()]


def _reduced(name: str) -> Job:
    def job(rank: int) -> Any:
        x = torch.tensor([rank + 1.0, 4.0 - 3 * rank], device="cuda")
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        return x.tolist()

    return job


def _collectives(rank: int) -> Any:
    """Every collective once; the two ranks' results are checked by the test."""
    device = torch.device("cuda", rank)
    own = torch.full((2,), float(rank), device=device)
    other = torch.full((2,), -1.0, device=device)
    found: dict[str, Any] = {}
    gathered = [torch.empty_like(own) for _ in range(WORLD)]
    dist.all_gather(gathered, own)
    found["all_gather"] = [part.tolist() for part in gathered]
    whole = torch.empty(4, device=device)
    dist.all_gather_into_tensor(whole, own)
    found["all_gather_into_tensor"] = whole.tolist()
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device=device), dist.ReduceOp.AVG)
    found["reduce_scatter_tensor"] = part.tolist()
    x = own.clone()
    dist.broadcast(x, 1)
    found["broadcast"] = x.tolist()
    x = own.clone()
    dist.reduce(x, 1, dist.ReduceOp.AVG)
    found["reduce"] = x.tolist() if rank == 1 else None  # the others' is not specified
    if rank == 0:
        dist.send(own + 5, 1)
    else:
        dist.recv(other, 0)
    found["recv"] = other.tolist()
    work = dist.all_reduce(own, async_op=True)
    assert work is not None
    work.wait()
    found["async"] = own.tolist()
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, rank)
    found["objects"] = objects
    dist.barrier(device_ids=[rank])
    return found


def _ddp(rank: int) -> Any:
    net, x, y = training.data()
    replica = copy.deepcopy(net).cuda(rank)
    parallel = nn.parallel.DistributedDataParallel(
        replica, device_ids=[rank], output_device=rank, find_unused_parameters=False
    )
    training.train(parallel, x[rank::2].cuda(), y[rank::2].cuda())
    training.train(net, x, y)
    return training.distance(replica, net) < 1e-6


def _fsdp(rank: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, x, y = training.data()
    sharded = copy.deepcopy(net).to("cuda")
    fully_shard(sharded, mesh=init_device_mesh("cuda", (WORLD,)))
    training.train(sharded, x[rank::2].cuda(), y[rank::2].cuda())
    training.train(net, x, y)
    return training.distance(sharded, net) < 1e-6


def _premultiplied(rank: int) -> Any:
    """NCCL's sum of products with a factor, and FSDP2, which uses it for a divisor of gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    half = (getattr(dist, "_make_nccl_premul_sum", None) or dist.ReduceOp.PREMUL_SUM)(0.5)
    x = torch.tensor([rank + 1.0, 4.0 - 3 * rank], device="cuda")
    dist.all_reduce(x, half)
    own = torch.full((2,), rank + 1.0, device="cuda")
    dist.reduce(own, 1, half)
    source, part = torch.arange(4.0, device="cuda"), torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(part, source, half)
    net = nn.Linear(4, 1, bias=False).cuda()
    fully_shard(net, mesh=init_device_mesh("cuda", (WORLD,)))
    net.set_gradient_divide_factor(4.0)
    net(torch.full((1, 4), rank + 1.0, device="cuda")).sum().backward()
    gradient = net.weight.grad.full_tensor().tolist()
    # only the destination of `reduce` has a specified result
    return [x.tolist(), own.tolist() if rank else None, part.tolist(), source.tolist(), gradient]


def _mesh(rank: int) -> Any:
    """Two dimensions, so that sub-groups are made, also of a group that is bound to a device."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh("cuda", (WORLD, 1), mesh_dim_names=("data", "model"))
    x = torch.ones(1, device="cuda")
    dist.all_reduce(x, group=mesh["data"].get_group())
    flat = DeviceMesh("cuda", list(range(WORLD)))
    return x.item(), str(dist.get_backend(mesh.get_group("model"))), flat.size()


def _differentiable(rank: int) -> Any:
    from torch.distributed.nn.functional import all_gather

    x = torch.full((2,), rank + 1.0, device="cuda", requires_grad=True)
    parts = all_gather(x)
    (parts[0] * 1 + parts[1] * 2).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def _options(rank: int) -> Any:
    """NCCL's options are reported as without effect."""
    import warnings

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        dist.new_group([0, 1], pg_options=options)
    return [(str(w.message).partition(";")[0], w.filename == __file__) for w in seen]


JOBS: dict[str, Job] = {
    "names": _names,
    "true name": _true_name,
    "gloo group": _gloo_group,
    "gloo on device": _gloo_on_device,
    "timeout": _timeout,
    "random DTensors": _random_dtensors,
    "meta init": _meta_init,
    **{f"all_reduce {op}": _reduced(op) for op in ("SUM", "AVG", "MAX", "MIN", "PRODUCT")},
    "collectives": _collectives,
    "ddp": _ddp,
    "fsdp": _fsdp,
    "premultiplied": _premultiplied,
    "mesh": _mesh,
    "differentiable": _differentiable,
    "options": _options,
}
