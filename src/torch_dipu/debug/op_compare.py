# SPDX-License-Identifier: Apache-2.0
"""Comparison of one operator call with the CPU: its inputs before the call,
its results after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:  # the judge is loaded by the first comparison
    from deeplink.judge import Verdict

HOST = torch.device("cpu")
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# Operators that only a device has, or has in more types: their replacement on the host (kTargets
# of csrc/engine/operator.cpp), and the arguments that the replacement lacks.
ON_HOST = {
    "aten::histc": torch.ops.dipu_host.histc.default,
    "aten::histc.out": torch.ops.dipu_host.histc.out,
    "aten::convolution_overrideable": torch.ops.aten.convolution.default,
    "aten::convolution_backward_overrideable": torch.ops.aten.convolution_backward.default,
}
# Operators that select elements of their first argument: among equal elements any index is correct.
# Each has its default dimension, and whether an element may be selected once only.
CHOICES: dict[str, tuple[int | None, bool]] = {
    **dict.fromkeys(("argmax", "argmin", "max", "min", "median", "nanmedian"), (None, False)),
    **dict.fromkeys(("mode", "kthvalue"), (-1, False)),
    **dict.fromkeys(("sort", "topk"), (-1, True)),
}
UNINITIALISED = ("empty", "new_empty", "resize_", "set_", "_resize")


@dataclass(frozen=True)
class Call:
    """An operator and the arguments with which the device was called."""

    operator: str  # "aten::add.Tensor"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @cached_property
    def overload(self) -> Any:
        namespace, _, name = self.operator.partition("::")
        base, _, overload = name.partition(".")
        return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")

    def arguments(self) -> Iterator[tuple[Any, Any]]:
        """Yield each argument's declaration and value, in the order of the schema."""
        declared = self.overload._schema.arguments
        yield from zip(declared, self.args, strict=False)
        for argument in declared[len(self.args) :]:
            if argument.name in self.kwargs:
                yield argument, self.kwargs[argument.name]

    @property
    def has_number(self) -> bool:
        """Whether a number is passed for a declared tensor, as in x * 3."""
        return any(
            str(argument.type) == "Tensor" and is_number(value)
            for argument, value in self.arguments()
        )

    @property
    def comparable(self) -> bool:
        """Whether a second run gives equal results: no random numbers, no uninitialised memory."""
        base = self.operator.partition("::")[2].partition(".")[0]
        random = torch.Tag.nondeterministic_seeded in self.overload.tags
        return not random and not base.startswith(UNINITIALISED)


def is_number(value: Any) -> bool:
    """Whether a value is a number or torch's form of one: a host tensor without dimensions."""
    if isinstance(value, Tensor):
        return value.device.type == HOST.type and value.dim() == 0
    return isinstance(value, (bool, int, float, complex))


@dataclass(frozen=True)
class CallSnapshot:
    """A call with host copies of its arguments as they were before the call."""

    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One part of a call: its name, the CPU's tensor, the device's tensor, and the verdict."""

    label: str
    host: Tensor
    device: Tensor
    verdict: Verdict
    result: bool  # a result, or an argument that must be unchanged


def snapshot(call: Call) -> CallSnapshot | None:
    """Copy the arguments before the call can write them; None for calls that are not compared."""
    if not call.comparable:
        return None
    return CallSnapshot(call, *_copied(call.args, call.kwargs, _to_host))


def _copied(
    args: tuple[Any, ...], kwargs: dict[str, Any], copy: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy every leaf by `copy`; tensors that share memory get copies that share memory."""
    sharing: dict[tuple[int, torch.dtype], list[Tensor]] = {}
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.numel():
            sharing.setdefault((leaf.untyped_storage().data_ptr(), leaf.dtype), []).append(leaf)
    whole: dict[tuple[int, torch.dtype], Tensor] = {}
    for key, group in sharing.items():
        if len(group) > 1 and not any(tensor.is_conj() or tensor.is_neg() for tensor in group):
            count = group[0].untyped_storage().nbytes() // group[0].element_size()
            whole[key] = copy(group[0].detach().as_strided((count,), (1,), 0))

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or not leaf.numel():
            return copy(leaf)
        base = whole.get((leaf.untyped_storage().data_ptr(), leaf.dtype))
        if base is None:
            return copy(leaf)
        return base.as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())

    return tree_map(copied, args), tree_map(copied, kwargs)


def compare(taken: CallSnapshot, result: Any) -> list[Row]:
    """Compare the results, then the arguments.

    Arguments that the operator writes on the CPU are compared with the CPU's; the others must be as
    they were before the call.
    """
    plain = _Run(taken, {})
    wide = _Run(taken, WIDE)
    written = {a.name for a, _ in taken.call.arguments() if _writes(a)}
    rows = []
    if not written:
        for label, device, at in _labelled(result):
            rows.append(_row(label, device, _result(at), plain, wide))
    before = dict(_tensors(taken.call, taken.args, taken.kwargs))
    for label, device in _tensors(taken.call, taken.call.args, taken.call.kwargs):
        if label.partition("[")[0] in written:
            rows.append(_row(label, device, _argument(label), plain, wide))
        else:
            rows.append(_input(label, before[label], device, plain, wide))
    return rows


