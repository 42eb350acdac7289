"""The older mixed precision names: torch.cuda.amp.autocast() in float16 with its GradScaler."""

import json

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = False
assert torch.cuda.is_available()

layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(16, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model = model.cuda()
scaler = GradScaler(init_scale=2.0**16, growth_interval=5)
criterion = nn.CrossEntropyLoss().cuda()

losses, scales, skipped = [], [], 0
for step in range(12):
    tokens = (torch.arange(8 * 12).view(8, 12) * (step % 3 + 1) % 16).cuda(non_blocking=True)
    with autocast():
        output = model(tokens)
        assert output.dtype == torch.float16
        loss = criterion(output.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if step == 4:  # an overflow, as float16 has them
        next(model.parameters()).grad[0, 0] = float("inf")
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    losses.append(loss.item())
    scales.append(scaler.get_scale())

state = scaler.state_dict()
assert state["scale"] == scales[-1]
result = {"losses": losses, "scales": scales, "skipped": int(skipped), "is_cuda": output.is_cuda}
print(json.dumps(result))
