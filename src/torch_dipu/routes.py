# SPDX-License-Identifier: Apache-2.0
"""Routes from ATen to diopi: the vendor's kernel of each overload, bound once, at registration.

Routes of an overload with a diopi op, in this order: the vendor's function in C, without Python;
its kernel by Python; a decomposition into its kernels; the host. Views, allocations and copies are
the device's own. Calls on the host are counted for a vendor with kernels:
`torch.dipu.operator_calls()`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.errors import NoKernelError
from deeplink.vendor import Vendor
from torch_dipu import _C, op_patterns

log = logging.getLogger(__name__)
Kernel = Callable[..., Any]

# The device's own operators, in addition to views: memory and copies.
OWN = frozenset(
    """
    copy copy_ _to_copy to clone contiguous detach detach_ alias lift lift_fresh lift_fresh_copy
    resize resize_ resize_as resize_as_ set_ as_strided_ _local_scalar_dense item _reshape_alias
    _unsafe_view _copy_from _copy_from_and_resize empty empty_like empty_strided empty_permuted
    new_empty new_empty_strided
    """.split()
)


_bound: dict[str, list[_C.Route]] = {}  # by overload, while a vendor's kernels are bound
_added: set[str] = set()  # overloads that the device has by routes alone; torch keeps their key


def bound(overload: str) -> list[_C.Route] | None:
    """Return the routes of an overload, in the order in which they are tried before the host.

    None where no vendor's kernels are bound.
    """
    return _bound.get(overload, []) if _bound else None


@dataclass(frozen=True)
class Counts:
    """The number of overloads of the device by kind of implementation."""

    kernel: int = 0
    decomposition: int = 0
    host: int = 0


def register(vendor: Vendor) -> None:
    """Bind the vendor's kernels, or those of the module that DIPU_KERNELS names."""
    kernels = settings.DIPU_KERNELS.get() or vendor.kernels
    # both are read for a vendor without kernels, too, so that an invalid value raises an error
    is_off = settings.DIPU_WITH_DIOPI_LIBRARY.get() == "disable"
    op_patterns.matching(settings.DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS.get())
    if not kernels or is_off:
        return
    from dataclasses import replace

    from diopi import implementation  # imported here: a device without kernels does not need it

    bind(implementation.load(replace(vendor, kernels=kernels)))


def bind(implementation: Any) -> Counts:
    """Set the routes of every overload to a vendor's kernels, replacing earlier routes."""
    from diopi import all_ops
    from torch_dipu import c_kernels

    unbind()
    resolved = implementation.resolve()
    kept = op_patterns.matching(settings.DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS.get())
    aten = [name for name in _C.operators() if name.startswith("aten::")]
    engine = {name for name in aten if _has_own(name)}  # some are sparse only
    found: dict[str, list[_C.Route]] = {name: [] for name in engine}
    for op in all_ops().values():
        for overload in op.aten:
            if overload not in kept and _is_routable(overload, engine):
                routes = _routes(overload, op, resolved[op.name], overload in engine)
                if routes or overload in engine:
                    found[overload] = routes
    for overload, route in c_kernels.routes(implementation.kernels).items():
        if overload not in kept and _is_routable(overload, engine):
            found[overload] = [route, *found.get(overload, [])]
    for overload in kept:
        composite = _C.composite_route(overload)
        found[overload] = [composite] if composite else []
    _added.update(found.keys() - engine)
    for overload, routes in found.items():
        _C.set_routes(overload, routes)
    _bound.update(found)
    kinds = [routes[0].kind if routes else "host" for routes in found.values()]
    counts = Counts(*(kinds.count(kind) for kind in ("kernel", "decomposition", "host")))
    log.info("%s: %s", implementation.vendor, counts)
    return counts


def unbind() -> None:
    """Remove all routes: the host runs everything."""
    _C.clear_routes(_C.operators())
    _bound.clear()


def _is_routable(overload: str, engine: set[str]) -> bool:
    """Whether an overload can have a route: it is no view, not the device's own, and torch has a
    gradient for it as a whole.
    """
    if not torch._C._dispatch_has_kernel(overload):
        return False  # another version of torch has it
    if _base(overload) in OWN or _is_view(overload):
        return False
    if overload in engine:
        return True
    return not _has_own(overload) and not _has(overload, "CompositeImplicitAutograd")


def _base(overload: str) -> str:
    return overload.removeprefix("aten::").partition(".")[0]


def _is_view(overload: str) -> bool:
    """Whether a result is a view of an argument (transpose), or an argument becomes a view."""
    returned = [value.alias_info for value in schema_of(overload).returns]
    if any(alias is not None and not alias.is_write for alias in returned):
        return True
    name, _, form = overload.removeprefix("aten::").partition(".")
    tags = getattr(getattr(torch.ops.aten, name), form or "default").tags
    return torch.Tag.inplace_view in tags


def _has_own(overload: str) -> bool:
    """Return whether the device has an overload without any route."""
    return _has(overload, "PrivateUse1") and overload not in _added


def _has(overload: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload, key))


