"""A GPT as people train it: alone or by torchrun, DDP with no_sync, AMP, checkpointed blocks.

`--compile` compiles the model; without a GPU the script takes the CPU itself.
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    ddp_rank, ddp_local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}" if torch.cuda.is_available() else "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
else:
    ddp_rank, world_size = 0, 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
device_type = "cuda" if device.startswith("cuda") else "cpu"
torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")
block_size, n_embd, vocab, accumulate = 16, 32, 24, 2


class Text(Dataset):
    data = torch.tensor([(i * i + i // 5) % vocab for i in range(1024)])

    def __len__(self):
        return 64

    def __getitem__(self, i):
        chunk = self.data[i * 13 : i * 13 + block_size + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 64), nn.GELU(), nn.Linear(64, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(B, T, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(n_embd, vocab)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


sampler = DistributedSampler(Text(), world_size, ddp_rank, shuffle=True, seed=1)
loader = DataLoader(Text(), batch_size=8, sampler=sampler, pin_memory=True, drop_last=True)
raw_model = model = GPT().to(device)
if "--compile" in sys.argv:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank] if device_type == "cuda" else None)
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=3e-3, fused=device_type == "cuda")
scaler = torch.amp.GradScaler(device_type, init_scale=1024.0)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
autocast = torch.autocast(device_type, dtype=torch.bfloat16)

losses, norms = [], []
for epoch in range(2 if "--compile" in sys.argv else 4):
    sampler.set_epoch(epoch)
    total = torch.zeros((), device=device)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        last = (step + 1) % accumulate == 0
        with contextlib.nullcontext() if last or not ddp else model.no_sync():
            with autocast:
                loss = model(x, y) / accumulate
            scaler.scale(loss).backward()
        total += loss.detach()
        if last:
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(raw_model.parameters(), 1.0).item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    if ddp:
        dist.all_reduce(total, op=dist.ReduceOp.AVG if device_type == "cuda" else dist.ReduceOp.SUM)
        total /= 1 if device_type == "cuda" else world_size
    losses.append(total.item() * accumulate / len(loader))
if ddp_rank == 0:
    parameters = sum(p.double().abs().sum().item() for p in raw_model.cpu().parameters())
    found = {"losses": losses, "norms": norms, "parameters": parameters}
    print(json.dumps({**found, "is_cuda": x.is_cuda, "device_type": device_type}))
if ddp:
    dist.destroy_process_group()
