# SPDX-License-Identifier: Apache-2.0
"""Weights of products in the memory layout of the device's vendor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from dlinfer import kernels


def transposed(device: torch.device | str) -> bool:
    """Whether the kernels for a device require a weight [out, in] to be [in, out] in memory."""
    return kernels.served(torch.device(device).type).weights == "IO"


def laid_out(weight: Tensor) -> Tensor:
    """Return the weight [out, in] in the layout of its device's kernels; itself, if it has it."""
    if weight.dim() != 2 or not transposed(weight.device) or weight.stride(0) == 1:
        return weight
    return weight.t().contiguous().t()


def joined(weights: list[Tensor]) -> Tensor:
    """Concatenate weights along rows, in the layout of their device's kernels."""
    if weights[0].dim() == 2 and transposed(weights[0].device):
        return torch.cat([weight.t() for weight in weights], 1).t()
    return torch.cat(weights)


def lay_out(model: nn.Module, products: Collection[nn.Module]) -> Callable[[], None]:
    """Convert the weights of a model's products to the layout, in place, unless other layers read
    them.

    The returned function makes them plain again, each in its own memory.
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
        # plain tensors stay plain in inference mode
        with torch.inference_mode(weight.is_inference()):
            weight.data = made(weight.data)
