# SPDX-License-Identifier: Apache-2.0
"""Decomposition of ops into other ops: torch's own decompositions, run on a vendor's kernels.

decompositions.csv holds one step for each overload: the overloads that its decomposition calls.
From it follows statically which ops a set of kernels supports. diopi.decomposition_trace writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch._decomp
import torch._refs
import torch._refs.fft
import torch._refs.linalg
import torch._refs.nn.functional
import torch._refs.special
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from deeplink.errors import NoKernelError, OpDeclarationError
from deeplink.i18n import _
from diopi import catalogue, schema
from diopi.composed import COMPOSED
from diopi.op import Op, all_ops

FILE = Path(__file__).with_name("decompositions.csv")
EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
Kernel = Callable[..., Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]

# Memory, views, constants and copies are the device's own operators, not kernels of an op.
COPIES = """
copy_ copy _to_copy to clone contiguous detach alias lift_fresh lift_fresh_copy fill_ fill zero_
_local_scalar_dense item convert_element_type copy_to copy_strided device_put resize resize_
resize_as_ set_ as_strided_ as_strided_scatter equal is_same_size _reshape_alias
_unsafe_view reshape result_type is_nonzero broadcast_in_dim broadcast_tensors meshgrid
size stride storage_offset numel dim sym_size sym_stride sym_numel sym_storage_offset
""".split()
FACTORIES = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided full full_like new_full
zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor arange iota eye linspace logspace
tril_indices triu_indices
""".split()
FREE = frozenset(COPIES) | frozenset(FACTORIES)


