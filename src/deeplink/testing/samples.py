# SPDX-License-Identifier: Apache-2.0
"""Samples of torch's op_db: moved to a device, called there, compared with the CPU's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

SEED = 20

# Ops that return uninitialised memory: only dtype and shape can be compared.
UNINITIALISED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
    "resize_as_".split()
)
# Positional arguments whose tensors the host reads, on CUDA too.
STAYS_ON_HOST = MappingProxyType(
    {
        "tensor_split": frozenset({0}),
        "foreach_addcmul_tensor": frozenset({2}),
        "foreach_addcdiv_tensor": frozenset({2}),
    }
)

PLACES = ("cpu", "cuda", "cuda:0")

Bound = Callable[[torch.dtype], float | None]


@dataclass(frozen=True)
class Run:
    """One forward call: outputs, inputs that require gradients,
    whether it generated random numbers.
    """

    outputs: Any
    leaves: list[Tensor]
    random: bool


def call(op: Any, sample: Any, device: str) -> Run:
    """Call the op with a copy of the sample on the device."""
    move = Mover(device)
    host = STAYS_ON_HOST.get(op.name, frozenset())
    value = move(sample.input)
    args = [arg if at in host else move(arg) for at, arg in enumerate(sample.args)]
    kwargs = {
        key: device if key == "device" and arg is not None else move(arg)
        for key, arg in sample.kwargs.items()
    }
    if op.is_factory_function:
        kwargs["device"] = device  # some samples leave it out and would stay on the CPU
    draw_from(SEED, device)
    before = torch.get_rng_state()
    outputs = op(value, *args, **kwargs)
    return Run(outputs, move.leaves, not torch.equal(before, torch.get_rng_state()))


def draw_from(seed: int, device: str) -> None:
    """Seed the CPU and one device, much faster than torch.manual_seed,
    which seeds every backend.
    """
    torch.default_generator.manual_seed(seed)
    if torch.device(device).type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed_all(seed)


def seeds(sample: Any, run: Run) -> list[Tensor]:
    """Create one random gradient for each differentiable output."""
    wanted = _differentiable(sample, run)
    for kind in {out.device.type for out in wanted} or {"cpu"}:
        draw_from(SEED, kind)
    return [torch.randn_like(out) for out in wanted]


def gradients(sample: Any, run: Run, given: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the inputs for given gradients of the outputs;
    empty if there are none.
    """
    roots = _differentiable(sample, run)
    if not roots or not run.leaves:
        return ()
    return torch.autograd.grad(roots, run.leaves, given, allow_unused=True)


def _differentiable(sample: Any, run: Run) -> list[Tensor]:
    found = pytree.tree_leaves(sample.output_process_fn_grad(run.outputs))
    return [out for out in found if isinstance(out, Tensor) and out.requires_grad]


class Mover:
    """Copies arguments to a device; tensors that share storage share it there as well."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.leaves: list[Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._one, value)

    def _one(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return self._other(value)
        with torch.no_grad():
            moved = self._tensor(value.detach())
        if value.requires_grad:
            self.leaves.append(moved.requires_grad_())
        return moved

    def _other(self, value: Any) -> Any:
        # samples name the GPU as well, where there is one
        if isinstance(value, torch.device) or (isinstance(value, str) and value in PLACES):
            return torch.device(self.device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(SEED)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        simple = type(tensor) is Tensor and tensor.layout == torch.strided
        if not simple or tensor.is_quantized or tensor.device.type != "cpu":
            moved = tensor.to(self.device)
            return moved.clone() if moved is tensor else moved
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            copied = data.clone() if self.device == "cpu" else data.to(self.device)
            self._storages[storage._cdata] = copied.untyped_storage()
        return torch.empty(0, dtype=tensor.dtype, device=self.device).set_(
            self._storages[storage._cdata],
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )


def compare(
    actual: Any, expected: Any, device: str, exact: bool, bound: Bound = lambda dtype: None
) -> None:
    """Raise AssertionError if the device's result differs from the CPU's; values only if `exact`.

    `bound` returns the tolerance of a dtype, or None for torch's default. Python numbers are keyed
    up
    by their torch dtype.
    """
    got, shape = pytree.tree_flatten(actual)
    want, wanted_shape = pytree.tree_flatten(expected)
    if shape != wanted_shape:
        raise AssertionError(f"result is {shape}, the CPU's is {wanted_shape}")
    for mine, cpu in zip(got, want, strict=True):
        if isinstance(cpu, Tensor):
            _compare_tensors(mine, cpu, device, exact, bound)
        elif exact and isinstance(cpu, bool | int | str | torch.dtype | torch.Size):
            _equal("result", mine, cpu)
        elif exact and isinstance(cpu, float | complex):
            near = bound(torch.float64 if isinstance(cpu, float) else torch.complex128)
            torch.testing.assert_close(mine, cpu, rtol=near, atol=near, equal_nan=True)


def _compare_tensors(actual: Any, expected: Tensor, device: str, exact: bool, bound: Bound) -> None:
    if not isinstance(actual, Tensor):
        raise AssertionError(f"result is {type(actual).__name__}, the CPU's is a tensor")
    if actual.device.type != torch.device(device).type:
        raise AssertionError(f"result is on {actual.device}, not on {device}")
    for name in ("dtype", "layout", "shape"):
        _equal(name, getattr(actual, name), getattr(expected, name))
    if exact:
        near = bound(expected.dtype)
        host = actual.detach().cpu().resolve_conj().resolve_neg()
        wanted = expected.detach().resolve_conj().resolve_neg()
        torch.testing.assert_close(host, wanted, rtol=near, atol=near, equal_nan=True)


def _equal(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{what} is {actual!r}, the CPU's is {expected!r}")
