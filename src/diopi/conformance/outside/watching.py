# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a call of someone else's kernel: margins, fresh memory, calls of torch.

A kernel gets copies of its arguments inside of larger buffers, and fresh memory that holds a
pattern. What it computes must depend on neither. What it calls of torch is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Kernel = Callable[..., Any]
MARGIN = 1024  # bytes before and after a buffer; a multiple of every alignment that kernels need
FRESH = frozenset(
    "aten::empty aten::empty_like aten::empty_strided aten::new_empty aten::new_empty_strided "
    "aten::empty_permuted aten::resize_".split()
)
# Calls that move, create or describe data; every kernel makes some of them.
PLUMBING = frozenset(
    f"aten::{name}"
    for name in (
        "zeros zeros_like ones ones_like full full_like fill_ zero_ copy_ clone _to_copy "
        "contiguous detach item _local_scalar_dense set_ lift_fresh scalar_tensor arange "
        "new_zeros new_full new_ones is_pinned record_stream".split()
    )
)


@dataclass(frozen=True)
class Surroundings:
    """What is around the arguments, and in fresh memory."""

    number: float  # in floating types
    whole: int  # in integers: small, because kernels may use it as an index
    flag: bool


USUAL = Surroundings(float("nan"), 0, False)
OTHER = Surroundings(1.0e4, 1, True)


class Watch:
    """Watches the kernels of one subject; a worker has one."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)  # op -> function
        self.calls = 0  # calls of kernels since `begin`
        self.called: Counter[str] = Counter()  # ATen overloads -> elements of their arguments
        self.elements = 0  # of the arguments of the kernels
        self.overruns: list[str] = []
        self.margin = self.fresh = USUAL
        self.opaque: set[str] = set()  # ops of compiled kernels, whose calls of torch are hidden
        self._direct = False

    def begin(self) -> None:
        """Clear the calls of the previous case."""
        self.calls, self.elements = 0, 0
        self.called, self.overruns = Counter(), []
        self.margin = self.fresh = USUAL

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Give the kernels the arguments themselves inside the block, not copies."""
        self._direct = True
        try:
            yield
        finally:
            self._direct = False

    @contextmanager
    def surrounded(
        self, *, margin: Surroundings = USUAL, fresh: Surroundings = USUAL
    ) -> Iterator[None]:
        """Use other surroundings inside the block."""
        before = self.margin, self.fresh
        self.margin, self.fresh = margin, fresh
        try:
            yield
        finally:
            self.margin, self.fresh = before

    def watched(self, op: str, kernel: Kernel) -> Kernel:
        """Return a kernel that runs in these surroundings."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self._direct:
                return kernel(*args, **kwargs)
            buffers = Buffers(self.margin)
            moved_args, moved_kwargs = buffers.moved(args), buffers.moved(kwargs)
            self.elements += sum(tensor.numel() for tensor in buffers.tensors)
            if op in self.opaque:
                result = kernel(*moved_args, **moved_kwargs)
            else:
                with _Inside(self):
                    result = kernel(*moved_args, **moved_kwargs)
            if where := buffers.outside():
                self.overruns.append(f"{self.names.get(op, op)} wrote {where}")
            return buffers.back(result)

        return call


class _Inside(TorchDispatchMode):
    """Records the calls of torch, and fills fresh memory."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in FRESH:
            if isinstance(result, Tensor):
                _fill(result, self._watch.fresh)
        elif not func.is_view and name not in PLUMBING:
            leaves = pytree.tree_leaves((args, kwargs))
            elements = sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))
            self._watch.called[overload(func)] += elements
        return result


def is_compiled(kernel: Kernel) -> bool:
    """Whether a function is one of torch.compile, which a dispatch mode would disable."""
    return hasattr(kernel, "_torchdynamo_orig_callable") or hasattr(kernel, "_orig_mod")


def overload(func: Any) -> str:
    """Return the name of an overload as ops list it: aten::add.Tensor."""
    return str(func).replace(".", "::", 1).removesuffix(".default")


