"""Image classification: DataParallel, warm-up and cosine schedules, a checkpoint in the middle.

`--cpu` trains on the CPU. The second half is trained by a model, an optimizer and a scheduler that
know the first half only from the checkpoint.
"""

import json
import os
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu" if "--cpu" in sys.argv else "cuda")
if device.type == "cuda":
    torch.backends.cudnn.benchmark = True
    torch.cuda.manual_seed(1)
torch.manual_seed(1)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
            nn.SiLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
        )

    def forward(self, x):
        return F.silu(x + self.body(x))


def make_model():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(8),
        nn.MaxPool2d(2),
        Residual(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).to(device, memory_format=torch.channels_last)
    if torch.cuda.device_count() > 1 and device.type == "cuda":
        net = nn.DataParallel(net)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    warm_up = LinearLR(optimizer, 0.1, total_iters=4)
    schedule = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, 20)], [4])
    return net, optimizer, schedule


labels = torch.arange(60) % 5
images = torch.randn(5, 3, 8, 8)[labels] + 0.3 * torch.randn(60, 3, 8, 8)
loader = DataLoader(TensorDataset(images, labels), batch_size=12, pin_memory=True)


def epoch(net, optimizer, schedule):
    net.train()
    total = 0.0
    for x, y in loader:
        x = x.to(device, non_blocking=True, memory_format=torch.channels_last)
        y = y.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        total += loss.item() * len(x)
    return total / len(images), schedule.get_last_lr()[0], x.is_cuda


@torch.no_grad()
def accuracy(net):
    net.eval()
    return sum((net(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "checkpoint.pt")
    parts = make_model()
    first = [epoch(*parts) for _ in range(2)]
    plain = parts[0].module if isinstance(parts[0], nn.DataParallel) else parts[0]
    state = {"model": plain.state_dict(), "optimizer": parts[1].state_dict()}
    torch.save({**state, "schedule": parts[2].state_dict()}, path)
    again = make_model()
    saved = torch.load(path, map_location=device)
plain = again[0].module if isinstance(again[0], nn.DataParallel) else again[0]
plain.load_state_dict(saved["model"])
again[1].load_state_dict(saved["optimizer"])
again[2].load_state_dict(saved["schedule"])
second = [epoch(*again) for _ in range(2)]
kept_on = [epoch(*parts) for _ in range(2)]
losses, rates, on_cuda = zip(*(first + second), strict=True)
result = {"losses": losses, "rates": rates, "right": accuracy(again[0])}
result["resumed"] = max(abs(a[0] - b[0]) for a, b in zip(second, kept_on, strict=True)) < 1e-6
print(json.dumps({**result, "is_cuda": all(on_cuda)}))
