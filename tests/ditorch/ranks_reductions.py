"""The program of each rank in the tests of DITORCH_FLOAT32_REDUCE: equal sums, with and without."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def main(rank: int, world: int, vendor: str, file: str, queue: Any) -> None:
    """Puts the results without the setting, with it, and after it was taken back."""
    os.environ |= {"DEEPLINK_VENDOR": vendor, "GLOO_SOCKET_IFNAME": "lo", "DITORCH_QUIET": "1"}
    os.environ |= {"DIPU_DEVICE_COUNT": str(world)}
    import ditorch

    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", f"file://{file}", timedelta(seconds=60), rank=rank, world_size=world
    )
    found = [_results(rank, world)]
    for setting in ("1", "0"):
        ditorch.undo()
        os.environ["DITORCH_FLOAT32_REDUCE"] = setting
        ditorch.activate()
        found.append(_results(rank, world))
    queue.put((rank, found))
    dist.destroy_process_group()


def _results(rank: int, world: int) -> dict[str, Any]:
    """256 and one 1 of each other rank: bfloat16 has steps of 2 there, and drops each 1 that it
    adds. The 256 is another rank's in each element, so that no order of the ranks escapes it.
    """

    def own(dtype: torch.dtype = torch.bfloat16) -> Tensor:
        values = [256.0 if place == rank else 1.0 for place in range(world)]
        return torch.tensor(values, device="cuda").to(dtype)

    found: dict[str, Any] = {}
    x = own()
    dist.all_reduce(x)
    found["all_reduce"] = x.tolist()
    x = own()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    found["wait"] = x.tolist()
    x = own()
    work = dist.all_reduce(x, async_op=True)
    assert isinstance(work, dist.Work)
    found["future"] = work.get_future().wait()[0].tolist()
    x = own()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    found["polled"] = x.tolist()
    x = own()
    dist.reduce(x, dst=world - 1)
    found["reduce"] = x.tolist()
    group = dist.new_group(list(range(world)))
    x = own()
    dist.reduce(x, group=group, group_dst=0, async_op=True).wait()
    found["reduce in a group"] = x.tolist()
    x = own()[:1].clone()
    dist.reduce_scatter_tensor(x, own())
    found["reduce_scatter_tensor"] = x.tolist()
    x = own()[:1].clone()
    dist.reduce_scatter(x, list(own().split(1)))
    found["reduce_scatter"] = x.tolist()
    x = torch.full((1,), 60000.0, device="cuda", dtype=torch.float16)
    dist.all_reduce(x, dist.ReduceOp.AVG)  # the sum is more than float16 has
    found["average"] = x.tolist()
    x = own()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    found["max"] = x.tolist()
    x = own(torch.int64)
    dist.all_reduce(x)
    found["integers"] = x.tolist()
    part = dist.new_group([0])
    x = own()
    if rank == 0:
        dist.all_reduce(x, group=part)
    found["a group of one"] = x.tolist()
    return found
