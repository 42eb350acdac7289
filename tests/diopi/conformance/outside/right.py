"""Correct kernels that compute otherwise than torch: other algorithms, other orders of summation.

The name is `operator__how`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LOG2E = 1.4426950408889634


def _real(x: Tensor) -> torch.dtype:
    """The type of a floating result."""
    return x.dtype if x.is_floating_point() else torch.float32


def _total(x: Tensor) -> torch.dtype:
    """The type of a sum."""
    return x.dtype if x.is_floating_point() else torch.int64


def _array(x: Tensor) -> np.ndarray:
    """The values for numpy, which has no bfloat16."""
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _tensor(values: np.ndarray | np.generic, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.array(values)).to(dtype)


def _lines(x: Tensor, dim: int) -> Tensor:
    """The elements along one dimension as the last one."""
    return x.movedim(dim, -1) if x.dim() else x.reshape(1)


def _back(x: Tensor, dim: int, rank: int) -> Tensor:
    return x.movedim(-1, dim) if rank else x.reshape(())


# softmax and log_softmax


def softmax__in_two_passes(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    wide = x.float() if x.dtype != torch.float64 else x
    powers = (wide - wide.amax(dim, True)).exp()
    return (powers / powers.sum(dim, True)).to(x.dtype)


def softmax__online(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    lines = _lines(x, dim).double()
    most = torch.full(lines.shape[:-1], -math.inf, dtype=torch.float64)
    total = torch.zeros_like(most)
    for part in lines.split(64, -1):
        higher = torch.maximum(most, part.amax(-1))
        total = total * (most - higher).exp() + (part - higher.unsqueeze(-1)).exp().sum(-1)
        most = higher
    found = (lines - most.unsqueeze(-1)).exp() / total.unsqueeze(-1)
    return _back(found.to(x.dtype), dim, x.dim())


def softmax__by_powers_of_two(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    wide = x.double()
    powers = ((wide - wide.amax(dim, True)) * LOG2E).exp2()
    return (powers * powers.sum(dim, True).reciprocal()).to(x.dtype)


def softmax__in_numpy(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    values = _array(x)
    powers = np.exp(values - values.max(dim, keepdims=True)) if x.dim() else np.ones(())
    return _tensor(powers / (powers.sum(dim, keepdims=True) if x.dim() else 1.0), x.dtype)


def log_softmax__by_the_logarithm_of_the_sum(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    wide = x.double()
    shifted = wide - wide.amax(dim, True)
    return (shifted - shifted.exp().sum(dim, True).log()).to(x.dtype)


# Sums


def sum__halves(x: Tensor) -> Tensor:
    values = x.reshape(-1).to(torch.float64 if x.is_floating_point() else torch.int64)
    while values.numel() > 1:
        half = values.numel() // 2
        rest = values[2 * half :]
        values = torch.cat([values[:half] + values[half : 2 * half], rest])
    return (values if values.numel() else values.new_zeros(1)).reshape(()).clone().to(_total(x))


def sum__as_a_product_with_ones(x: Tensor) -> Tensor:
    values = x.reshape(-1).double()
    return values.dot(torch.ones_like(values)).to(_total(x))


def sum__of_running_sums(x: Tensor) -> Tensor:
    if not x.numel():
        return torch.zeros((), dtype=_total(x))
    wide = torch.float64 if x.is_floating_point() else torch.int64
    return x.reshape(-1).to(wide).cumsum(0)[-1].to(_total(x)).clone()


def sum__in_float32_by_blocks(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return _tensor(np.add.reduce(_array(x).reshape(-1), dtype=np.int64), torch.int64)
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    parts = [part.to(kind) for part in x.reshape(-1).split(256)]
    sums = [part.dot(torch.ones_like(part)) for part in parts]
    found = torch.zeros((), dtype=kind)
    for one in sums:
        found = found + one
    return found.to(x.dtype)


def mean__of_a_product(x: Tensor) -> Tensor:
    values = x.reshape(-1).double()
    weights = torch.full_like(values, 1.0) / max(1, values.numel())
    return values.dot(weights).to(x.dtype) if x.numel() else torch.full((), math.nan).to(x.dtype)


def cumsum__in_numpy(x: Tensor, dim: int) -> Tensor:
    wide = np.float64 if x.is_floating_point() else np.int64
    return _tensor(_array(x).astype(wide).cumsum(dim).reshape(x.shape), _total(x))


def cumsum__by_blocks_with_a_carry(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        return torch.zeros(x.shape, dtype=_total(x))
    lines = _lines(x, dim).double()
    carry = torch.zeros(*lines.shape[:-1], 1, dtype=torch.float64)
    found = []
    for part in lines.split(128, -1):
        size = part.shape[-1]
        found.append(part @ torch.ones(size, size, dtype=part.dtype).triu() + carry)
        carry = found[-1][..., -1:]
    return _back(torch.cat(found, -1).to(_total(x)), dim, x.dim()).contiguous()


def amax__by_sorting(x: Tensor) -> Tensor:
    return torch.sort(x.reshape(-1)).values[-1].clone()


# Products


def mm__by_rows_and_columns(a: Tensor, b: Tensor) -> Tensor:
    kind = torch.float64 if a.is_floating_point() else torch.int64
    found = torch.zeros(a.shape[0], b.shape[1], dtype=kind)
    for k in range(a.shape[1]):
        found += a[:, k : k + 1].to(kind) * b[k : k + 1].to(kind)
    return found.to(a.dtype)


def mm__split_along_the_inner_dimension(a: Tensor, b: Tensor) -> Tensor:
    kind = torch.float32 if a.is_floating_point() and a.dtype != torch.float64 else torch.float64
    found = torch.zeros(a.shape[0], b.shape[1], dtype=kind)
    for one, other in zip(a.split(128, 1), b.split(128, 0), strict=True):
        found += (one.to(kind).unsqueeze(2) * other.to(kind)).sum(1)
    return found.to(a.dtype)


def mm__in_numpy(a: Tensor, b: Tensor) -> Tensor:
    return _tensor(_array(a).astype(np.float64) @ _array(b).astype(np.float64), a.dtype)


def bmm__one_by_one(a: Tensor, b: Tensor) -> Tensor:
    found = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=a.dtype)
    for at in range(a.shape[0]):
        found[at] = (a[at].double().unsqueeze(2) * b[at].double()).sum(1).to(a.dtype)
    return found


def linear__by_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = (x.double().unsqueeze(-2) * weight.double()).sum(-1)
    found = found if bias is None else found + bias.double()
    return (found if weight.dim() > 1 else found.squeeze(-1)).to(x.dtype)


# Normalisation


def _affine(
    found: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    found = found if weight is None else found * weight.double()
    return (found if bias is None else found + bias.double()).to(dtype)


def layer_norm__in_two_passes(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(-len(normalized_shape), 0))
    wide = x.double()
    mean = wide.mean(dims, True)
    rstd = ((wide - mean) ** 2).mean(dims, True).add(eps).rsqrt()
    found = _affine((wide - mean) * rstd, weight, bias, x.dtype)
    return found, mean.to(x.dtype), rstd.to(x.dtype)


def layer_norm__in_numpy(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(-len(normalized_shape), 0))
    values = _array(x)
    if not x.numel():
        shape = (*x.shape[: x.dim() - len(axes)], *(1 for _ in axes))
        empty = torch.full(shape, math.nan, dtype=x.dtype)
        return torch.empty_like(x), empty, empty.clone()
    mean, rstd = (
        values.mean(axes, keepdims=True),
        1 / np.sqrt(values.var(axes, keepdims=True) + eps),
    )
    found = _affine(torch.from_numpy((values - mean) * rstd), weight, bias, x.dtype)
    return found, _tensor(mean, x.dtype), _tensor(rstd, x.dtype)


# Element by element


def add__subtracts_the_opposite(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype == torch.bool and y.dtype == torch.bool:
        return x | y
    return x - -y if y.dtype != torch.bool else x - -y.to(x.dtype)


def add__in_numpy(x: Tensor, y: Tensor) -> Tensor:
    return _tensor(_array(x) + _array(y), torch.promote_types(x.dtype, y.dtype))


def mul__in_numpy(x: Tensor, y: Tensor) -> Tensor:
    return _tensor(_array(x) * _array(y), torch.promote_types(x.dtype, y.dtype))


def mul__of_the_broadcast(x: Tensor, y: Tensor) -> Tensor:
    kind = torch.promote_types(x.dtype, y.dtype)
    x, y = torch.broadcast_tensors(x.to(kind), y.to(kind))
    return x & y if kind == torch.bool else torch.addcmul(-torch.zeros_like(x), x, y)


def relu__as_a_clamp(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def relu__chooses(x: Tensor) -> Tensor:
    return torch.where(x < 0, torch.zeros_like(x), x)


def relu__in_numpy(x: Tensor) -> Tensor:
    return _tensor(np.maximum(_array(x), 0), x.dtype)


def neg__times_minus_one(x: Tensor) -> Tensor:
    return x * -1


def abs__by_the_sign_bit(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x.copysign(torch.ones((), dtype=x.dtype))
    return torch.maximum(x, -x) if x.dtype != torch.uint8 else x.clone()


def maximum__chooses(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return torch.where((x > y) | (x != x), x, y)


def clamp__in_two_steps(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    found = x
    for bound, below in ((min, True), (max, False)):
        if isinstance(bound, Tensor):
            kind = torch.promote_types(found.dtype, bound.dtype)
            found, bound = torch.broadcast_tensors(found.to(kind), bound.to(kind))
            outside = (found < bound if below else found > bound) | bound.isnan()
            found = torch.where(outside & ~found.isnan(), bound, found)
        elif bound is not None:
            raise NotImplementedError("bounds are tensors")
    return found.clone()


def where__by_assignment(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    kind = torch.promote_types(x.dtype, y.dtype)
    condition, x, y = torch.broadcast_tensors(condition, x.to(kind), y.to(kind))
    found = y.clone(memory_format=torch.contiguous_format)
    found[condition.bool()] = x[condition.bool()]
    return found


# Functions


def exp__by_powers_of_two(x: Tensor) -> Tensor:
    return (x.double() * LOG2E).exp2().to(_real(x))


def exp__in_numpy(x: Tensor) -> Tensor:
    with np.errstate(all="ignore"):
        return _tensor(np.exp(_array(x).astype(np.float64)), _real(x))


def sigmoid__by_the_sign(x: Tensor) -> Tensor:
    wide = x.double()
    power = torch.exp(-torch.abs(wide))
    return torch.where(wide < 0, power / (1 + power), 1 / (1 + power)).to(_real(x))


def tanh__by_expm1(x: Tensor) -> Tensor:
    wide = x.double()
    less = torch.expm1(-2 * torch.abs(wide))
    return (-less / (2 + less)).copysign(wide).to(_real(x))


def silu__times_sigmoid(x: Tensor) -> Tensor:
    wide = x.double()
    return torch.where(wide == -math.inf, math.nan, wide / (1 + torch.exp(-wide))).to(x.dtype)


def gelu__by_erfc(x: Tensor) -> Tensor:
    wide = x.double()
    return (wide * 0.5 * torch.erfc(-wide / math.sqrt(2))).to(x.dtype)


def gelu__by_erf_in_float32(x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def sqrt__in_numpy(x: Tensor) -> Tensor:
    with np.errstate(all="ignore"):
        return _tensor(np.sqrt(_array(x).astype(np.float64)), _real(x))


# Indices


def index_select__row_by_row(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.dim():
        return x.reshape(1)[index.reshape(-1)].reshape(())
    return x.movedim(dim, 0)[index.reshape(-1)].movedim(0, dim).contiguous()


def embedding__by_assignment(weight: Tensor, indices: Tensor) -> Tensor:
    found = torch.empty(*indices.shape, weight.shape[1], dtype=weight.dtype)
    found[...] = weight[indices.reshape(-1).long()].reshape(found.shape)
    return found


def topk__by_sorting(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    if not x.dim():
        return values, places
    return values.narrow(dim, 0, k).contiguous(), places.narrow(dim, 0, k).contiguous()


def cat__into_one_buffer(tensors: list[Tensor], dim: int = 0) -> Tensor:
    kept = [one for one in tensors if one.shape != (0,)] or tensors[:1]
    kind = tensors[0].dtype
    for one in tensors:
        kind = torch.promote_types(kind, one.dtype)
    shape = list(kept[0].shape)
    shape[dim] = sum(one.shape[dim] for one in kept)
    found, at = torch.empty(shape, dtype=kind), 0
    for one in kept:
        found.narrow(dim, at, one.shape[dim]).copy_(one)
        at += one.shape[dim]
    return found


def flip__by_indices(x: Tensor, dims: list[int]) -> Tensor:
    found = x.clone(memory_format=torch.contiguous_format)
    for dim in dims if x.dim() else ():
        found = found.index_select(dim, torch.arange(x.shape[dim]).sub(x.shape[dim] - 1).neg())
    return found
