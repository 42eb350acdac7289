# SPDX-License-Identifier: Apache-2.0
"""The route of each op on a vendor, decided once: kernel, decomposition, CPU, or missing."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.errors import KernelError, NoKernelError, SignatureError
from deeplink.i18n import _
from diopi import decomposition, inference
from diopi.inference import Described
from diopi.op import Op, all_ops

Kernel = Callable[..., Any]

Route = Literal[
    "kernel",  # the vendor's own
    "torch",  # torch supports this device: its kernels
    "decomposition",  # other ops' kernels, by torch's decomposition
    "cpu",  # copied to the host and back, where that was requested
    "missing",
]


class Kernels(Protocol):
    """The properties of a vendor that routes depend on."""

    @property
    def vendor(self) -> str: ...
    @property
    def kernels(self) -> Mapping[str, Kernel]: ...
    @property
    def forms(self) -> Mapping[str, Kernel]: ...
    @property
    def whole(self) -> bool: ...


@dataclass(frozen=True)
class Resolved:
    """One op on one vendor: `call` runs it, `out` and `inplace` are its other forms."""

    op: Op
    vendor: str
    route: Route
    call: Kernel
    out: Kernel
    inplace: Kernel
    uses: tuple[str, ...] = ()  # the kernels that a decomposition calls
    lacks: tuple[str, ...] = ()  # the kernels that would make a missing op run
    derived: tuple[str, ...] = ("out", "inplace")  # the forms that the vendor does not provide

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def resolve(vendor: Kernels, *, cpu_fallback: bool = False) -> dict[str, Resolved]:
    """Return every op with its route on a vendor."""
    return {
        name: _resolved(op, vendor, *_route(op, vendor, cpu_fallback))
        for name, op in all_ops().items()
    }


def wanted(resolved: Mapping[str, Resolved]) -> list[tuple[str, int]]:
    """Return the kernels to write next,
    with the number of missing ops that need each, most first.
    """
    missing = [one for one in resolved.values() if one.route == "missing"]
    found = Counter(name for one in missing for name in one.lacks)
    return sorted(found.items(), key=lambda row: (-row[1], row[0]))


def _route(
    op: Op, vendor: Kernels, cpu_fallback: bool
) -> tuple[Route, Kernel, tuple[str, ...], tuple[str, ...]]:
    """Return the route, its callable, the kernels that it uses and those that are missing."""
    if vendor.whole and op.available:
        return "torch", op.meaning, (), ()
    if op.name in vendor.kernels:
        kernel = vendor.kernels[op.name]
        supports = getattr(kernel, "supports", None)
        refuses = getattr(kernel, "may_refuse", False)
        if supports is None and not refuses:
            return "kernel", kernel, (), ()
        next_route, otherwise, uses, lacks = _route(op, _without(vendor, op.name), cpu_fallback)
        if supports is not None:
            kernel = _limited(kernel, supports, otherwise)
        if refuses and next_route != "missing":
            kernel = _refusing(kernel, otherwise)
        return "kernel", kernel, uses, lacks
    found = decomposition.carried(op, vendor.kernels)
    if found.known and not found.lacks and vendor.kernels:
        return "decomposition", _decomposed(op, vendor), found.uses, ()
    if cpu_fallback:
        return "cpu", _on_cpu(op), (), found.lacks
    return "missing", _missing(op, vendor.vendor, found), found.uses, found.lacks


def _resolved(
    op: Op,
    vendor: Kernels,
    route: Route,
    call: Kernel,
    uses: tuple[str, ...],
    lacks: tuple[str, ...],
) -> Resolved:
    own = {"out": vendor.forms.get(f"{op.name}_out"), "inplace": vendor.forms.get(f"{op.name}_")}
    derived = tuple(form for form, kernel in own.items() if kernel is None)
    kernel = vendor.kernels.get(op.name) if route == "kernel" else None
    into = getattr(kernel, "into", None) if getattr(kernel, "supports", None) is None else None
    return Resolved(
        op,
        vendor.vendor,
        route,
        call,
        own["out"] or out_form(op, call, into),
        own["inplace"] or _inplace(op, call, into),
        uses,
        lacks,
        derived,
    )


@dataclass(frozen=True)
class _Some:
    vendor: str
    kernels: Mapping[str, Kernel]
    forms: Mapping[str, Kernel]
    whole: bool


def _without(vendor: Kernels, name: str) -> _Some:
    kernels = {own: kernel for own, kernel in vendor.kernels.items() if own != name}
    return _Some(vendor.vendor, kernels, vendor.forms, vendor.whole)


def limited(supports: Callable[..., bool]) -> Callable[[Kernel], Kernel]:
    """Decorate a kernel with its limits: where the predicate is false, the op takes its next route.

    The parameters of the predicate are names of the kernel's arguments, in any order.

    @limited(lambda dim, input: dim in (-1, input.dim() - 1))
    """

    def mark(kernel: Kernel) -> Kernel:
        kernel.supports = _bound(supports, kernel)  # type: ignore[attr-defined]
        return kernel

    return mark


def _bound(supports: Callable[..., bool], kernel: Kernel) -> Callable[..., bool]:
    """Compile the predicate with the kernel's parameters, so that a call binds no arguments."""
    taken, seen = (inspect.signature(f).parameters for f in (kernel, supports))
    if _shape(taken) == _shape(seen):
        return supports
    unknown = [name for name in seen if name not in taken]
    if unknown:
        raise SignatureError(
            _("the limits of kernel {name} use {names}, and it takes ({names2}).").format(
                name=kernel.__name__, names=", ".join(unknown), names2=", ".join(taken)
            ),
            _("the parameters of the predicate must be arguments of the kernel."),
        )
    given = [n if p.kind is not p.KEYWORD_ONLY else f"{n}={n}" for n, p in seen.items()]
    source = f"lambda {_written(taken.values())}: _supports({', '.join(given)})"
    bound: Callable[..., bool] = eval(
        source, {"_supports": supports} | {name: p.default for name, p in taken.items()}
    )
    return bound


