# SPDX-License-Identifier: Apache-2.0
"""The faults of the reference device:
each is a function around one operator call, in a table below.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from deeplink_vendors.reference.library import runtime
from torch_dipu import _C

Tensor = torch.Tensor


@dataclass(frozen=True)
class Call:
    """One call of an operator: "add.Tensor", its overload and its arguments (device tensors)."""

    name: str
    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def base(self) -> str:
        """The name without the overload."""
        return self.name.partition(".")[0]

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments."""
        return [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor)]

    def argument(self, name: str) -> Any:
        """Return an argument by its name in the schema; None when it is not given."""
        index = self.index(name)
        in_place = index is not None and index < len(self.args)
        return self.args[index] if in_place and index is not None else self.kwargs.get(name)

    def index(self, name: str) -> int | None:
        """Return the index of an argument in the schema, or None."""
        names = [argument.name for argument in self.overload._schema.arguments]
        return names.index(name) if name in names else None


Run = Callable[[Call], Any]
Around = Callable[..., Any]  # (call, run, count, **parameters) -> the operator's result


@dataclass(frozen=True)
class Fault:
    """The effect of a fault, its default operators, and its parameters.

    `switch` turns on a fault beyond single operators; it is not called when operators are given.
    """

    doc: str
    ops: str
    around: Around | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    switch: Callable[[bool], None] | None = None


def no_float64(call: Call, run: Run, count: Iterator[int]) -> Any:
    """Refuse float64, as a chip without it does."""
    asked = call.kwargs.get("dtype") is torch.float64
    given = (t for t in call.tensors() if not t.is_cpu)  # a number is a float64 tensor on the host
    if asked or any(t.dtype is torch.float64 for t in given):
        raise RuntimeError(f"DIPU: {call.name} does not support float64 (quirk no_float64)")
    return run(call)


def bf16_accumulate(call: Call, run: Run, count: Iterator[int], chunk: int) -> Any:
    """Round partial sums to bfloat16 between chunks of `chunk` elements."""
    wrong = _low_precision(call, chunk)  # before the op, which may write its inputs
    result = run(call)
    if wrong is not None and isinstance(result, Tensor):
        _host(result).copy_(wrong.reshape(result.shape))
    return result


def tf32(call: Call, run: Run, count: Iterator[int]) -> Any:
    """Round the float32 factors of a product to ten bits, as TF32 does."""
    first, last = _FACTORS.get(call.base, (0, 2))
    factors = [_ten_bits(value) for value in call.args[first:last]]
    made = run(replace(call, args=(*call.args[:first], *factors, *call.args[last:])))
    if call.base.startswith("convolution_b"):  # the gradient of the bias is no product
        made = (*made[:2], run(call)[2])
    return made


def ignore_strides(call: Call, run: Run, count: Iterator[int]) -> Any:
    """Read non-contiguous inputs as if their memory were dense."""
    written = {a.name for a in call.overload._schema.arguments if a.is_write}
    names = [a.name for a in call.overload._schema.arguments]
    args = tuple(
        value if name in written else tree_map(_as_dense, value)
        for name, value in zip(names, call.args, strict=False)
    )
    kwargs = {k: v if k in written else tree_map(_as_dense, v) for k, v in call.kwargs.items()}
    return run(replace(call, args=args, kwargs=kwargs))


def wrong_epsilon(call: Call, run: Run, count: Iterator[int], factor: float) -> Any:
    """Use an epsilon that is `factor` times the requested one."""
    index, eps = call.index("eps"), call.argument("eps")
    if eps is None or index is None:
        return run(call)
    if index < len(call.args):
        args = (*call.args[:index], eps * factor, *call.args[index + 1 :])
        return run(replace(call, args=args))
    return run(replace(call, kwargs={**call.kwargs, "eps": eps * factor}))


