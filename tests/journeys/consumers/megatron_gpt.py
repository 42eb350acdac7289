"""megatron-core: a GPT on mock data, tensor parallel over all ranks, with Megatron's own DDP."""

import json
import os
import sys
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer
from megatron.core.transformer.transformer_config import TransformerConfig

LENGTH, STEPS, MICROBATCHES = 32, 4, 2
tensor_parallel = int(sys.argv[1])

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group(backend="nccl", rank=rank, world_size=world)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
init_num_microbatches_calculator(rank, None, 2 * MICROBATCHES, 2, 1)
model_parallel_cuda_manual_seed(123)
torch.manual_seed(123)

config = TransformerConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    use_cpu_initialization=True,  # one set of weights for any number of ranks
    pipeline_dtype=torch.float32,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    tensor_model_parallel_size=tensor_parallel,
)
model = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_layer_local_spec(),
    vocab_size=128,
    max_sequence_length=LENGTH,
).cuda()
model = DistributedDataParallel(
    config,
    DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=True),
    model,
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-2, clip_grad=1.0, use_distributed_optimizer=True),
    [model],
)
config.finalize_model_grads_func = finalize_model_grads
data_config = GPTDatasetConfig(
    random_seed=0,
    sequence_length=LENGTH,
    reset_position_ids=False,
    reset_attention_mask=False,
    eod_mask_loss=False,
    tokenizer=NullTokenizer(vocab_size=127),
    mid_level_dataset_surplus=0.005,
)
sizes = [64, None, None]
dataset = BlendedMegatronDatasetBuilder(MockGPTDataset, sizes, lambda: True, data_config).build()[0]
replica = parallel_state.get_data_parallel_rank()
sampler = torch.utils.data.DistributedSampler(
    dataset, parallel_state.get_data_parallel_world_size(), replica, shuffle=False
)
batches = iter(torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler))


def loss_of(loss_mask, output):
    mask = loss_mask.view(-1).float()
    loss = torch.sum(output.float().view(-1) * mask) / mask.sum()
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(iterator, model):
    batch = {name: value.cuda(non_blocking=True) for name, value in next(iterator).items()}
    output = model(
        batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"]
    )
    return output, partial(loss_of, batch["loss_mask"])


losses = []
forward_backward = get_forward_backward_func()
for _ in range(STEPS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    reduced = forward_backward(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=model,
        num_microbatches=MICROBATCHES,
        seq_length=LENGTH,
        micro_batch_size=2,
        forward_only=False,
    )
    succeeded, grad_norm, _ = optimizer.step()
    assert succeeded
    mean = torch.stack([entry["lm loss"] for entry in reduced]).mean()
    torch.distributed.all_reduce(
        mean, torch.distributed.ReduceOp.AVG, group=parallel_state.get_data_parallel_group()
    )
    losses.append([mean.item(), float(grad_norm)])
parameters = {}
group = parallel_state.get_tensor_model_parallel_group()
for name, parameter in model.module.named_parameters():
    split = getattr(parameter, "tensor_model_parallel", False)
    sums = torch.stack([parameter.double().sum(), parameter.double().square().sum()]).detach()
    if split:
        torch.distributed.all_reduce(sums, group=group)
    parameters[name] = [sums[0].item(), sums[1].sqrt().item()]
if rank == 0:
    is_cuda = next(model.parameters()).is_cuda
    print(json.dumps({"losses": losses, "parameters": parameters, "is_cuda": is_cuda}))
torch.distributed.destroy_process_group()
