"""A data prefetcher on its own stream, events that time it, nvtx ranges and memory statistics."""

import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
if torch.cuda.is_available():
    device = torch.cuda.current_device()
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.5, 0.4, 0.3]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.float().sub_(self.mean)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return input, target


dataset = TensorDataset(torch.rand(32, 3, 8, 8), torch.arange(32) % 5)
loader = DataLoader(dataset, batch_size=8, num_workers=1, pin_memory=True, persistent_workers=True)
model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)
start.record()
losses = []
for epoch in range(3):
    prefetcher = Prefetcher(loader)
    input, target = prefetcher.next()
    while input is not None:
        torch.cuda.nvtx.range_push(f"epoch {epoch}")
        loss = nn.functional.cross_entropy(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        with torch.cuda.nvtx.range("step"):
            optimizer.step()
        torch.cuda.nvtx.range_pop()
        losses.append(loss.item())
        input, target = prefetcher.next()
end.record()
torch.cuda.synchronize()

side = torch.cuda.Stream(device=device, priority=-1)
done = torch.cuda.Event()
with torch.cuda.stream(side):
    product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    done.record(side)
torch.cuda.current_stream().wait_event(done)
side.synchronize()
assert side.query() and done.query() and product.sum().item() == 64**3

with torch.cuda.device(1 if torch.cuda.device_count() > 1 else 0):
    there = torch.zeros(3, device="cuda")
    index = torch.cuda.current_device()
assert there.get_device() in (index, -1)
with torch.cuda.device_of(there):
    pass
summary = torch.cuda.memory_summary(device, abbreviated=True)
free, total = torch.cuda.mem_get_info()
properties = torch.cuda.get_device_properties(0)
assert 0 <= torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated()
assert torch.cuda.memory_reserved() >= 0 and 0 < free <= total
assert "memory" in summary.lower() and properties.total_memory > 0 and torch.cuda.get_device_name()
assert len(torch.cuda.get_device_capability()) == 2 and torch.cuda.memory_stats() is not None
timed = start.elapsed_time(end) > 0
print(json.dumps({"losses": losses, "timed": timed, "is_cuda": product.is_cuda}))
