"""mmengine's Runner with an AmpOptimWrapper, a hook that records, validation and a resume."""

import json
import sys
import tempfile

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import TensorDataset

wrapper = sys.argv[1]
torch.manual_seed(0)


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x, y, mode):
        scores = self.net(x)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, y)}
        return scores, y


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        scores, y = data_samples
        hits = (scores.argmax(1) == y).sum().cpu()
        self.results.append({"n": len(y), "hits": hits, "is_cuda": scores.is_cuda})

    def compute_metrics(self, results):
        n = sum(item["n"] for item in results)
        hits = sum(int(item["hits"]) for item in results)
        return {"accuracy": hits / n, "is_cuda": results[0]["is_cuda"]}


class Record(Hook):
    def __init__(self):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(outputs["loss"].item())


x = torch.randn(64, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
record = Record()
with tempfile.TemporaryDirectory() as folder:
    loader = {
        "batch_size": 16,
        "dataset": data,
        "sampler": {"type": "DefaultSampler", "shuffle": False},
        "collate_fn": {"type": "default_collate"},
    }
    runner = Runner(
        model=Net(),
        work_dir=folder,
        train_dataloader=loader,
        val_dataloader=loader,
        optim_wrapper={
            "type": wrapper,
            "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
            "clip_grad": {"max_norm": 1.0},
        },
        train_cfg={"by_epoch": True, "max_epochs": 3, "val_interval": 3},
        val_cfg={},
        val_evaluator={"type": Accuracy},
        custom_hooks=[record],
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 1}},
        log_level="ERROR",
        experiment_name="journey",
    )
    runner.train()
    metrics = runner.val()
print(json.dumps({"losses": record.losses, **metrics}))
