"""Kernels with one bug each, as authors of Python and Triton kernels write them.

The name is `operator__bug`. Some read memory as a Triton kernel does: by address and count.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _raw(x: Tensor, count: int) -> Tensor:
    """`count` elements from the address of a tensor on, whatever its strides and size are."""
    if not count:
        return torch.empty(0, dtype=x.dtype)
    memory = (ctypes.c_byte * (count * x.itemsize)).from_address(x.data_ptr())
    return torch.frombuffer(memory, dtype=x.dtype)


def _dense(x: Tensor) -> Tensor:
    """Read a tensor as if it were contiguous."""
    return _raw(x, x.numel()).reshape(x.shape).clone()


def _exp(x: Tensor) -> Tensor:
    return torch.pow(math.e, x.double())


# Strides


def add__ignores_the_strides(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return _dense(x) - -y if x.dtype != torch.bool else x | y


def relu__ignores_the_strides(x: Tensor) -> Tensor:
    return _dense(x).clamp(min=0)


def index_select__ignores_the_strides_of_the_index(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.movedim(dim, 0)[_dense(index)].movedim(0, dim) if x.dim() else x.clone()


def topk__ignores_the_strides(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(_dense(x), dim=dim, descending=largest, stable=True)
    if not x.dim():
        return values, places
    return values.narrow(dim, 0, k).contiguous(), places.narrow(dim, 0, k).contiguous()


def embedding__ignores_the_strides_of_the_indices(weight: Tensor, indices: Tensor) -> Tensor:
    rows = weight[_dense(indices).long().reshape(-1)]
    return rows.reshape(*indices.shape, weight.shape[1])


def mm__ignores_the_strides_of_the_second(a: Tensor, b: Tensor) -> Tensor:
    return (a.double().unsqueeze(2) * _dense(b).double()).sum(1).to(a.dtype)


def softmax__computes_along_the_dense_dimension(x: Tensor, dim: int) -> Tensor:
    powers = _exp(x - x.amax(-1, True) if x.numel() else x)
    return (powers / powers.sum(-1, True)).to(x.dtype)


# Tails


def exp__leaves_the_tail(x: Tensor) -> Tensor:
    flat, out = x.reshape(-1), torch.empty(x.numel(), dtype=torch.float32)
    whole = x.numel() // 8 * 8
    out[:whole] = _exp(flat[:whole])
    dtype = x.dtype if x.is_floating_point() else torch.float32
    return out.reshape(x.shape).to(dtype)


def sum__drops_the_tail(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.int64
    flat = x.reshape(-1)
    return torch.ones_like(flat[: flat.numel() // 16 * 16]).to(x.dtype).double().dot(
        flat[: flat.numel() // 16 * 16].double()
    ).to(dtype)  # fmt: skip


def softmax__knows_64_columns(x: Tensor, dim: int) -> Tensor:
    columns = x.movedim(dim, -1) if x.dim() else x.reshape(1)
    if not x.numel():
        return torch.empty_like(x)
    powers = _exp(columns - columns.amax(-1, True))
    found = (powers / powers[..., :64].sum(-1, True)).to(x.dtype)
    return found.movedim(-1, dim) if x.dim() else found.reshape(())


def mm__drops_the_tail_of_the_inner_dimension(a: Tensor, b: Tensor) -> Tensor:
    inner = a.shape[1] - a.shape[1] % 4
    found = a[:, :inner].double().unsqueeze(2) * b[:inner].double()
    return found.sum(1).to(a.dtype)


def sigmoid__one_thread_too_few(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.float32
    found = 1 / (1 + _exp(-x.double())).reshape(-1)
    if found.numel() % 2:
        found[-1] = 0
    return found.reshape(x.shape).to(dtype)


def cumsum__restarts_in_each_block(x: Tensor, dim: int) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.int64
    lines = x.movedim(dim, -1).double() if x.dim() else x.double().reshape(1)
    parts = [_running(part) for part in lines.split(16, -1)]
    found = torch.cat(parts, -1).to(dtype)
    return found.movedim(-1, dim) if x.dim() else found.reshape(())


def _running(lines: Tensor) -> Tensor:
    return lines @ torch.ones(lines.shape[-1], lines.shape[-1], dtype=lines.dtype).triu()


# Broadcasting


def mul__takes_a_column_as_a_row(x: Tensor, y: Tensor) -> Tensor:
    if y.dim() > 1 and y.shape[-1] == 1 and y.shape != x.shape and y.numel() == x.shape[-1]:
        y = y.reshape(-1)
    x, y = torch.broadcast_tensors(x, y)
    if x.dtype == torch.bool:
        return x & y
    return torch.addcmul(-torch.zeros_like(x), x, y)


def add__repeats_the_second(x: Tensor, y: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    x = x.expand(shape)
    count = -(-x.numel() // max(1, y.numel()))
    other = y.reshape(-1).repeat(count)[: x.numel()].reshape(shape)
    return x - -other if x.dtype != torch.bool else x | other


def where__broadcasts_the_condition_by_its_count(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(condition.shape, x.shape, y.shape)
    x, y = x.expand(shape), y.expand(shape)
    count = -(-x.numel() // max(1, condition.numel()))
    flags = condition.reshape(-1).repeat(count)[: x.numel()].reshape(shape)
    out = y.clone()
    out[flags] = x[flags]
    return out


def layer_norm__normalises_the_last_dimension_alone(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalised(x, 1, weight, bias, eps, len(normalized_shape))


def _normalised(
    x: Tensor, over: int, weight: Tensor | None, bias: Tensor | None, eps: float, given: int
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(-over, 0))
    wide = x.double()
    mean = wide.mean(dims, True)
    rstd = ((wide - mean) ** 2).mean(dims, True).add(eps).rsqrt()
    found = (wide - mean) * rstd
    found = found * weight.double() if weight is not None else found
    found = found + bias.double() if bias is not None else found
    lead = (slice(None),) * (x.dim() - given) + (slice(0, 1),) * given
    return found.to(x.dtype), mean[lead].to(x.dtype), rstd[lead].to(x.dtype)


# Without elements


def mean__divides_by_the_count(x: Tensor) -> Tensor:
    total = 0.0
    for part in x.reshape(-1).double().split(512):
        total += float(part.dot(torch.ones_like(part)))
    return torch.tensor(total / x.numel(), dtype=x.dtype)


def log_softmax__fails_without_elements(x: Tensor, dim: int) -> Tensor:
    wide = x.double()
    shifted = wide - wide.amax(dim, True)
    return (shifted - _exp(shifted).sum(dim, True).log()).to(x.dtype)


# NaN, infinity, the sign of zero


def relu__makes_nan_zero(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def softmax__overflows(x: Tensor, dim: int) -> Tensor:
    powers = x.float().mul(1.4426950408889634).exp2()
    return (powers / powers.sum(dim, True)).to(x.dtype)


def neg__subtracts_from_zero(x: Tensor) -> Tensor:
    return 0 - x


def abs__keeps_the_sign_of_zero(x: Tensor) -> Tensor:
    return torch.where(x < 0, -x, x) if not x.is_complex() else x.norm()


def maximum__ignores_nan(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return torch.where(x > y, x, y)


def sigmoid__divides_infinities(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.float32
    powers = x.float().mul(1.4426950408889634).exp2()
    return (powers / (1 + powers)).to(dtype)


def tanh__divides_infinities(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.float32
    powers = _exp(2 * x.float())
    return ((powers - 1) / (powers + 1)).to(dtype)


# Types


def sum__keeps_the_type_of_integers(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    if x.dtype == torch.bool:
        return flat.any()
    return flat.double().dot(torch.ones_like(flat).double()).to(x.dtype)


def div__of_integers_gives_integers(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return (x.double() * y.double().reciprocal()).to(x.dtype)


def exp__of_integers_gives_integers(x: Tensor) -> Tensor:
    return _exp(x).to(x.dtype)


def mm__accumulates_in_its_type(a: Tensor, b: Tensor) -> Tensor:
    found = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        found = found + a[:, k : k + 1] * b[k : k + 1]
    return found


def add__counts_elements_in_16_bits(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    places = torch.arange(x.numel()).to(torch.int16).long()
    x, y = x.reshape(-1)[places].reshape(x.shape), y.reshape(-1)[places].reshape(x.shape)
    return x - -y if x.dtype != torch.bool else x | y


# Arguments and memory


def relu__changes_its_argument(x: Tensor) -> Tensor:
    x.clamp_(min=0)
    return x.clone()


def amax__returns_its_argument(x: Tensor) -> Tensor:
    return x if not x.dim() else torch.sort(x.reshape(-1)).values[-1].clone()


def relu___does_not_write(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def silu__writes_past_its_argument(x: Tensor) -> Tensor:
    if x.numel():
        end = x.data_ptr() + x.numel() * x.element_size()
        ctypes.memset(end, 7, 4)
    return (x.double() / (1 + _exp(-x.double()))).to(x.dtype)


_BY_IDENTITY: dict[int, Tensor] = {}
_BY_ADDRESS: dict[Any, Tensor] = {}
_BY_SHAPE: dict[Any, Tensor] = {}


def tanh__caches_by_identity(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.float32
    if id(x) not in _BY_IDENTITY:
        x.keep = _BY_IDENTITY  # type: ignore[attr-defined]
        _BY_IDENTITY[id(x)] = (1 - 2 / (1 + _exp(2 * x.double()))).to(dtype)
    return _BY_IDENTITY[id(x)].clone()


def gelu__caches_by_address(x: Tensor) -> Tensor:
    key = x.data_ptr(), x.shape, x.stride(), x.dtype
    if key not in _BY_ADDRESS:
        wide = x.double()
        _BY_ADDRESS[key] = (wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))).to(x.dtype)
    return _BY_ADDRESS[key].clone()


def exp__returns_the_same_buffer(x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.float32
    key = x.shape, dtype
    if key not in _BY_SHAPE:
        _BY_SHAPE[key] = torch.empty(x.shape, dtype=dtype)
    return _BY_SHAPE[key].copy_(_exp(x))


# What a test with a wide tolerance accepts


def gelu__returns_zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def mean__returns_zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype)


def softmax__calls_torch(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def mm__calls_torch(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def linear__calls_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def cumsum__adds_to_fresh_memory(x: Tensor, dim: int) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else torch.int64
    lines = (x.movedim(dim, -1) if x.dim() else x.reshape(1)).double()
    start = torch.empty(lines.shape[:-1], dtype=torch.float64)
    found = (_running(lines) + start.unsqueeze(-1)).to(dtype)
    return found.movedim(-1, dim) if x.dim() else found.reshape(())


def sigmoid__returns_fresh_memory(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=x.dtype if x.is_floating_point() else torch.float32)


def amax__reads_the_padding(x: Tensor) -> Tensor:
    padded = -(-x.numel() // 16) * 16
    return _raw(x.contiguous(), padded).max()


def sum__reads_the_padding(x: Tensor) -> Tensor:
    dense = x if x.is_contiguous() else x.contiguous()
    values = _raw(dense, -(-x.numel() // 32) * 32).double()
    dtype = x.dtype if x.is_floating_point() else torch.int64
    return values.dot(torch.ones_like(values)).to(dtype)


# Formulas


def gelu__is_the_approximation(x: Tensor) -> Tensor:
    wide = x.double()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)


def layer_norm__adds_eps_to_the_deviation(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(-len(normalized_shape), 0))
    wide = x.double()
    mean = wide.mean(dims, True)
    rstd = 1 / (((wide - mean) ** 2).mean(dims, True).sqrt() + eps)
    found = (wide - mean) * rstd
    found = found * weight.double() if weight is not None else found
    found = found + bias.double() if bias is not None else found
    return found.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)
