"""Training interrupted and resumed, with the random state: the numbers of one that was not."""

import json
import os
import tempfile

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.checkpoint import checkpoint

device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 32)
        self.norm, self.drop, self.last = nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = checkpoint(lambda y: self.drop(torch.relu(self.second(y))), x, use_reentrant=False)
        return self.last(self.norm(x))


def make():
    torch.manual_seed(11)
    torch.cuda.manual_seed(11)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = torch.optim.swa_utils.AveragedModel(model)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 16), ema


def train(parts, scaler, steps):
    model, optimizer, scheduler, ema = parts
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=generator).to(device)
        y = torch.randint(4, (16,), generator=generator).to(device)
        with autocast(dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        ema.update_parameters(model)
        losses.append(loss.item())
    return losses


whole = train(make(), GradScaler(), range(16))
parts, scaler = make(), GradScaler()
halves = train(parts, scaler, range(8))
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "cuda.pt")
    state = {name: part.state_dict() for name, part in zip("mose", parts, strict=True)}
    state["scaler"] = scaler.state_dict()
    state["rng"], state["cuda_rng"] = torch.get_rng_state(), torch.cuda.get_rng_state_all()
    torch.save(state, path)
    del state
    parts, scaler = make(), GradScaler()
    saved = torch.load(path, map_location=lambda storage, loc: storage.cuda(0))
    on_cpu = torch.load(path, map_location="cpu", weights_only=True)
for name, part in zip("mose", parts, strict=True):
    part.load_state_dict(saved[name])
scaler.load_state_dict(saved["scaler"])
torch.set_rng_state(saved["rng"].cpu())
torch.cuda.set_rng_state_all([s.cpu() for s in saved["cuda_rng"]])
halves += train(parts, scaler, range(8, 16))
assert not on_cpu["m"]["last.weight"].is_cuda
is_cuda = saved["m"]["last.weight"].is_cuda
print(json.dumps({"resumed_equals_whole": halves == whole, "first": whole[0], "is_cuda": is_cuda}))
