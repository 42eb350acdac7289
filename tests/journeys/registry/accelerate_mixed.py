"""accelerate with mixed precision, gradient accumulation, clipping and a saved state."""

import json
import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

on_cpu = "--cpu" in sys.argv
precision = sys.argv[1]
accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2, cpu=on_cpu)
set_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(64, 16), torch.arange(64) % 4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
parts = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8), scheduler)
model, optimizer, loader, scheduler = parts
losses = []
for _ in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    weight = accelerator.unwrap_model(model)[0].weight
    kept = weight.detach().clone()
    weight.data.zero_()
    accelerator.load_state(folder)
    restored = torch.equal(kept, weight)
is_cuda = x.is_cuda and accelerator.device.type == "cuda"
print(json.dumps({"losses": losses, "restored": restored, "is_cuda": is_cuda}))
