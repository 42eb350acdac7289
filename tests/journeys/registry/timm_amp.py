"""timm: a model, its loss, optimizer, scheduler, EMA and loss scaler, with autocast on cuda."""

import json
import sys
from functools import partial

import torchvision_python  # noqa: F401  # before timm, which imports torchvision

# isort: split
import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy, random_seed

on_cpu, name = "--cpu" in sys.argv, sys.argv[1]
device = torch.device("cpu" if on_cpu else "cuda")
random_seed(42, 0)
options = {"resnet10t": {}, "vit_tiny_patch16_224": {"img_size": 32, "depth": 2}}[name]
model = timm.create_model(name, pretrained=False, num_classes=5, drop_rate=0.0, **options)
model.to(device=device)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
ema = ModelEmaV3(model, decay=0.9)
half = sys.argv[2] == "amp"
amp = partial(torch.autocast, device_type=device.type, dtype=torch.float16, enabled=half)
scaler = NativeScaler() if not on_cpu else None
criterion = LabelSmoothingCrossEntropy(0.1).to(device)
images = torch.randn(16, 3, 32, 32)
labels = torch.arange(16) % 5
losses, meter = [], AverageMeter()
for _ in range(6):
    x, y = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    with amp():
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    if scaler is not None:
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        torch.cuda.synchronize()
    else:
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
    ema.update(model)
    losses.append(loss.item())
    meter.update(loss.item(), 16)
model.eval()
with torch.no_grad(), amp():
    top1, top5 = accuracy(model(x), y, topk=(1, 5))
print(json.dumps({"losses": losses, "top5": top5.item(), "is_cuda": x.is_cuda}))
