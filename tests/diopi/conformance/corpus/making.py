"""Arguments, and what correct kernels and bugs are made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deeplink.judge.formats import FORMATS
from tests.diopi.conformance.corpus.group import Kernel, Make


def normals(*shapes: tuple[int, ...], scale: float = 1.0, shift: float = 0.0) -> Make:
    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift
            for shape in shapes
        )

    return make


def positives(*shapes: tuple[int, ...]) -> Make:
    normal = normals(*shapes)
    return lambda generator: tuple(t.abs() for t in normal(generator))


def truncated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Truncate a float32 result to a half type."""
    digits = FORMATS[dtype].digits
    bits = values.float().contiguous().view(torch.int32)
    return (bits & ~((1 << (24 - digits)) - 1)).view(torch.float32).to(dtype)


def tf32(values: Tensor) -> Tensor:
    bits = values.float().contiguous().view(torch.int32)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


def fast_exp(values: Tensor) -> Tensor:
    return torch.exp2(values.float() * math.log2(math.e))


def rippled_exp(values: Tensor) -> Tensor:
    return values.exp() * (1 + 1e-3 * torch.sin(50 * values))


def hit(values: Tensor) -> Tensor:
    """Change one element by slightly more than rounding."""
    flat = values.clone().reshape(-1)
    at = flat.numel() // 2
    flat[at] = flat[at] * 1.1 + 0.01
    return flat.reshape(values.shape)


def tail_lost(values: Tensor) -> Tensor:
    """The last elements were never written."""
    flat = values.clone().reshape(-1)
    flat[-3:] = 0
    return flat.reshape(values.shape)


def rounded_once(kernel: Kernel) -> Kernel:
    """Compute in float32, rounded once."""
    return lambda *args: kernel(*(a.float() if a.is_floating_point() else a for a in args)).to(
        args[0].dtype
    )


def cut_off(kernel: Kernel) -> Kernel:
    """Compute in float32, truncated instead of rounded."""
    return lambda *args: truncated(
        kernel(*(a.float() if a.is_floating_point() else a for a in args)), args[0].dtype
    )


def after(kernel: Kernel, then: Callable[[Tensor], Tensor]) -> Kernel:
    return lambda *args: then(rounded_once(kernel)(*args))


def common_bugs(kernel: Kernel) -> dict[str, Kernel]:
    """The bugs that any kernel may have."""
    return {
        "truncation": cut_off(kernel),
        "one wrong element": after(kernel, hit),
        "tail not written": after(kernel, tail_lost),
    }


def sequential(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Along the last dimension, one after the other, in a type."""
    total = torch.zeros(x.shape[:-1], dtype=dtype)
    for i in range(x.shape[-1]):
        total = total + x[..., i].to(dtype)
    return total