def _fill(tensor: Tensor, around: Surroundings) -> None:
    """Fill all memory of a new tensor, whatever its strides are."""
    if tensor.layout != torch.strided or not tensor.untyped_storage().nbytes():
        return
    if tensor.device.type == "meta" or tensor.is_quantized:
        return
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    flat = tensor.detach().as_strided((count,), (1,), 0)
    flat.fill_(_value(tensor.dtype, around))


def _value(dtype: torch.dtype, around: Surroundings) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return around.number
    return around.flag if dtype == torch.bool else around.whole


@dataclass(frozen=True)
class _Buffer:
    """The copy of a storage between two margins."""

    original: Tensor  # flat, all of the storage
    flat: Tensor  # the copy with its margins
    margin: int  # elements before and after
    given: Tensor  # the copy alone, before the call
    number: int  # place of the first argument in it


class Buffers:
    """Copies of arguments inside of larger buffers; sharing of storage and strides are kept."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._buffers: dict[tuple[int, torch.dtype], _Buffer] = {}
        self.tensors: list[Tensor] = []

    def moved(self, values: Any) -> Any:
        return pytree.tree_map_only(Tensor, self._one, values)

    def _one(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        if not _plain(tensor):
            return tensor
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype
        if key not in self._buffers:
            self._buffers[key] = self._buffer(tensor, len(self.tensors) - 1)
        made = self._buffers[key]
        place = tensor.storage_offset() + made.margin
        return made.flat.as_strided(tensor.size(), tensor.stride(), place)

    def _buffer(self, tensor: Tensor, number: int) -> _Buffer:
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        original = tensor.detach().as_strided((count,), (1,), 0)
        margin = MARGIN // tensor.itemsize
        value = _value(tensor.dtype, self._around)
        flat = torch.full((count + 2 * margin,), value, dtype=tensor.dtype, device=tensor.device)
        flat[margin : margin + count] = original
        return _Buffer(original, flat, margin, flat.clone(), number)

    def outside(self) -> str:
        """Describe the writes into margins; "" for none."""
        found = []
        for made in self._buffers.values():
            end = len(made.flat) - made.margin
            before = _different(made.flat[: made.margin], made.given[: made.margin])
            after = _different(made.flat[end:], made.given[end:])
            found += [f"{before} elements before argument {made.number}"] if before else []
            found += [f"{after} elements past the end of argument {made.number}"] if after else []
        return ", ".join(found)

    def back(self, result: Any) -> Any:
        """Copy written arguments back; results in the memory of arguments become views of these."""
        by_memory = {}
        for made in self._buffers.values():
            inside = slice(made.margin, len(made.flat) - made.margin)
            if _different(made.flat[inside], made.given[inside]):
                made.original.copy_(made.flat[inside])
            by_memory[made.flat.untyped_storage().data_ptr()] = made

        def one(tensor: Tensor) -> Tensor:
            if tensor.layout != torch.strided or not tensor.untyped_storage().nbytes():
                return tensor
            made = by_memory.get(tensor.untyped_storage().data_ptr())
            if made is None or tensor.dtype != made.flat.dtype:
                return tensor
            place = tensor.storage_offset() - made.margin
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            if place < 0 or place + reach >= len(made.original):
                return tensor  # a view of the margin: wrong, and judged by its values
            return made.original.as_strided(tensor.size(), tensor.stride(), place)

        return pytree.tree_map_only(Tensor, one, result)


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is its memory and nothing else."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(tensor.untyped_storage().nbytes())


def _different(a: Tensor, b: Tensor) -> int:
    """Count the elements whose bits differ."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds.get(a.itemsize, torch.int64)
    return int((a.view(kind) != b.view(kind)).sum())


def leaves(meaning: Kernel, args: Any, kwargs: Mapping[str, Any]) -> set[str]:
    """Return what torch itself calls to compute an op: overloads of ATen without plumbing."""
    watch = Watch({})
    with torch.no_grad(), _Inside(watch):
        meaning(*args, **kwargs)
    return set(watch.called)
