"""A vendor that does everything wrong, one op for each way; it is what the suite must survive."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import torch
from torch import Tensor

_KEPT: list[Tensor] = []
_LOST: list[bool] = []


def sin(input: Tensor) -> Tensor:
    """Crashes, but for a transposed input: each crash costs a new process."""
    if input.stride() == tuple(sorted(input.stride(), reverse=True)):
        os.kill(os.getpid(), signal.SIGSEGV)
    return torch.sin(input)


def cos(input: Tensor) -> Tensor:
    """Hangs on a plain input; each time costs a new process."""
    if input.is_contiguous() and input.storage_offset() == 0:
        time.sleep(3600)
    return torch.cos(input)


def sin_out(input: Tensor, *, out: Tensor) -> Tensor:
    """Never called: the functional form crashes first."""
    return out.copy_(torch.sin(input))


def sinh(input: Tensor) -> Tensor:
    """The wrong dtype."""
    return torch.sinh(input).double()


def cosh(input: Tensor) -> Tensor:
    """The wrong shape."""
    return torch.cosh(input).unsqueeze(0)


def tanh(input: Tensor) -> Tensor:
    """Ignores strides: reads the memory as if it were dense."""
    dense = torch.empty(0, dtype=input.dtype).set_(
        input.untyped_storage(), input.storage_offset(), (input.numel(),), (1,)
    )
    return torch.tanh(dense).reshape(input.shape)


def exp_out(input: Tensor, *, out: Tensor) -> Tensor:
    """Writes past its output."""
    out.copy_(torch.exp(input))
    if out.numel():
        end = out.data_ptr() + out.numel() * out.element_size()
        ctypes.memset(end, 1, 4)
    return out


def exp(input: Tensor) -> Tensor:
    return torch.exp(input)


def neg(input: Tensor) -> Tensor:
    """Changes its argument."""
    result = torch.neg(input)
    if input.numel():
        input.view(-1)[0] = 5 if input.is_contiguous() else input.view(-1)[0]
    return result


def abs(input: Tensor) -> Tensor:
    """Return a non-deterministic result: one value sometimes differs by a large amount."""
    result = torch.abs(input)
    if result.numel() and time.perf_counter_ns() % 2:
        result = result + 1
    return result


def sqrt(input: Tensor) -> Tensor:
    """Raises."""
    raise RuntimeError("no such kernel on this chip")


def floor(input: Tensor) -> Tensor:
    """Leaks: keeps what it gave."""
    _KEPT.append(torch.floor(input))
    return _KEPT[-1].clone()


def ceil(input: Tensor) -> Tensor:
    """Assert on the device for dense arguments, after which no call of the process succeeds."""
    if _LOST or (input.is_contiguous() and not input.storage_offset()):
        _LOST.append(True)
        raise RuntimeError("CUDA error: device-side assert triggered")
    return torch.ceil(input)


def log(input: Tensor) -> Any:
    """Return the correct result."""
    return torch.log(input)
