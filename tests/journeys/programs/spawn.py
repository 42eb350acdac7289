"""Two processes by torch.multiprocessing.spawn, a tensor through a queue, a spawned DataLoader."""

import json
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def demo_basic(rank, world_size, port, queue):
    setup(rank, world_size, port)
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
    inputs, labels = torch.randn(2, 20, 10)[rank], torch.randn(2, 20, 5)[rank]
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp_model(inputs.cuda()), labels.to(rank))
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
    if rank == 0:
        queue.put((losses, mean.is_cuda))
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    world_size = 2
    mp.spawn(demo_basic, args=(world_size, port, queue), nprocs=world_size, join=True)
    losses, is_cuda = queue.get()
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    total = sum(batch.cuda().sum().item() for (batch,) in loader)
    print(json.dumps({"losses": losses, "total": total, "is_cuda": is_cuda}))


if __name__ == "__main__":
    main()
