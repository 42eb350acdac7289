"""The DDP tutorial: torchrun, nccl, one GPU per process, snapshots and a distributed sampler."""

import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.gpu_id)
        self.train_data = train_data
        self.optimizer = optimizer
        self.snapshot_path = snapshot_path
        self.epochs_run = 0
        self.losses = []
        if os.path.exists(snapshot_path):
            loc = f"cuda:{self.gpu_id}"
            snapshot = torch.load(snapshot_path, map_location=loc)
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DDP(self.model, device_ids=[self.gpu_id], output_device=self.gpu_id)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole, op=dist.ReduceOp.SUM)
        self.losses.append((whole / dist.get_world_size()).item())

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self._run_batch(source.to(self.gpu_id), targets.to(self.gpu_id))
            if self.gpu_id == 0:
                torch.save(
                    {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1},
                    self.snapshot_path,
                )
            dist.barrier()


def main():
    ddp_setup()
    torch.manual_seed(7)
    inputs, targets = torch.randn(64, 20), torch.randn(64, 1)
    data = TensorDataset(inputs, targets)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, pin_memory=True, shuffle=False, sampler=sampler)
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    path = os.path.join(names[0], "snapshot.pt")
    losses = []
    for max_epochs in (2, 4):  # the second resumes from the first's snapshot
        model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = Trainer(model, loader, optimizer, path)
        trainer.train(max_epochs)
        losses += trainer.losses
    weight = trainer.model.module[0].weight.detach()
    everyone = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weight)
    equal = all(torch.equal(everyone[0], other.to(everyone[0].device)) for other in everyone)
    where = [None] * dist.get_world_size()
    dist.all_gather_object(where, (dist.get_backend(), torch.cuda.current_device()))
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "ranks_equal": equal, "where": where}))
    destroy_process_group()


if __name__ == "__main__":
    main()
