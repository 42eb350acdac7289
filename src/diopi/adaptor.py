# SPDX-License-Identifier: Apache-2.0
"""The adaptor: wraps a kernel that lacks types or layouts, so that its op supports them.

Each op is wrapped by one closure when the kernels are loaded. An op without a rule keeps its kernel
unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.errors import KernelError, UnknownOpError
from deeplink.i18n import _
from diopi import catalogue, convert_config, inference, observing
from diopi.convert_config import Casts, Config, Layout, Rule
from diopi.inference import Described
from diopi.op import Op, all_ops, by_legacy, get

FILE = "convert_config.yaml"
Kernel = Callable[..., Any]


def read(path: Path) -> Config:
    """Read a vendor's convert_config.yaml and check it against the ops."""
    return convert_config.read(path, names, _known())


def parse(text: str, file: str = FILE) -> Config:
    """Parse the text of a convert_config.yaml."""
    return convert_config.parse(text, names, _known(), file)


def names(written: str) -> tuple[str, Mapping[str, str]] | None:
    """Resolve a name in the file, of an op or a C header,
    to the op and its tensors' names there.
    """
    try:
        op = by_legacy(written) if written in catalogue.functions() else get(written)
    except UnknownOpError:
        return None
    known = {a.name: a.name for a in op.arguments if a.type.startswith("Tensor")}
    known |= {name: name for name in op.result_names}
    function = catalogue.functions().get(written)
    if function is not None:
        known |= {theirs: ours for ours, theirs in function.renames if ours in known}
        outs = [p.name for p in function.parameters if p.direction in ("out", "alloc")]
        known |= dict(zip(outs, op.result_names, strict=False))
    return op.name, known


def _known() -> list[str]:
    return [*all_ops(), *catalogue.functions()]


def adapt(op: Op, kernel: Kernel, config: Config) -> Kernel:
    """Wrap a kernel in the conversions of the config; return the kernel itself where there are
    none.

    A kernel with an attribute `into(results, *args, **kwargs)` writes to results of the caller.
    """
    places = [
        _TensorRule(index, a.name, a.kwarg_only, a.written, rule)
        for index, a in enumerate(op.arguments)
        if a.type.startswith("Tensor") and _matters(rule := config.rule(op.name, a.name))
    ]
    results = [config.rule(op.name, name) for name in op.result_names]
    if not places and not any(map(_matters, results)):
        return kernel
    return _closure(op, kernel, tuple(places), tuple(results))


@dataclass(frozen=True)
class _TensorRule:
    """One tensor argument with a rule."""

    index: int
    name: str
    kwarg_only: bool
    written: bool
    rule: Rule


def _matters(rule: Rule) -> bool:
    return bool(rule.casts) or _lays_out(rule)


def _lays_out(rule: Rule) -> bool:
    return any(layout.format is not None for layout in rule.layouts or ())


def _closure(
    op: Op, kernel: Kernel, places: tuple[_TensorRule, ...], results: tuple[Rule, ...]
) -> Kernel:
    into = getattr(kernel, "into", None)
    # a result of another type than these has the type that the kernel intends
    suspect = frozenset(target for rule in results for target in (rule.casts or {}).values())

    def adapted(*args: Any, **kwargs: Any) -> Any:  # hot path
        taken, named = list(args), dict(kwargs)
        changed: list[tuple[Tensor, Tensor]] = []
        written: list[tuple[Tensor, Tensor]] = []
        for place in places:
            if place.name in named:
                source: Any = named
                at: Any = place.name
            elif not place.kwarg_only and place.index < len(taken):
                source, at = taken, place.index
            else:
                continue
            before = len(changed)
            source[at] = _converted(source[at], op, place, changed)
            if place.written:
                written += changed[before:]
        if into is not None:
            return _into(op, into, results, (args, kwargs), (taken, named), written)
        found = kernel(*taken, **named)
        for original, copy in written:  # only here: a kernel that failed has written nothing
            original.copy_(copy)
        if not changed and not _suspicious(found, suspect, args):
            return found
        return _restored(op, found, args, kwargs, changed, results)

    # attributes of the kernel, such as its limits, are valid for the adapted one
    functools.update_wrapper(adapted, kernel, assigned=("__name__", "__doc__"))
    rules = [*(place.rule for place in places), *results]
    adapted.converts = {dtype for rule in rules for dtype in rule.casts or ()}  # type: ignore[attr-defined]
    adapted.lays_out = any(map(_lays_out, rules))  # type: ignore[attr-defined]
    if into is not None:
        adapted.into = _forwarding(adapted, into)  # type: ignore[attr-defined]
    return adapted


