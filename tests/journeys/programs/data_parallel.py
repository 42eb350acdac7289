"""Image classification over two GPUs with nn.DataParallel, a best checkpoint and its evaluation."""

import json
import os
import shutil
import tempfile

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
cudnn.benchmark = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Linear(32, 4)

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n):
        self.sum += val * n
        self.count += n


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [
            correct[:k].reshape(-1).float().sum(0).mul_(100.0 / target.size(0)).item() for k in topk
        ]


centers = torch.randn(4, 3, 1, 1) * 2
target_all = torch.arange(64) % 4
images_all = centers[target_all] + torch.randn(64, 3, 12, 12)
loader = DataLoader(TensorDataset(images_all, target_all), batch_size=16, pin_memory=True)

device_ids = list(range(torch.cuda.device_count()))[:2]
model = torch.nn.DataParallel(Net(), device_ids=device_ids).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

losses = []
for _ in range(4):
    model.train()
    meter = AverageMeter()
    for images, target in loader:
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        meter.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    losses.append(meter.sum / meter.count)

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "checkpoint.pth.tar")
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    shutil.copyfile(path, os.path.join(folder, "model_best.pth.tar"))
    loc = f"cuda:{torch.cuda.current_device()}"
    checkpoint = torch.load(os.path.join(folder, "model_best.pth.tar"), map_location=loc)
best = torch.nn.DataParallel(Net(), device_ids=device_ids).cuda()
best.load_state_dict(checkpoint["state_dict"])
best.eval()
with torch.no_grad():
    scores = [accuracy(best(x.cuda()), y.cuda(), topk=(1, 2)) for x, y in loader]
top1, top2 = (sum(column) / len(column) for column in zip(*scores, strict=True))
result = {"losses": losses, "top1": top1, "top2": top2, "gpus": len(device_ids)}
print(json.dumps({**result, "is_cuda": output.is_cuda}))
