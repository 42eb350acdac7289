"""DeepSpeed: ZeRO stages in float32 or bfloat16, with accumulation, clipping and a checkpoint."""

import json
import sys
import tempfile

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

stage, dtype = int(sys.argv[1]), sys.argv[2]
deepspeed.init_distributed()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": dtype == "bfloat16"},
    "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}},
}
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    config=config,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for _ in range(8):
    tokens = torch.randint(0, 64, (4, 17), generator=generator).to(engine.device)
    logits = engine(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    losses.append(mean.item())
losses.append(float(engine.get_global_grad_norm()))
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
engine.save_checkpoint(folder[0])
before = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
for p in engine.module.parameters():
    p.data.zero_()
engine.load_checkpoint(folder[0])
restored = all(torch.equal(before[name], p) for name, p in engine.module.named_parameters())
if dist.get_rank() == 0:
    weights = {name: p.double() for name, p in before.items()}
    parameters = {name: [w.sum().item(), w.norm().item()] for name, w in weights.items()}
    is_cuda = engine.device.type == "cuda"
    print(
        json.dumps(
            {"losses": losses, "parameters": parameters, "restored": restored, "is_cuda": is_cuda}
        )
    )
dist.destroy_process_group()
