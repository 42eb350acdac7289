# SPDX-License-Identifier: Apache-2.0
"""The core-ATen overloads, and calls of them, recorded from diopi's samples in the dispatcher."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from diopi.conformance.cases.case import Group
from diopi.conformance.cases.draws import Portable
from diopi.conformance.cases.sample import Sample
from diopi.conformance.planning import recipes
from diopi.op import by_aten, get

aten = torch.ops.aten
READ, KEPT, LARGEST = 10, 4, 1 << 11  # samples read, calls kept of each, elements of a call


@cache
def core() -> tuple[Any, ...]:
    """Return every overload that torch tags as core ATen, by name."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space == "aten":
            with suppress(AttributeError):
                op = getattr(getattr(aten, base), overload or "default")
                found += [op] if torch.Tag.core in op.tags else []
    return tuple(sorted(found, key=str))


@dataclass(frozen=True)
class Call:
    """One call of an overload with its arguments."""

    overload: Any
    sample: Sample

    @property
    def key(self) -> str:
        """Identify the call among others of the overload, without the values of tensors."""
        shown = pytree.tree_map_only(
            Tensor, lambda t: (t.dtype, tuple(t.shape)), (self.sample.args, self.sample.kwargs)
        )
        return str(shown)


@cache
def calls(overload: Any, dtype: str = "float32") -> tuple[Call, ...]:
    """Return a few calls of an overload that differ in shapes and arguments, the largest first."""
    if "bitwise" in str(overload) and getattr(torch, dtype).is_floating_point:
        return (*calls(overload, "int64")[:2], *calls(overload, "bool")[:2])
    found = {
        call.key: call for call in [*_by_hand(overload, dtype), *_recorded_calls(overload, dtype)]
    }
    ranked = sorted(found.values(), key=lambda call: -sum(t.numel() for t in call.sample.tensors))
    return tuple(ranked[:KEPT])


def _recorded_calls(overload: Any, dtype: str) -> Iterable[Call]:
    name = overload._overloadname
    tensor = name.replace("Scalar", "Tensor") if name.startswith("Scalar") else ""
    packet = getattr(aten, overload._schema.name.removeprefix("aten::"))
    if tensor in packet.overloads():  # eager creates a tensor from the number
        found = calls(getattr(packet, tensor), dtype)
        return [_with_number(call, overload) for call in found]
    return _recorded(_entries(overload), dtype).get(overload, [])


def _entries(overload: Any) -> tuple[str, ...]:
    """Return the entries of op_db for an overload: by the name of diopi's op,
    else by its own name.
    """
    name = str(overload).replace("aten.", "aten::", 1).removesuffix(".default")
    named = recipes.entries_of(get(_served()[name])) if name in _served() else []
    base = overload._schema.name.removeprefix("aten::")
    return tuple(
        dict.fromkeys([*named, *(n for n in NAMES.get(base, (base,)) if n in recipes.op_db())])
    )


NAMES = {
    "upsample_bilinear2d": ("nn.functional.interpolate_bilinear",),
    "upsample_nearest2d": ("nn.functional.interpolate_nearest",),
    "_native_batch_norm_legit": ("_native_batch_norm_legit", "native_batch_norm"),
    "_native_batch_norm_legit_no_training": ("nn.functional.batch_norm",),
    "col2im": ("nn.functional.fold",),
    "_to_copy": ("float", "int"),
}


def _with_number(call: Call, overload: Any) -> Call:
    args = list(call.sample.args)
    whole = isinstance(args[0], Tensor) and not args[0].is_floating_point()
    truth = whole and args[0].dtype == torch.bool
    args[1] = True if truth else 2 if whole else 1.5
    return Call(overload, replace(call.sample, args=tuple(args)))


@cache
def _served() -> Mapping[str, str]:
    found = {}
    for overload in core():
        name = str(overload).replace("aten.", "aten::", 1).removesuffix(".default")
        with suppress(Exception):  # no op of diopi has it
            found[name] = by_aten(name).name
    return found