def _integer_division(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    whole = all(not (isinstance(a, Tensor) and _floats(a)) for a in args)
    return args, {"rounding_mode": "trunc"} if whole else {}


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _drawn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Convert a random prim, which allocates its tensor, to an op that fills an existing tensor."""
    room = torch.empty(args[0], dtype=kwargs["dtype"], device=kwargs["device"])
    names = ("mean", "std", "low", "high", "generator")
    return (room,), {name: kwargs[name] for name in names if name in kwargs}


def _product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Convert a prim over several dimensions to an op over one, or over all when it is None."""
    input, dims = args[0], [dim % args[0].dim() for dim in args[1]]
    last = [dim for dim in range(input.dim()) if dim not in dims]
    flat = input.permute(*last, *dims).reshape([input.shape[dim] for dim in last] + [-1])
    return (flat,), {"dim": -1, "dtype": kwargs.get("output_dtype")}


# prim -> its op, and the conversion of the arguments
PRIMS: dict[str, tuple[str, Callable[[tuple[Any, ...], dict[str, Any]], Call]]] = {
    "sum": ("sum", lambda a, k: ((a[0],), {"dim": list(a[1]), "dtype": k.get("output_dtype")})),
    "amax": ("amax", lambda a, k: ((a[0],), {"dim": list(a[1])})),
    "amin": ("amin", lambda a, k: ((a[0],), {"dim": list(a[1])})),
    "var": (
        "var",
        lambda a, k: ((a[0],), {"dim": list(a[1]), "correction": a[2] if len(a) > 2 else 1}),
    ),
    "prod": ("prod", _product),
    "normal": ("normal", _drawn),
    "uniform": ("uniform", _drawn),
    "div": ("div", _integer_division),
    "rev": ("flip", lambda a, k: (a, k)),
    "erf_inv": ("erfinv", lambda a, k: (a, k)),
    "shift_left": ("bitwise_left_shift", lambda a, k: (a, k)),
    "shift_right_arithmetic": ("bitwise_right_shift", lambda a, k: (a, k)),
    "cat": ("cat", lambda a, k: (a, k)),
    "where": ("where", lambda a, k: (a, k)),
}


@dataclass(frozen=True)
class Served:
    """The op that implements an overload: its form, and the conversion of the arguments."""

    op: str
    form: str
    bind: Callable[[tuple[Any, ...], dict[str, Any]], Call]


@cache
def served(overload: str) -> Served | None:
    """Return the op that implements "aten.add.Tensor" or "prims.add.default";
    None where none does.
    """
    space, _, name = overload.partition(".")
    if space == "prims":
        prim = name.removesuffix(".default")
        op, bind = PRIMS.get(prim, (prim, lambda a, k: (a, k)))
        return Served(op, "functional", bind) if op in all_ops() else None
    return _aten().get(name.removesuffix(".default"))


@cache
def _aten() -> dict[str, Served]:
    """Return every ATen overload whose arguments an op takes under equal names."""
    found = {}
    for op in all_ops().values():
        for full in op.aten:
            name = full.removeprefix("aten::")
            row = catalogue.overloads().get(name)
            text = row.schema if row else schema.torch_schemas().get(name)
            bound = _binding(op, text) if text else None
            if bound is not None:
                form = row.form if row else "functional"
                # an op that is declared by its in-place overload still returns a new tensor
                alone = name.partition(".")[0].endswith("_") and not op.written
                found[name] = Served(op.name, "inplace" if alone else form, bound)
    return found


def _binding(op: Op, text: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Call] | None:
    try:
        theirs = schema.read(text).arguments
    except OpDeclarationError:  # an overload for names or storages
        return None
    taken = {argument.name for argument in op.arguments}
    names = [argument.name for argument in theirs]
    given = {name for name in names if name in taken}
    outs = {a.name for a in theirs if a.written and a.kwarg_only}
    required = {argument.name for argument in op.arguments if argument.required}
    if not required <= given or set(names) - given - outs:
        return None

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        bound = dict(zip(names, args, strict=False))
        bound |= {schema.RENAMED.get(name, name): value for name, value in kwargs.items()}
        values = {name: value for name, value in bound.items() if name in taken}
        return (), values

    return bind


# decompositions for some arguments only: they are tried, but promise nothing
PARTIAL = frozenset(f"aten.adaptive_max_pool{n}d.default" for n in (2, 3))
# by their arguments these ops become one of several overloads; samples show one
SEVERAL = {
    "op:upsample_nearest_backward": [f"aten.upsample_nearest{n}d_backward.default" for n in (1, 3)],
    "op:upsample_linear_backward": [
        f"aten.upsample_{kind}_backward.default"
        for kind in ("linear1d", "bicubic2d", "trilinear3d")
    ],
}


@cache
def steps() -> dict[str, tuple[str, ...]]:
    """Return the calls of each decomposition, by overload (or `op:name`).

    The file is of torch 2.13. Leave out rows of overloads that the installed torch does not
    decompose: torch 2.11 decomposes no max_pool.
    """
    if not FILE.exists():
        return {}
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = {row["overload"]: row["calls"].split() for row in csv.DictReader(file)}
    return {
        name: (*calls, *SEVERAL.get(name, ()))
        for name, calls in rows.items()
        if name not in PARTIAL and _is_decomposed(name)
    }


def _is_decomposed(name: str) -> bool:
    """Return whether the installed torch decomposes the overload of a row."""
    space, _, overload = name.partition(".")
    if space != "aten":
        return True  # `op:name`, or a prim
    packet, _, kind = overload.rpartition(".")
    func = getattr(getattr(torch.ops.aten, packet, None), kind, None)
    return func is not None and step(func) is not None


@dataclass(frozen=True)
class Carried:
    """The decomposition of an op on a vendor: the kernels that it uses,
    and those that are missing.
    """

    uses: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    known: bool = True  # whether any decomposition is known


def carried(op: Op, kernels: Iterable[str]) -> Carried:
    """Determine how far a set of kernels supports an op that is not among them."""
    roots = [root for root in (f"op:{op.name}", *_overloads(op)) if root in steps()]
    if not roots:
        return Carried(known=bool(op.aten) and _overloads(op)[0].split(".")[1] in FREE)
    uses: set[str] = set()
    lacks: set[str] = set()
    seen: set[str] = set()
    _walk(steps()[roots[0]], frozenset(kernels) - {op.name}, seen, uses, lacks)
    return Carried(tuple(sorted(uses)), tuple(sorted(lacks)))


def _overloads(op: Op) -> list[str]:
    names = (full.removeprefix("aten::") for full in op.aten)
    return [f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names]


def _walk(
    calls: Iterable[str], kernels: frozenset[str], seen: set[str], uses: set[str], lacks: set[str]
) -> None:
    for overload in calls:
        if overload in seen:
            continue
        seen.add(overload)
        owner = served(overload)
        if owner is not None and owner.op in kernels:
            uses.add(owner.op)
        elif overload.split(".")[1] in FREE:
            continue
        elif overload in steps():
            _walk(steps()[overload], kernels, seen, uses, lacks)
        else:
            lacks.add(owner.op if owner is not None else overload)


class OnKernels(TorchDispatchMode):
    """A mode that runs ops on a vendor's kernels, and those without a kernel by decomposition."""

    def __init__(self, op: str, vendor: str, kernels: Mapping[str, Kernel]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._op = op
        self._vendor = vendor
        self._kernels = kernels
        self._open: list[OpOverload] = []  # overloads in decomposition: some call themselves

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        owner = served(str(func))
        if owner is not None and owner.op in self._kernels and owner.op != self._op:
            taken, named = owner.bind(args, kwargs)
            result = self._kernels[owner.op](*taken, **named)
            return _in_form(owner.form, func, args, kwargs, result)
        if is_free(func):
            return func(*args, **kwargs)
        decompose = None if func in self._open else step(func)
        if decompose is not None:
            self._open.append(func)
            try:
                with self:
                    result = decompose(*args, **kwargs)
            finally:
                self._open.pop()
            if result is not NotImplemented:
                return result
        raise NoKernelError(
            _(
                "{vendor} runs {op} by its decomposition, which came to {func}, and "
                "{vendor} has no kernel for that."
            ).format(vendor=self._vendor, op=self._op, func=func),
            _("write the kernel {op!r}, or {value!r}.").format(
                op=self._op, value=owner.op if owner else str(func)
            ),
        )


def _in_form(
    form: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """Return a functional result in the requested form."""
    if form == "inplace":
        return args[0].copy_(result)
    if form != "out":
        return result
    outs = [kwargs[a.name] for a in func._schema.arguments if a.is_out]
    values = result if isinstance(result, (tuple, list)) else (result,)
    for out, value in zip(outs, values, strict=True):
        out.resize_(value.shape).copy_(value)
    return outs[0] if len(outs) == 1 else tuple(outs)


@cache
def step(func: OpOverload) -> Kernel | None:
    """Return the decomposition of an overload: from torch's table, or torch's own composite."""
    known = COMPOSED.get(func) or torch._decomp.decomposition_table.get(func)
    if known is not None:
        return known
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return func.decompose
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), EXPLICIT.name)
    if composed and func.namespace == "aten":
        return partial(func._op_dk, EXPLICIT)  # one call of other overloads: foreach, rand_like
    return None


@cache
def is_free(func: OpOverload) -> bool:
    """Whether an overload is the device's own operator: memory, views, constants, copies."""
    if str(func).split(".")[1] in FREE:
        return True
    returned = [value.alias_info for value in func._schema.returns]
    return bool(returned) and all(alias and not alias.is_write for alias in returned)