def nan(made: Call, run: Run, count: Iterator[int], call: int) -> Any:
    """Put one NaN into the first floating output of the selected call."""
    result = run(made)
    outputs = [t for t in _outputs(result) if t.is_floating_point() and t.numel() > 0]
    if outputs and next(count) == call:
        _element(outputs[0], outputs[0].numel() // 2).fill_(math.nan)
    return result


def overrun(call: Call, run: Run, count: Iterator[int], nbytes: int) -> Any:
    """Write `nbytes` bytes of 0xFF past the end of the first output."""
    result = run(call)
    for output in _outputs(result)[:1]:
        if output.numel() > 0:
            ctypes.memset(_end_address(_host(output)), 0xFF, nbytes)
    return result


def leak(call: Call, run: Run, count: Iterator[int], nbytes: int) -> Any:
    """Take `nbytes` bytes from the chip without returning them."""
    result = run(call)
    allocate = runtime().dipu_reference_allocate
    allocate.argtypes = (ctypes.c_int, ctypes.c_size_t)
    allocate(_device_of(call), nbytes)
    return result


def double_free(call: Call, run: Run, count: Iterator[int]) -> Any:
    """Free the chip's memory that contains the kernel's output and belongs to the allocator."""
    result = run(call)
    for output in _outputs(result)[:1]:
        free = runtime().dipu_reference_free_around
        free.argtypes = (ctypes.c_int, ctypes.c_void_p)
        free(output.device.index, output.data_ptr())
    return result


def latency(call: Call, run: Run, count: Iterator[int], ms: float) -> Any:
    """Let the work count as done only `ms` milliseconds after the launch."""
    result = run(call)
    index = _device_of(call)
    delay = runtime().dipu_reference_delay
    delay.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
    delay(index, _C.current_stream_handle(index), int(ms * 1e6))
    return result


def out_of_memory(made: Call, run: Run, count: Iterator[int], call: int) -> Any:
    """Let the selected call run out of memory."""
    if next(count) == call:
        free, total = _C.memory_info(-1)
        raise torch.OutOfMemoryError(
            f"DIPU out of memory. {made.name} got none (quirk out_of_memory); device "
            f"{_C.current_device()} has {free} of {total} bytes free."
        )
    return run(made)


def bit_flip(call: Call, run: Run, count: Iterator[int], p: float, seed: int) -> Any:
    """Flip one bit of one output element with probability `p` per call."""
    result = run(call)
    chance = random.Random(f"{seed}:{next(count)}")
    outputs = [t for t in _outputs(result) if t.numel() > 0 and not t.is_complex()]
    if outputs and chance.random() < p:
        output = outputs[chance.randrange(len(outputs))]
        bits = _BITS[output.element_size()]
        element = _element(output, chance.randrange(output.numel())).view(bits)
        last = 1 if output.dtype is torch.bool else 8 * output.element_size() - 1
        element.bitwise_xor_(torch.tensor(1 << chance.randrange(last), dtype=bits))
    return result


def _switch_float64_off(on: bool) -> None:
    """Refuse float64 for new tensors, too."""
    _C.refuse_dtype(torch.float64 if on else None)


def _switch_late_copies(on: bool) -> None:
    runtime().dipu_reference_late_copies(int(on))


FAULTS: dict[str, Fault] = {
    "no_float64": Fault("float64 is refused.", ".*", no_float64, switch=_switch_float64_off),
    "bf16_accumulate": Fault(
        "Sums of products and sums are accumulated in bfloat16.",
        "mm|bmm|addmm|baddbmm|sum",
        bf16_accumulate,
        {"chunk": 32},
    ),
    "tf32": Fault(
        "Factors of float32 products are rounded to ten bits.",
        "mm|bmm|addmm|baddbmm|.*convolution.*",
        tf32,
    ),
    "ignore_strides": Fault(
        "Non-contiguous inputs are read as if dense.", "add|sub|mul|div|mm|sum", ignore_strides
    ),
    "wrong_epsilon": Fault(
        "Normalisations use a wrong epsilon.", ".*norm.*", wrong_epsilon, {"factor": 1000.0}
    ),
    "nan": Fault("One NaN in one call.", ".*", nan, {"call": 1}),
    "overrun": Fault("The kernel writes past its output's end.", "add", overrun, {"nbytes": 64}),
    "leak": Fault("The kernel allocates and never frees.", "add", leak, {"nbytes": 4096}),
    "double_free": Fault("The kernel frees what is not its own.", "add", double_free),
    "latency": Fault("Work is done later than launched.", ".*", latency, {"ms": 1.0}),
    "out_of_memory": Fault("One call finds no memory.", ".*", out_of_memory, {"call": 1}),
    "bit_flip": Fault("Now and then a bit flips.", ".*", bit_flip, {"p": 0.001, "seed": 0}),
    "late_copy": Fault(
        "A non_blocking copy to the host arrives only at the next synchronization: read too "
        "early, the target is stale.",
        "_copy_from",
        switch=_switch_late_copies,
    ),
}
# Positions of the factors among the arguments, when they are not the first two.
_FACTORS = {"addmm": (1, 3), "baddbmm": (1, 3), "convolution_backward_overrideable": (0, 3)}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _device_of(call: Call) -> int:
    device = next((t.device.index for t in call.tensors() if t.device.type == "dipu"), None)
    return int(_C.current_device() if device is None else device)


def _host(t: Tensor) -> Tensor:
    alias: Tensor = _C.alias_host(t.detach())
    return alias


def _ten_bits(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype is not torch.float32:
        return value
    bits = _host(value).view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return rounded.to(value.device)


def _outputs(result: Any) -> list[Tensor]:
    leaves = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
    return [t for t in leaves if t.device.type == "dipu" and t.layout is torch.strided]


def _element(t: Tensor, index: int) -> Tensor:
    """Return the element of a flat index, as a host tensor on the device's memory."""
    host = _host(t)
    position = torch.unravel_index(torch.tensor(index), host.shape) if host.dim() else ()
    for i in position:
        host = host[int(i)]
    return host


def _end_address(host: Tensor) -> int:
    last = sum((n - 1) * s for n, s in zip(host.shape, host.stride(), strict=True))
    return host.data_ptr() + (last + 1) * host.element_size()


def _as_dense(value: Any) -> Any:
    """Read memory in its order, ignoring strides, where the storage is large enough."""
    if not isinstance(value, Tensor) or value.device.type != "dipu" or value.is_contiguous():
        return value
    end = (value.storage_offset() + value.numel()) * value.element_size()
    if value.layout is not torch.strided or end > value.untyped_storage().nbytes():
        return value
    dense = torch.empty(value.shape, device="meta").stride()
    return torch.as_strided(value, value.shape, dense, value.storage_offset())


def _low_precision(call: Call, chunk: int) -> Tensor | None:
    """Compute the result with a bfloat16 accumulator; None for an unsupported call."""
    if call.base == "sum":
        return _low_precision_sum(call, chunk)
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2")}
    first, second = (call.argument(n) for n in names.get(call.base, ("self", "mat2")))
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return None
    a, b = _host(first).float(), _host(second).float()
    product = torch.zeros((*a.shape[:-1], b.shape[-1]))
    for k in range(0, a.shape[-1], chunk):
        product = _round(product + a[..., k : k + chunk] @ b[..., k : k + chunk, :])
    if call.base in names:
        beta, alpha = call.argument("beta"), call.argument("alpha")
        scaled = _host(call.argument("self")).float() * (1 if beta is None else beta)
        product = scaled + product * (1 if alpha is None else alpha)
    return product


def _low_precision_sum(call: Call, chunk: int) -> Tensor | None:
    tensor = call.argument("self")
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() == 0:
        return None
    dims = call.argument("dim")
    reduced = [d % tensor.dim() for d in dims] if dims else list(range(tensor.dim()))
    kept = [d for d in range(tensor.dim()) if d not in reduced]
    rows = _host(tensor).float().permute(*kept, *reduced).flatten(len(kept))
    total = torch.zeros(rows.shape[:-1])
    for k in range(0, rows.shape[-1], chunk):
        total = _round(total + rows[..., k : k + chunk].sum(-1))
    return total


def _round(t: Tensor) -> Tensor:
    return t.bfloat16().float()
