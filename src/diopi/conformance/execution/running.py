# SPDX-License-Identifier: Apache-2.0
"""One call on one device: copies of the arguments in their layout, results, final arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.testing.samples import PLACES, STAYS_ON_HOST, draw_from
from diopi.conformance.cases.sample import Callee, Sample

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


@dataclass(frozen=True)
class Run:
    """The outcome of one call. `given` are its tensor arguments afterwards,
    in the sample's order.
    """

    result: Any
    given: list[Tensor]
    drew: bool = False  # whether it used the CPU's random numbers
    graded: Any = None  # the differentiable part of the result

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(self.result) if isinstance(leaf, Tensor)]

    @property
    def roots(self) -> list[Tensor]:
        """Return the differentiable results."""
        found = pytree.tree_leaves(self.graded)
        return [out for out in found if isinstance(out, Tensor) and out.requires_grad]

    @property
    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in self.given if tensor.requires_grad]

    def gradients(self, seeds: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of the arguments that require one, for one gradient of each root."""
        roots, leaves = self.roots, self.leaves
        if not roots or not leaves:
            return []
        given = [s.to(r.device, r.dtype) for s, r in zip(seeds, roots, strict=True)]
        found = torch.autograd.grad(roots, leaves, given, allow_unused=True, retain_graph=True)
        return list(found)


def run(
    callee: Callee,
    sample: Sample,
    device: str = "cpu",
    *,
    wide: bool = False,
    dense: bool = False,
    function: Callable[..., Any] | None = None,
    extra: dict[str, Any] | None = None,
    seed: int = 20,
    grad: bool = True,
) -> Run:
    """Run the call on a copy of the sample.

    `wide`: in float64; `dense`: with each tensor contiguous; `function` replaces the callee's.
    """
    move = _Mover(device, wide, grad, dense)
    host = STAYS_ON_HOST.get(callee.name, frozenset())
    args = [a if i - 1 in host else move(a) for i, a in enumerate(sample.args)]
    kwargs = {
        key: device if key == "device" and arg is not None else move(arg)
        for key, arg in sample.kwargs.items()
    }
    if callee.factory:
        kwargs["device"] = device  # some samples omit it and would stay on the CPU
    draw_from(seed, device)
    before = torch.get_rng_state()
    with _quiet(), _default(wide), torch.set_grad_enabled(grad):
        result = (function or callee.function)(*args, **kwargs, **(extra or {}))
    drew = not torch.equal(before, torch.get_rng_state())
    graded = sample.graded(result) if grad else result
    return Run(result, move.moved, drew, graded)


def rounded(sample: Sample, casts: Mapping[torch.dtype, torch.dtype]) -> Sample:
    """Copy the sample with values rounded to coarser types; dtypes and strides are unchanged."""
    move = _Mover("cpu", False, True, False)
    args, kwargs = move(sample.args), move(sample.kwargs)
    for (_, dtype), flat in move.copies.items():
        if dtype in casts:
            flat.copy_(flat.to(casts[dtype]))
    return replace(sample, args=tuple(args), kwargs=kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of an op are not compared
        yield


@contextmanager
def _default(wide: bool) -> Iterator[None]:
    """Set the default dtype to float64 inside the block,
    which also converts integers to float64.
    """
    before = torch.get_default_dtype()
    if wide:
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Mover:
    """Copies arguments; sharing of storage and strides are preserved."""

    def __init__(self, device: str, wide: bool, grad: bool, dense: bool) -> None:
        self.moved: list[Tensor] = []
        self._device, self._wide, self._grad, self._dense = device, wide, grad, dense
        self.copies: dict[tuple[int, torch.dtype], Tensor] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._one, value)

    def _one(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            with torch.no_grad():
                made = self._tensor(value.detach())
            if value.requires_grad and self._grad:
                made.requires_grad_()
            self.moved.append(made)
            return made
        if isinstance(value, torch.device) or (isinstance(value, str) and value in PLACES):
            return torch.device(self._device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self._device).manual_seed(20)
        if isinstance(value, torch.dtype) and self._wide:
            return WIDE.get(value, value)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        dtype = WIDE.get(tensor.dtype, tensor.dtype) if self._wide else tensor.dtype
        simple = type(tensor) is Tensor and tensor.layout == torch.strided
        if not simple or tensor.is_quantized or tensor.device.type != "cpu":
            return tensor.to(self._device, dtype, copy=True)
        if self._dense:
            return tensor.to(self._device, dtype).clone(memory_format=torch.contiguous_format)
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype
        if key not in self.copies:
            count = storage.nbytes() // tensor.itemsize
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
            self.copies[key] = flat.to(self._device, dtype, copy=True)
        flat = self.copies[key]
        return torch.empty(0, dtype=dtype, device=self._device).set_(
            flat.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def host(tensor: Tensor) -> Tensor:
    """Return a plain CPU tensor with the tensor's values."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    # torch cannot compare complex32
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal, NaN being equal to NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if torch.equal(first, second):
        return True
    if not (first.is_floating_point() or first.is_complex()):
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())