def _shape(parameters: Mapping[str, inspect.Parameter]) -> list[tuple[Any, ...]]:
    return [(one.name, one.kind, one.default) for one in parameters.values()]


def _written(parameters: Iterable[inspect.Parameter]) -> str:
    """Format parameters as source code, with a variable for each default."""
    words: list[str] = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(one.name if one.default is one.empty else f"{one.name}={one.name}")
    return ", ".join(words)


def _limited(kernel: Kernel, supports: Callable[..., bool], otherwise: Kernel) -> Kernel:
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = kernel if supports(*args, **kwargs) else otherwise
        return chosen(*args, **kwargs)

    return call


def _refusing(kernel: Kernel, otherwise: Kernel) -> Kernel:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except NoKernelError:
            return otherwise(*args, **kwargs)

    return call


def _decomposed(op: Op, vendor: Kernels) -> Kernel:
    def call(*args: Any, **kwargs: Any) -> Any:
        if op.name in _RUNNING.names:  # the device's own operator called it again (zeros_like)
            raise NoKernelError(f"{vendor.vendor}: the decomposition of {op.name} is recursive.")
        _RUNNING.names.add(op.name)
        try:
            with torch.no_grad(), decomposition.OnKernels(op.name, vendor.vendor, vendor.kernels):
                return op.meaning(*args, **kwargs)
        finally:
            _RUNNING.names.discard(op.name)

    return call