@cache
def _recorded(entries: tuple[str, ...], dtype: str) -> dict[Any, list[Call]]:
    """Record the calls inside of the samples of entries of op_db,
    forward and backward, by overload.
    """
    listening = _Listening()
    for name in entries:
        entry = recipes.op_db()[name]
        if getattr(torch, dtype) not in entry.supported_dtypes("cpu"):
            continue
        group = Group(name, dtype, f"{name}+{recipes.SAMPLES}")
        for sample in recipes.samples(group, READ):
            if sum(t.numel() for t in sample.tensors) > LARGEST:
                continue
            with suppress(Exception), listening, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _both_ways(entry, sample)
    return listening.found


def _both_ways(entry: Any, sample: Sample) -> None:
    result = sample.graded(entry(*sample.args, **sample.kwargs))
    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    leaves = [t for t in sample.tensors if t.requires_grad]
    if roots and leaves:
        seeds = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, leaves, seeds, allow_unused=True)


class _Listening(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Any, list[Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.core in func.tags:
            values = pytree.tree_map_only(Tensor, _kept, (args, kwargs or {}))
            self.found.setdefault(func, []).append(Call(func, Sample(tuple(values[0]), values[1])))
        return func(*args, **(kwargs or {}))


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


# Calls that no sample produces in this form.


def _by_hand(overload: Any, dtype: str) -> list[Call]:
    made = HAND.get(overload)
    if made is None:
        return []
    with recipes.seeded(0), Portable():
        return [Call(overload, Sample(*arguments)) for arguments in made(getattr(torch, dtype))]


def _x(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape or (3, 5)).to(dtype)


Made = list[tuple[tuple[Any, ...], dict[str, Any]]]
HAND: dict[Any, Any] = {
    aten.alias.default: lambda d: [((_x(d),), {})],
    aten.any.dims: lambda d: [((_x(d) > 0, [0, 1], True), {}), ((_x(d, 2, 3, 4) > 1, [1]), {})],
    aten.squeeze.dims: lambda d: [((_x(d, 3, 1, 5, 1), [1, 3]), {}), ((_x(d, 3, 1), [0]), {})],
    aten.var.dim: lambda d: [((_x(d), [1]), {}), ((_x(d, 2, 3, 4), [0, 2], False, True), {})],
    aten.adaptive_avg_pool1d.default: lambda d: [((_x(d, 2, 3, 7), [3]), {})],
    aten.avg_pool1d.default: lambda d: [((_x(d, 2, 3, 8), [3], [2], [1]), {})],
    aten.full.default: lambda d: [(([2, 3], 1.5), {"dtype": d})],
    aten.fill.Scalar: lambda d: [((_x(d), 2), {})],
    aten.scalar_tensor.default: lambda d: [((1.5,), {"dtype": d})],
    aten.arange.start_step: lambda d: [((0, 7, 2), {"dtype": d}), ((1, 2, 0.25), {"dtype": d})],
    aten._native_batch_norm_legit_no_training.default: lambda d: [
        ((_x(d, 2, 3, 4), _x(d, 3), _x(d, 3), _x(d, 3), _x(d, 3).abs() + 1, 0.1, 1e-3), {})
    ],
    aten.clamp.default: lambda d: [((_x(d), -0.5, 0.5), {}), ((_x(d), None, 0.25), {})],
    aten.col2im.default: lambda d: [
        ((_x(d, 2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), {})
    ],
    aten.copy.default: lambda d: [((_x(d), _x(d, 1, 5)), {})],
    aten.pow.Scalar: lambda d: [((2, _x(d)), {})],
    aten.pow.Tensor_Scalar: lambda d: [
        ((_x(d), 2), {}),
        ((_x(d).abs(), 1.5), {}),
        ((_x(d), -1), {}),
    ],
    aten.slice_scatter.default: lambda d: [((_x(d, 4, 6), _x(d, 4, 2), 1, 1, 5, 2), {})],
    aten.upsample_bilinear2d.vec: lambda d: [
        ((_x(d, 1, 2, 4, 5), [7, 9], False, None), {}),
        ((_x(d, 1, 2, 4, 5), [7, 9], True, None), {}),
        ((_x(d, 1, 2, 4, 5), None, False, [2.0, 1.5]), {}),
    ],
    aten.upsample_nearest2d.vec: lambda d: [
        ((_x(d, 1, 2, 4, 5), [7, 9], None), {}),
        ((_x(d, 1, 2, 4, 5), None, [2.0, 1.5]), {}),
    ],
    aten.sym_numel.default: lambda d: [((_x(d),), {})],
    aten.sym_size.int: lambda d: [((_x(d), 1), {})],
}
