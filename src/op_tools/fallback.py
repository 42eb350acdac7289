"""OpFallback: chosen operators run on the CPU, as if the device had done it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from op_tools import diagnostics, names, report
from op_tools.call import Call, device_of, tensors
from op_tools.filters import signature
from op_tools.host import Copies, mapped, no_autocast, random_numbers_of, random_state_kept
from op_tools.options import Options
from op_tools.tool import Started, Substitute

HALVES = (torch.float16, torch.bfloat16)


class OpFallback(Substitute):
    """Results, writes to arguments, aliases and gradients are those of the operator on the CPU,
    on the device. Views and copies between devices are left to the device: they compute nothing.
    """

    key = "FALLBACK"
    hook = "OpFallbackHook"
    excluded = names.VIEWS | names.UNINITIALISED | frozenset({"cpu", "numpy", "pin_memory"})
    excluded |= {"_efficientzerotensor"}  # zeros without memory

    def begin(self, options: Options) -> None:
        self.hits: Counter[str] = Counter()
        self._dtypes: dict[Hashable, list[torch.dtype]] = {}

    def substitute(self, call: Call) -> Any:
        device = device_of(call.args, call.kwargs)
        if device is None or device.type == "cpu" or moves(call) or not dense(call):
            return NotImplemented
        if call.level == "aten" and getattr(call.func, "is_view", False):
            return NotImplemented
        with random_numbers_of(device):
            result, copies = self._on_host(call, device)
        if any(
            copies.shares(t) and copies.original_of(t) is None for t in tensors(result)
        ):  # a view of an argument: on the host it would be one of the copy
            return NotImplemented
        self.hits[call.name] += 1
        returned = give_back(call, result, copies, device)
        if report.verbose():
            _show(call, copies, result, returned)
        return returned

    def _on_host(self, call: Call, device: torch.device) -> tuple[Any, Copies]:
        if torch.is_autocast_enabled(device.type):
            return self._under_autocast(call, device)
        try:
            return run_on_host(call, None)
        except (RuntimeError, NotImplementedError):
            if not any(t.dtype in HALVES for t in tensors(call.args, call.kwargs)):
                raise
        result, copies = run_on_host(call, torch.float32)  # the CPU lacks some half kernels
        lost = {t.dtype for t in tensors(call.args, call.kwargs) if t.is_floating_point()}
        if len(lost) == 1:
            wanted = lost.pop()
            result = mapped(result, lambda t: _cast(t, wanted, copies))
        return result, copies

    def _under_autocast(self, call: Call, device: torch.device) -> tuple[Any, Copies]:
        """In the types that the device's autocast chooses, which the CPU's may not."""
        chosen = torch.get_autocast_dtype(device.type)
        key = (signature(call), chosen)
        if key not in self._dtypes:
            self._dtypes[key] = dtypes_on_device(call, device)
        wanted = self._dtypes[key]
        floating = [dtype for dtype in wanted if dtype.is_floating_point]
        if chosen in floating:
            with torch.autocast("cpu", dtype=chosen):
                result, copies = run_on_host(call, None)
        else:
            raised = torch.float32 if torch.float32 in floating else None
            with no_autocast(device):
                result, copies = run_on_host(call, raised)
        expected = iter(wanted)
        return mapped(
            result, lambda t: _cast(t, next(expected), copies) if isinstance(t, Tensor) else t
        ), copies

    def finish(self, started: Started) -> None:
        total = sum(self.hits.values())
        lines = [f"OpFallback: {total} calls of {len(self.hits)} operators ran on the CPU"]
        if self.hits:
            lines.append("  " + ", ".join(f"{n} x {name}" for name, n in self.hits.most_common(8)))
        report.summary(self, started, lines)


def moves(call: Call) -> bool:
    """Whether a call moves a tensor to another device: that is not the CPU's to do."""
    if names.last(call.name) not in names.TRANSFERS and names.last(call.name) != "_to_copy":
        return False
    if call.kwargs.get("device") is not None:
        return True
    others = call.args[1:]
    return names.last(call.name) not in ("to", "_to_copy") or any(
        isinstance(value, (str, int, torch.device, Tensor)) and not isinstance(value, bool)
        for value in others
    )


def dense(call: Call) -> bool:
    """Whether every tensor is a plain one; a call with another kind is left to the device."""
    for tensor in tensors(call.args, call.kwargs):
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            return diagnostics.refuse("sparse, nested or quantized tensors")
    return True


def run_on_host(call: Call, halves_as: torch.dtype | None) -> tuple[Any, Copies]:
    """The call on copies of its arguments, which autograd follows back to the device."""

    def copy(tensor: Tensor) -> Tensor:
        moved = tensor.cpu() if tensor.device.type != "cpu" else tensor
        raised = halves_as is not None and tensor.dtype in HALVES
        return moved.to(halves_as) if raised else moved

    copies = Copies(copy)
    args, kwargs = copies.of(call.args), copies.of(call.kwargs)
    args = mapped(args, _to_cpu)
    kwargs = {key: mapped(value, _to_cpu) for key, value in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    return call.func(*args, **kwargs), copies


def _to_cpu(leaf: Any) -> Any:
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def give_back(call: Call, result: Any, copies: Copies, device: torch.device) -> Any:
    """Writes what the call wrote, and moves its results: an argument stays that argument."""
    for original, copy in copies.mutated(call):
        if original.shape != copy.shape:
            with torch.no_grad():
                original.resize_(copy.shape)
        original.copy_(copy)

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        original = copies.original_of(leaf)
        return original if original is not None else leaf.to(device)

    return mapped(result, place)


def _cast(leaf: Any, dtype: torch.dtype, copies: Copies) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf if copies.original_of(leaf) is not None else leaf.to(dtype)


def dtypes_on_device(call: Call, device: torch.device) -> list[torch.dtype]:
    """The types of the results, by doing the call once on copies; nothing is left of it."""
    copies = Copies(lambda tensor: tensor.detach().clone())
    with random_state_kept(device), torch.no_grad():
        result = call.func(*copies.of(call.args), **copies.of(call.kwargs))
    return [tensor.dtype for tensor in tensors(result)]


def _show(call: Call, copies: Copies, on_host: Any, on_device: Any) -> None:
    name = call.name
    args, kwargs = copies.of((call.args, call.kwargs))
    report.show_call(
        f"fallback    {name}    forward_id: {call.id}",
        call,
        [
            *report.argument_rows(f"{name} input(device)", call.args, call.kwargs),
            *report.argument_rows(f"{name} input(cpu)", args, kwargs),
            *report.tensor_rows(f"{name} output(device)", on_device),
            *report.tensor_rows(f"{name} output(cpu)", on_host),
        ],
    )