class _Running(threading.local):
    """The ops whose decompositions this thread is running."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_RUNNING = _Running()


def _on_cpu(op: Op) -> Kernel:
    """Run the meaning on the host: copy arguments there,
    copy results and written arguments back.
    """
    written = {argument.name for argument in op.written}
    names = [argument.name for argument in op.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        device = device_of(args, kwargs)
        moved = [_moved(value, "cpu") for value in args]
        named = {name: _moved(value, "cpu") for name, value in kwargs.items()}
        result = op.meaning(*moved, **named)
        if written:
            pairs = [*zip(names, args, moved, strict=False)]
            pairs += [(name, kwargs[name], named[name]) for name in kwargs]
            for name, original, copy in pairs:
                if name in written and isinstance(original, Tensor) and original is not copy:
                    original.copy_(copy)
        return _moved(result, device)

    return call


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value


def device_of(args: Any, kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of the first tensor; the CPU when there is none."""
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                return item.device
    return torch.device("cpu")


def _missing(op: Op, vendor: str, found: decomposition.Carried) -> Kernel:
    others = [name for name in found.lacks if name != op.name]
    how = f"write a kernel {op.name!r}"
    how += f", or those of its decomposition: {', '.join(others)}" if others else ""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise NoKernelError(
            _("{vendor} has no kernel for {name} ({names}), and no decomposition.").format(
                vendor=vendor, name=op.name, names=", ".join(op.legacy) or op.aten[0]
            ),
            _("{how}; or resolve with cpu_fallback=True to run it on the host.").format(how=how),
        )

    return call


# torch refuses for `out=`: memory that these ops read, and another type than the result's.
READ_WHILE_WRITTEN = frozenset("cat gather take index_select masked_select kthvalue".split())
SAME_TYPE = frozenset("complex gather take index_select masked_select aminmax".split())


def out_form(op: Op, call: Kernel, into: Kernel | None = None) -> Kernel:
    """Create the `out=` form: resizes where necessary, never casts down.

    A kernel with `into` writes to the targets where they fit, as under torch_dipu; else the results
    of the functional form are copied.
    """
    names = op.result_names
    reads, same = op.name in READ_WHILE_WRITTEN, op.name in SAME_TYPE

    def out(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names if name in kwargs]
        arguments = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if into is not None and _wrote(op, into, targets, args, kwargs):
            return targets[0] if len(targets) == 1 else tuple(targets)
        results = _listed(call(*args, **kwargs))
        for name, target, result in zip(names, targets, results, strict=False):
            cast = torch.can_cast(result.dtype, target.dtype)
            if not cast or (same and result.dtype != target.dtype):
                raise KernelError(
                    f"{op.name}: a result of {result.dtype} cannot go into {name}, which is "
                    f"{target.dtype}.",
                )
            repeats = reads and any(s > 1 and not t for s, t in _sizes(target))
            if target.shape != result.shape:
                target.resize_(result.shape)
            if repeats or (reads and any(_overlap(target, given) for given in arguments)):
                raise KernelError(
                    _(
                        "{name}: {name2} shares memory with an argument, or its elements "
                        "with one another."
                    ).format(name=op.name, name2=name),
                    _("pass a tensor with its own memory."),
                )
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out


