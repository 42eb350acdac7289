# SPDX-License-Identifier: Apache-2.0
"""Weights of products as the vendor of a device wants them in memory: asked, not assumed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from dlinfer import kernels


def turned(device: torch.device | str) -> bool:
    """Whether the kernels for a device want a weight [out, in] to lie [in, out] in memory."""
    return kernels.served(torch.device(device).type).weights == "IO"


def laid_out(weight: Tensor) -> Tensor:
    """The same weight [out, in] as the kernels for its device want it; itself, where it is so."""
    if weight.dim() != 2 or not turned(weight.device) or weight.stride(0) == 1:
        return weight
    return weight.t().contiguous().t()


def joined(weights: list[Tensor]) -> Tensor:
    """Weights one below the other as one, as the kernels for their device want it."""
    if weights[0].dim() == 2 and turned(weights[0].device):
        return torch.cat([weight.t() for weight in weights], 1).t()
    return torch.cat(weights)


def lay_out(model: nn.Module, products: Collection[nn.Module]) -> Callable[[], None]:
    """Lays out the weights of a model's products that no other layer of it reads, in place.

    The result makes them plain again, each with memory of its own.
    """
    own = set(map(id, products))
    others = {id(p) for m in model.modules() if id(m) not in own for p in m._parameters.values()}
    held = (module._parameters.get("weight") for module in products)
    weights = [weight for weight in held if weight is not None and id(weight) not in others]
    _exchange(weights, laid_out)
    return functools.partial(_exchange, weights, Tensor.contiguous)


@torch.no_grad()
def _exchange(weights: Collection[Tensor], made: Callable[[Tensor], Tensor]) -> None:
    for weight in weights:
        with torch.inference_mode(weight.is_inference()):  # plain tensors stay such, whoever asks
            weight.data = made(weight.data)
