"""torchtitan's debug model: FSDP2 and tensor parallelism, on random tokens; run it by torchrun."""

import argparse
import json
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

if not hasattr(dist, "set_timeout"):  # torchtitan 0.3.0 is made for torch 2.14
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout


class Tokens(IterableDataset):
    def __init__(self, seq_len, rank):
        self.seq_len = seq_len
        self.generator = torch.Generator().manual_seed(rank)

    def __iter__(self):
        while True:
            row = torch.randint(0, 64, (self.seq_len + 1,), generator=self.generator)
            positions = torch.arange(self.seq_len)
            yield {"input": row[:-1], "positions": positions}, row[1:]


class RandomDataLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **kwargs):
        super().__init__(
            Tokens(seq_len, dp_rank), dp_rank, dp_world_size, batch_size=local_batch_size
        )


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **kwargs):
        super().__init__()

    def encode(self, text):
        raise NotImplementedError

    def decode(self, tokens):
        raise NotImplementedError

    def get_vocab_size(self):
        return 2048


def configure(options):
    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:  # every row of Tokens is one document
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.training.steps = 4
    config.training.seq_len = 32
    config.training.local_batch_size = 2
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = options.dtype
    config.dataloader = RandomDataLoader.Config()
    config.tokenizer = NoTokenizer.Config()
    config.parallelism.tensor_parallel_degree = options.tensor_parallel
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable = True
    config.checkpoint.create_seed_checkpoint = options.create_seed_checkpoint
    config.checkpoint.initial_load_path = options.seed_checkpoint
    config.debug.seed = 1
    config.dump_folder = options.folder
    return config


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--create-seed-checkpoint", action="store_true")
parser.add_argument("--seed-checkpoint")
parser.add_argument("--tensor-parallel", type=int, default=1)
parser.add_argument("--dtype", default="float32")
trainer = configure(parser.parse_args()).build()
if trainer.config.checkpoint.create_seed_checkpoint:
    trainer.checkpointer.save(curr_step=0, last_step=True)
    trainer.close()
    sys.exit()
losses = []
log = trainer.metrics_processor.log


def record(step, global_avg_loss, global_max_loss, grad_norm, *rest, **more):
    losses.append([float(global_avg_loss), float(global_max_loss), float(grad_norm)])
    log(step, global_avg_loss, global_max_loss, grad_norm, *rest, **more)


trainer.metrics_processor.log = record
trainer.train()
weights = {
    name: p.full_tensor().double().cpu() for name, p in trainer.model_parts[0].named_parameters()
}
trainer.close()
if dist.get_rank() == 0:
    parameters = {name: [w.sum().item(), w.norm().item()] for name, w in weights.items()}
    is_cuda = trainer.device.type == "cuda"
    print(json.dumps({"losses": losses, "parameters": parameters, "is_cuda": is_cuda}))
dist.destroy_process_group()
