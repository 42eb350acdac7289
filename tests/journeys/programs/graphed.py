"""Graphed modules, a side stream for the optimizer's statistics, and steps timed by events.

`--cpu` trains on the CPU, without any of it.
"""

import json
import sys

import torch
import torch.nn as nn

on_cpu = "--cpu" in sys.argv
device = torch.device("cpu" if on_cpu else "cuda")
torch.manual_seed(9)
N, D_in, H, D_out = 16, 32, 24, 8
first = nn.Sequential(nn.Linear(D_in, H), nn.Tanh()).to(device)
second = nn.Sequential(nn.Linear(H, H), nn.ReLU(), nn.Linear(H, D_out)).to(device)
inputs, targets = torch.randn(12, N, D_in), torch.randn(12, N, D_out)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
loss_fn = nn.MSELoss()

if not on_cpu:
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):  # warm up, as the notes on CUDA graphs say
        for _ in range(3):
            loss_fn(second(first(inputs[0].to(device))), targets[0].to(device)).backward()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(s)
    x = torch.randn(N, D_in, device=device)
    h = torch.randn(N, H, device=device, requires_grad=True)
    first, second = torch.cuda.make_graphed_callables((first, second), ((x,), (h,)))
    watch = torch.cuda.Stream(priority=-1)

losses, norms, times = [], [], []
for data, target in zip(inputs, targets, strict=True):
    if not on_cpu:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
    loss = loss_fn(second(first(data.to(device, non_blocking=True))), target.to(device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if on_cpu:
        norms.append(sum(p.grad.norm().item() for p in first.parameters()))
    else:
        end.record()
        watch.wait_event(end)
        with torch.cuda.stream(watch):
            norm = torch.stack([p.grad.norm() for p in first.parameters()]).sum()
            for p in first.parameters():
                p.grad.record_stream(watch)
        torch.cuda.current_stream().wait_stream(watch)
        norms.append(norm.item())
        end.synchronize()
        times.append(start.elapsed_time(end))
    losses.append(loss.item())
timed = on_cpu or (len(times) == 12 and all(time > 0 for time in times))
result = {"losses": losses, "norms": norms, "timed": timed}
print(json.dumps({**result, "is_cuda": loss.is_cuda}))
