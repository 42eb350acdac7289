"""The program of two ranks in the tests of the flight record: one misses a collective."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(rank: int, folder: str, seconds: float) -> None:
    """Rank 0 waits in the second all_reduce of a hasty group until it times out; rank 1 is
    elsewhere meanwhile, and ends while rank 0 waits for it in the other group, which is in no
    haste, as the start of two processes may take long."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", DIPU_FLIGHT_RECORD_DIR=folder)
    import torch_dipu  # noqa: F401
    from torch_dipu import flight

    torch.dipu.set_device(rank)
    rendezvous = Path(folder) / "rendezvous"
    dist.init_process_group(
        "dicl",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=300),
    )
    x = torch.ones(3, device=f"dipu:{rank}")
    dist.all_reduce(x)
    hasty = dist.new_group([0, 1], timeout=timedelta(seconds=seconds))
    dist.all_reduce(x, group=hasty)
    if rank == 0:
        errors = [_error(x[:2].clone(), hasty), _error(x, None)]
        (Path(folder) / "errors").write_text("\n---\n".join(errors))
        return
    while not (Path(folder) / "rank-0.json").exists():
        time.sleep(0.05)
    flight.dump()
    os._exit(0)  # a group whose peer has gone cannot be ended in order


def _error(x: torch.Tensor, group: dist.ProcessGroup | None) -> str:
    try:
        dist.all_reduce(x, group=group)
    except dist.DistBackendError as error:
        return str(error)
    return "none"