def _forwarding(adapted: Any, into: Kernel) -> Kernel:
    """Wrap the kernel's `into`; a call that needs a conversion copies the
    adapted kernel's results.
    """

    def forward(targets: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
        leaves = pytree.tree_leaves((args, kwargs, targets))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)}
        if not adapted.lays_out and dtypes.isdisjoint(adapted.converts):
            into(targets, *args, **kwargs)
            return
        found = adapted(*args, **kwargs)
        for target, value in zip(targets, found if len(targets) > 1 else (found,), strict=True):
            target.copy_(value)

    return forward


def _converted(value: Any, op: Op, place: _TensorRule, changed: list[tuple[Tensor, Tensor]]) -> Any:
    """Return the kernel's argument; record each tensor that is replaced."""
    if isinstance(value, Tensor):
        other = _cast(value, op, place)
        other = laid_out(other, place.rule.layouts)
        if other is not value:
            changed.append((value, other))
        return other
    if isinstance(value, (list, tuple)):
        return [_converted(item, op, place, changed) for item in value]
    return value


def _cast(tensor: Tensor, op: Op, place: _TensorRule) -> Tensor:
    target = (place.rule.casts or {}).get(tensor.dtype)
    if target is None or target == tensor.dtype:
        return tensor
    if _narrows(tensor.dtype, target):
        _check_range(tensor, target, op, place)
    observing.current().cast(tensor.dtype, target)
    return tensor.to(target)


def _narrows(source: torch.dtype, target: torch.dtype) -> bool:
    if _floats(source) or _floats(target) or torch.bool in (source, target):
        return False
    a, b = torch.iinfo(source), torch.iinfo(target)
    return a.min < b.min or a.max > b.max