class _Run:
    """The call on the host, in its own types or in wider ones; computed at first use."""

    def __init__(self, taken: CallSnapshot, types: dict[torch.dtype, torch.dtype]) -> None:
        self._taken, self._types = taken, types

    @cached_property
    def _done(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        call = self._taken.call
        args, kwargs = _copied(self._taken.args, self._taken.kwargs, self._fresh)
        result = _on_host(call)(*args, **kwargs)
        return [t for _, t, _ in _labelled(result)], dict(_tensors(call, args, kwargs))

    @property
    def results(self) -> list[Tensor]:
        return self._done[0]

    @property
    def after(self) -> dict[str, Tensor]:
        return self._done[1]

    def chooses(self, found: Tensor, expected: Tensor) -> bool:
        """Whether indices select elements equal to those that the CPU selected."""
        from deeplink.judge import same_choice

        call = self._taken.call
        base = call.operator.partition("::")[2].partition(".")[0]
        if found.dtype != torch.int64 or base not in CHOICES:
            return False
        default, distinct = CHOICES[base]
        given = {argument.name: value for argument, value in call.arguments()}
        values = self._taken.args[0]
        return same_choice(values, found, expected, given.get("dim", default), distinct)

    def _fresh(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            wider = self._types.get(value.dtype)
            return value.to(wider) if wider else value.clone()
        return self._types.get(value, value) if isinstance(value, torch.dtype) else value


def _on_host(call: Call) -> Callable[..., Any]:
    found = ON_HOST.get(call.operator)
    if found is None:
        return call.overload  # type: ignore[no-any-return]
    if "backward" not in call.operator:
        return found

    def backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        transposed, groups = rest[3], rest[5]
        channels = weight.size(1) * groups if transposed else weight.size(0)
        return found(grad, x, weight, [channels], *rest)

    return backward


def _result(at: int) -> Callable[[_Run], Tensor]:
    return lambda run: run.results[at]


def _argument(label: str) -> Callable[[_Run], Tensor]:
    return lambda run: run.after[label]


def _row(
    label: str, device: Tensor, part: Callable[[_Run], Tensor], plain: _Run, wide: _Run
) -> Row:
    from deeplink.judge import judge

    found, expected = _to_host(device), part(plain)
    if found.dtype == expected.dtype and (_same(found, expected) or plain.chooses(found, expected)):
        verdict = judge(expected, expected)
    else:
        verdict = judge(found, _reference(part, wide, expected), run_plain=lambda: expected)
    return Row(label, expected, device, verdict, result=True)


def _reference(part: Callable[[_Run], Tensor], wide: _Run, plain: Tensor) -> Tensor:
    try:
        return part(wide)
    # the operator has no wider type: the CPU's result in its own type is the reference
    except Exception:
        return plain


def _input(label: str, before: Tensor, device: Tensor, plain: _Run, wide: _Run) -> Row:
    """Judge an argument: its bits must be unchanged.

    Where the CPU changes the argument, too (running statistics, memory of a result), it must have
    the CPU's values.
    """
    from deeplink.judge import judge

    if not _same(before, plain.after[label]):
        return replace(_row(label, device, _argument(label), plain, wide), result=False)
    verdict = judge(_to_host(device), before, tolerance=None if _exact(before) else (0.0, 0.0))
    return Row(label, before, device, verdict, result=False)


def _exact(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have equal values; NaN equals NaN."""
    return a.shape == b.shape and bool(torch.equal(a, b) or _equal_with_nan(a, b))


def _equal_with_nan(a: Tensor, b: Tensor) -> bool:
    if _exact(a) or a.layout != torch.strided:
        return False
    return bool(torch.where(a.isnan(), b.isnan(), a == b).all())


def _to_host(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return torch.device("cpu") if isinstance(value, torch.device) else value
    return value.detach().cpu() if value.device.type != HOST.type else value.detach().clone()


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _tensors(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor among the arguments with its name: "self", "tensors[1]"."""
    for argument, value in Call(call.operator, args, kwargs).arguments():
        if isinstance(value, Tensor):
            yield argument.name, value
        elif isinstance(value, (list, tuple)):
            for at, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield f"{argument.name}[{at}]", item


def _labelled(result: Any) -> Iterator[tuple[str, Tensor, int]]:
    """Yield each tensor of a result with its name: "out", or "out0", "out1"."""
    single = isinstance(result, Tensor)
    listed = [result] if single else list(result) if isinstance(result, (list, tuple)) else []
    flat: list[Any] = []
    for item in listed:
        flat += item if isinstance(item, (list, tuple)) else [item]
    tensors = [item for item in flat if isinstance(item, Tensor)]
    for at, tensor in enumerate(tensors):
        yield "out" if single else f"out{at}", tensor, at
