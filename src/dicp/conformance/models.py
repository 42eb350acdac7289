# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, which the long tier compiles and judges for every backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dicp.conformance.networks import MLP, Llama, ResNet, UNet, rope_tables


@dataclass(frozen=True)
class Model:
    """A model, and the arguments of a call for a batch and a length (or the side of an image)."""

    module: nn.Module
    arguments: Callable[[int, int], tuple[Any, ...]]
    sizes: tuple[tuple[int, int], ...]  # batch and length: one compile serves all of them


class First(nn.Module):
    """A wrapper that returns the first result of a model of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.inner(input_ids=tokens, use_cache=False, return_dict=False)[0]
        return made


TEXT = ((2, 7), (3, 12), (2, 31), (5, 16))
IMAGE = ((2, 32), (3, 64), (4, 96), (5, 32))


def tokens(batch: int, length: int) -> tuple[Any, ...]:
    return (torch.arange(batch * length).reshape(batch, length) * 7 % 97,)


def _of_transformers(kind: str, head: str, **extra: Any) -> Model:
    transformers: Any = importlib.import_module("transformers")  # an optional dependency

    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    config = getattr(transformers, f"{kind}Config")(**sizes, **extra)
    model = getattr(transformers, f"{kind}{head}")(config)
    return Model(First(model.eval()), tokens, TEXT)


class Bert(nn.Module):
    """A wrapper that returns the first result of a BERT, which has no cache to disable."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.inner(input_ids=tokens, return_dict=False)[0]
        return made


def bert() -> Model:
    made = _of_transformers("Bert", "Model")
    return Model(Bert(made.module.inner), tokens, TEXT)  # type: ignore[arg-type]


class Decoder(nn.Module):
    """The llama in plain torch, called with tokens alone."""

    def __init__(self, inner: Llama) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rope_tables(positions, self.inner.each)
        dtype = self.inner.norm.weight.dtype
        made: Tensor = self.inner(tokens, cos.to(dtype), sin.to(dtype))[0]
        return made


def plain_llama() -> Model:
    inner = Llama(layers=2, vocabulary=97, size=32, heads=4, shared=2, inner=48)
    return Model(Decoder(inner).eval(), tokens, TEXT)


def image(batch: int, side: int) -> tuple[Any, ...]:
    return (torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(side)),)


def resnet() -> Model:
    return Model(ResNet(((8, 1, 1), (16, 2, 2)), 10).eval(), image, IMAGE)


def resnet50() -> Model:
    # an image of 32 leaves 1 x 1, and a batch of 3 is as large as the channels: torch fixes both
    return Model(ResNet().eval(), image, ((2, 64), (4, 96), (5, 80), (6, 64)))


def noisy(batch: int, side: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(side)
    return torch.randn(batch, 4, side, side, generator=generator), torch.arange(1.0, batch + 1)


def unet() -> Model:
    return Model(UNet(16).eval(), noisy, ((2, 8), (3, 12), (4, 16), (5, 8)))


def rows(batch: int, length: int) -> tuple[Any, ...]:
    return (torch.randn(batch, length, 32, generator=torch.Generator().manual_seed(length)),)


SHARED = {"num_key_value_heads": 2}
MODELS: dict[str, Callable[[], Model]] = {
    "llama": lambda: _of_transformers("Llama", "ForCausalLM", **SHARED),
    "qwen": lambda: _of_transformers("Qwen2", "ForCausalLM", **SHARED),
    "bert": bert,
    "mixtral": lambda: _of_transformers("Mixtral", "ForCausalLM", num_local_experts=4, **SHARED),
    "resnet50": resnet50,
    "diffusion unet": unet,
}
OF_TRANSFORMERS = ("llama", "qwen", "bert", "mixtral")  # they need the extra `models`


def mlp() -> Model:
    return Model(MLP(32, 96).eval(), rows, TEXT)


PLAIN: dict[str, Callable[[], Model]] = {
    "plain llama": plain_llama,
    "small resnet": resnet,
    "mlp": mlp,
}