def _floats(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _check_range(tensor: Tensor, target: torch.dtype, op: Op, place: _TensorRule) -> None:
    if tensor.numel() == 0:
        return
    limits = torch.iinfo(target)
    for value in map(int, tensor.aminmax()):
        if not limits.min <= value <= limits.max:
            raise KernelError(
                _(
                    "{name}: the value {value} of {name2!r} ({dtype}) does not fit "
                    "{dtype2}, which the vendor's {file} converts it to [{min}, {max}]."
                ).format(
                    name=op.name,
                    value=value,
                    name2=place.name,
                    dtype=_name(tensor.dtype),
                    dtype2=_name(target),
                    file=FILE,
                    min=limits.min,
                    max=limits.max,
                ),
                _(
                    "give {name} a kernel for {dtype}, or leave this conversion out for "
                    "{name2!r}: `tensor_dtype: {{{name2}: ''}}`."
                ).format(name=op.name, dtype=_name(tensor.dtype), name2=place.name),
            )


def laid_out(tensor: Tensor, layouts: Sequence[Layout] | None) -> Tensor:
    """Return the tensor in one of the layouts; layouts for another rank do not apply."""
    fitting = [layout for layout in layouts or () if layout.rank in (None, tensor.dim())]
    if not fitting or any(_has_layout(tensor, layout.format) for layout in fitting):
        return tensor
    wanted = fitting[0].format
    assert wanted is not None  # a layout without a format fits every tensor
    return tensor.contiguous(memory_format=wanted)


def _has_layout(tensor: Tensor, wanted: torch.memory_format | None) -> bool:
    return wanted is None or tensor.is_contiguous(memory_format=wanted)


Call = tuple[Sequence[Any], Mapping[str, Any]]


def _into(
    op: Op,
    into: Kernel,
    rules: Sequence[Rule],
    given: Call,
    taken: Call,
    written: list[tuple[Tensor, Tensor]],
) -> Any:
    """Let the kernel write to results of types that it supports,
    then convert to the requested types.
    """
    expected = inference.results(op.meaning, tuple(given[0]), given[1])
    if expected is None:  # the kernel allocates its results itself
        found = into(None, *taken[0], **taken[1])
        for original, copy in written:
            original.copy_(copy)
        return found
    device = _device(given)
    mine = [_result_buffer(kind, rule, device) for kind, rule in zip(expected, rules, strict=True)]
    into(mine, *taken[0], **taken[1])
    for original, copy in written:
        original.copy_(copy)
    found = [_restored_one(m, e, device) for m, e in zip(mine, expected, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _result_buffer(kind: Any, rule: Rule, device: torch.device) -> Any:
    observer = observing.current()
    return _mapped(kind, lambda one: observer.result(_reduced(one, rule), device))


def _reduced(kind: Described, rule: Rule) -> Described:
    dtype = (rule.casts or {}).get(kind.dtype, kind.dtype)
    if dtype != kind.dtype:
        observing.current().cast(kind.dtype, dtype)
    shaped = torch.empty_strided(kind.shape, kind.stride, device="meta", dtype=dtype)
    return inference.describe(laid_out(shaped, rule.layouts))


def _restored(
    op: Op,
    found: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    changed: list[tuple[Tensor, Tensor]],
    rules: Sequence[Rule],
) -> Any:
    """Restore the results of a call without conversions: types, strides, and written arguments."""
    originals = {id(copy): original for original, copy in changed}
    single = isinstance(found, Tensor) or not isinstance(found, (tuple, list))
    parts = [found] if single else list(found)
    expected = inference.results(op.meaning, args, kwargs)
    if expected is None or len(expected) != len(parts):
        back = {target: source for rule in rules for source, target in (rule.casts or {}).items()}
        sources = {original.dtype for original, _ in changed}
        casts = {t: s for t, s in back.items() if s in sources}
        restored = [_mapped(part, lambda t: _guessed(t, originals, casts)) for part in parts]
    else:
        restored = [_mapped(part, lambda t: originals.get(id(t), t)) for part in parts]
        restored = [
            _restored_one(part, kind, None) for part, kind in zip(restored, expected, strict=True)
        ]
    return restored[0] if single else tuple(restored)


def _guessed(tensor: Tensor, originals: Mapping[int, Tensor], casts: Casts) -> Tensor:
    """Restore the type of a converted argument, where the meaning does not determine the type."""
    original = originals.get(id(tensor))
    if original is not None:
        return original
    return tensor.to(casts.get(tensor.dtype, tensor.dtype))


def _restored_one(value: Any, kind: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor) and isinstance(kind, Described):
        if value.dtype == kind.dtype and (value.stride() == kind.stride or value.numel() == 0):
            return value
        if tuple(value.shape) != kind.shape:
            return value  # a wrong shape must stay visible
        return kind.empty(device or value.device).copy_(value)
    if isinstance(value, (list, tuple)) and isinstance(kind, tuple):
        return [_restored_one(v, k, device) for v, k in zip(value, kind, strict=True)]
    return value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (Tensor, Described)):
        return change(value)
    return [_mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _suspicious(value: Any, dtypes: frozenset[torch.dtype], args: Sequence[Any]) -> bool:
    """Whether a result may have the kernel's type instead of the requested one."""
    if isinstance(value, Tensor):
        if value.dtype not in dtypes:
            return False
        # indices are never of a floating type, and all other results follow the arguments
        same = any(isinstance(a, Tensor) and a.dtype == value.dtype for a in args)
        return not (same and value.dtype.is_floating_point)
    return isinstance(value, (list, tuple)) and any(
        _suspicious(item, dtypes, args) for item in value
    )


def _device(call: Call) -> torch.device:
    for value in (*call[0], *call[1].values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                return item.device
    return torch.device("cpu")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
