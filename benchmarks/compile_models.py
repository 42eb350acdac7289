"""The models on which compilers are measured, with the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dicp.conformance.networks import MLP, Llama, ResNet, UNet, rope_tables


@dataclass(frozen=True)
class Workload:
    """A model and the arguments of a call of it."""

    model: nn.Module
    arguments: tuple[Any, ...]


def mlp(rows: int) -> Workload:
    return Workload(MLP().eval(), (torch.randn(rows, 512),))


def llama(length: int, cached: int = 0, **sizes: int) -> Workload:
    model = Llama(**sizes).eval()
    cos, sin = rope_tables(torch.arange(cached, cached + length), model.each)
    tokens = torch.randint(0, model.embedding.num_embeddings, (1, length))
    past = None
    if cached:
        shape = 1, model.shared, cached, model.each
        past = [(torch.randn(shape), torch.randn(shape)) for _ in model.layers]
    return Workload(model, (tokens, cos, sin, past))


def resnet50() -> Workload:
    return Workload(ResNet().eval(), (torch.randn(1, 3, 224, 224),))


def unet() -> Workload:
    return Workload(UNet().eval(), (torch.randn(1, 4, 32, 32), torch.tensor([37.0])))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet50": resnet50,
    "llama prefill, 64 tokens": lambda: llama(64),
    "llama decode": lambda: llama(1),
    "llama decode, 64 cached": lambda: llama(1, 64),
    "diffusion unet": unet,
    "mlp, 64 rows": lambda: mlp(64),
    "mlp, 1 row": lambda: mlp(1),
}