def _sizes(tensor: Tensor) -> Iterator[tuple[int, int]]:
    return zip(tensor.shape, tensor.stride(), strict=True)


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two contiguous tensors have elements in common."""
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return False
    dense = torch.ops.aten.is_non_overlapping_and_dense.default
    if not (first.numel() and second.numel() and dense(first) and dense(second)):
        return False
    (a, b), (c, d) = ((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (first, second))
    return a < d and c < b


def writes_in_place(op: Op, overload: str) -> bool:
    """Whether a result may be the argument itself: each element is read before it is written."""
    overwrites = op.kind == "random" or op.name in ("fill", "zero")
    base, _, name = overload.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, base), name or "default")
    return overwrites or torch.Tag.pointwise in found.tags


def _wrote(
    op: Op,
    into: Kernel,
    targets: Sequence[Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    resize: bool = True,
) -> bool:
    """Let a kernel write to the targets; return False where they do not fit, or it refuses."""
    expected = inference.results(op.meaning, tuple(args), kwargs)
    if expected is None or len(expected) != len(targets):
        return False
    pairs = list(zip(targets, expected, strict=True))
    if not all(isinstance(kind, Described) and t.dtype == kind.dtype for t, kind in pairs):
        return False
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    same = writes_in_place(op, op.aten[0]) if op.aten else False
    if any(_shares(target, one, same) for target in targets for one in given):
        return False
    dense = torch.ops.aten.is_non_overlapping_and_dense.default
    if not all(dense(t) if tuple(t.shape) == kind.shape else resize for t, kind in pairs):
        return False
    for target, kind in pairs:
        if tuple(target.shape) != kind.shape:
            target.resize_(kind.shape)
    try:
        into(targets, *args, **kwargs)
    except NoKernelError:  # the op takes its next route
        return False
    return True


def _shares(target: Tensor, given: Tensor, same: bool) -> bool:
    """Whether an argument shares a target's memory; `same` allows the target itself."""
    if target.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
        return False
    itself = (
        target.storage_offset() == given.storage_offset()
        and target.shape == given.shape
        and target.stride() == given.stride()
        and target.dtype == given.dtype
    )
    return bool(target.numel() and given.numel()) and not (same and itself)


def _inplace(op: Op, call: Kernel, into: Kernel | None = None) -> Kernel:
    """Create the in-place form, on the first argument;
    a kernel with `into` writes to the argument.
    """

    def inplace(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if into and _wrote(op, into, [target], (target, *args), kwargs, resize=False):
            return target
        result = _listed(call(target, *args, **kwargs))[0]
        if target.shape != result.shape or not torch.can_cast(result.dtype, target.dtype):
            raise KernelError(
                _(
                    "{name}_: the result is {dtype} {shape}, the argument to change is "
                    "{dtype2} {shape2}."
                ).format(
                    name=op.name,
                    dtype=result.dtype,
                    shape=tuple(result.shape),
                    dtype2=target.dtype,
                    shape2=tuple(target.shape),
                ),
                _("use {name}, which returns a new tensor.").format(name=op.name),
            )
        return target.copy_(result)

    return inplace


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def checked(found: Resolved) -> Resolved:
    """Wrap a resolved op: check type and shape of each call's results."""
    call = _checked(found)
    return replace(found, call=call, out=out_form(found.op, call), inplace=_inplace(found.op, call))


def _checked(found: Resolved) -> Kernel:
    op = found.op

    def call(*args: Any, **kwargs: Any) -> Any:
        expected = inference.results(op.meaning, args, kwargs)
        result = found.call(*args, **kwargs)
        if expected is None:  # depends on values
            return result
        parts = _listed(result)
        if len(parts) != len(expected):
            raise KernelError(
                f"{found.vendor}'s kernel {op.name} returned {len(parts)} results; the op returns "
                f"{len(expected)}: {', '.join(op.result_names)}.",
            )
        for name, part, kind in zip(op.result_names, parts, expected, strict=False):
            _compare(found, name, part, kind)
        return result

    return call


def _compare(found: Resolved, name: str, part: Any, kind: Any) -> None:
    if not isinstance(kind, Described):
        return
    if not isinstance(part, Tensor):
        returned = f"a {type(part).__name__}"
    elif part.dtype != kind.dtype or tuple(part.shape) != tuple(kind.shape):
        returned = f"{part.dtype} {tuple(part.shape)}"
    else:
        return
    raise KernelError(
        _(
            "{vendor}'s kernel {name} returned {returned} as {name2!r}; the op returns "
            "{dtype} {shape} for these arguments."
        ).format(
            vendor=found.vendor,
            name=found.op.name,
            returned=returned,
            name2=name,
            dtype=kind.dtype,
            shape=tuple(kind.shape),
        ),
        _("declare the types that the kernel lacks in convert_config.yaml, which converts them."),
    )