def _routes(overload: str, op: Any, resolved: Any, in_engine: bool) -> list[_C.Route]:
    from diopi.decomposition import FREE

    if resolved.route == "decomposition" and (not in_engine or _base(overload).rstrip("_") in FREE):
        return []  # torch's own composite, or the device's own operator
    if resolved.route == "decomposition" and not resolved.uses:
        return []  # memory only, which the device fills by these operators (zero_, fill_)
    if resolved.route not in ("kernel", "decomposition"):
        return []
    call, numbers = _call(overload, op, resolved)
    who = (
        op_patterns.diopi_name(overload) if resolved.route == "kernel" else ", ".join(resolved.uses)
    )
    return [_C.python_route(resolved.route, who, call, numbers)]


# The call of an overload's kernel, as source code: the arguments are in the schema's order.

_WRITING = """
def call({parameters}):
    try:
        result = kernel({arguments})
    except NoKernelError:
        return NotImplemented
    return write(({targets},), result)
"""
_PLAIN = """
def call({parameters}):
    try:
        return kernel({arguments})
    except NoKernelError:
        return NotImplemented
"""


def _call(overload: str, op: Any, resolved: Any) -> tuple[Kernel, int]:
    """Return the callable of a route, and a mask of its tensor arguments that may be numbers."""
    from diopi import catalogue, schema

    row = catalogue.overloads().get(overload.removeprefix("aten::"))
    form = "inplace" if _returns_its_first(overload) else row.form if row else "functional"
    declared = schema_of(overload).arguments
    parameters = [f"a{at}" for at in range(len(declared))]
    renamed = [schema.own_name(overload, argument.name) for argument in declared]
    given = dict(zip(renamed, parameters, strict=True))
    outs = [given[name] for name, a in zip(renamed, declared, strict=True) if a.is_out]
    own = form if form != "functional" and form not in resolved.derived else ""
    arguments = _passed(op, given)
    if own == "out":
        arguments += [f"{name}={out}" for name, out in zip(op.result_names, outs, strict=False)]
    kernel = getattr(resolved, own) if own else resolved.call
    targets = outs if form == "out" else parameters[:1]
    text = _PLAIN if own or form == "functional" else _WRITING
    source = text.format(
        parameters=", ".join(parameters),
        arguments=", ".join(arguments),
        targets=", ".join(targets),
    )
    scope = {"kernel": kernel, "NoKernelError": NoKernelError, "write": _write}
    exec(source, scope)  # resolved here, so that the call looks up nothing
    numbers = _numbers(op)
    bits = sum(1 << at for at, name in enumerate(renamed) if name in numbers)
    return scope["call"], bits


def _returns_its_first(overload: str) -> bool:
    """Whether an overload writes its first argument and returns it (_amp_update_scale_)."""
    declared = schema_of(overload)
    written = [a for a in declared.arguments[:1] if a.alias_info is not None and not a.is_out]
    return bool(written) and any(r.alias_info and r.alias_info.is_write for r in declared.returns)


def schema_of(overload: str) -> Any:
    """Return torch's schema of "aten::add.out"."""
    name, _, form = overload.partition(".")
    return torch._C._get_schema(name, form)


def _passed(op: Any, given: dict[str, str]) -> list[str]:
    """Return the kernel's arguments: positional up to the first missing one, then by name."""
    passed, gap = [], False
    for argument in op.arguments:
        gap = gap or argument.kwarg_only or argument.name not in given
        if argument.name in given:
            value = given[argument.name]
            passed.append(f"{argument.name}={value}" if gap else value)
    return passed


def _numbers(op: Any) -> set[str]:
    """Return the tensor arguments that some overload of the op takes as a number."""
    from diopi import catalogue, schema

    rows = [catalogue.overloads().get(name.removeprefix("aten::")) for name in op.aten]
    scalars = {
        argument.name
        for row in rows
        if row is not None
        for argument in schema.read(row.schema).arguments
        if argument.type == "Scalar"
    }
    return {a.name for a in op.arguments if a.type == "Tensor" and a.name in scalars}


def _fits(target: Any, result: Any) -> bool:
    single = isinstance(result, Tensor) and isinstance(target, Tensor)
    return single and target.dtype is result.dtype and target.shape == result.shape


def _write(targets: tuple[Any, ...], result: Any) -> Any:
    """Copy results into the tensors of the caller.

    Results of another shape or type are left to the host, which raises torch's errors.
    """
    if len(targets) == 1 and _fits(targets[0], result):  # the most frequent case
        targets[0].copy_(result)
        return None
    into = targets[0] if isinstance(targets[0], list) else targets  # foreach: a list for a list
    results: Iterable[Tensor] = result if isinstance(result, (tuple, list)) else (result,)
    pairs = list(zip(into, results, strict=False))
    for target, value in pairs:
        if not torch.can_cast(value.dtype, target.dtype):
            return NotImplemented
        if target.shape != value.shape and target.numel():
            return NotImplemented
    for target, value in pairs:
        if target.shape != value.shape:
            target.resize_(value.shape)
            if target.stride() != value.stride() and torch.ops.prims.is_non_overlapping_and_dense(
                value
            ):
                target.as_strided_(value.shape, value.stride())
        target.copy_(value)
    return None
