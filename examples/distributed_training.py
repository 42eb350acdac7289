"""Train on several devices with DDP or FSDP2, started by torchrun. Written for CUDA and NCCL.

deeplink run torchrun --nproc-per-node 2 examples/distributed_training.py
deeplink run torchrun --nproc-per-node 2 examples/distributed_training.py --strategy fsdp
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32


def network() -> nn.Sequential:
    """Build the network, with equal weights on every rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)).cuda()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model: nn.Module = network()
    if options.strategy == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    torch.manual_seed(dist.get_rank())  # batches differ between ranks
    losses = []
    for _ in range(options.steps):
        x = torch.randn(16, WIDTH).cuda()
        loss = (model(x).squeeze(1) - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    if dist.get_rank() == 0:
        print(
            f"{options.strategy} on {dist.get_world_size()} ranks, {torch.cuda.get_device_name()}"
        )
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
