# SPDX-License-Identifier: Apache-2.0
"""OpFallback: runs chosen operators on the CPU instead of the device."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.core import op_names, terminal, tool_errors
from op_tools.core.call import Call, device_of, tensors
from op_tools.core.filters import signature
from op_tools.core.options import Options
from op_tools.core.tool import Started, Substitute
from op_tools.tensors.host_transfer import (
    Copies,
    Draws,
    Saved,
    converted,
    mapped,
    no_autocast,
    placed,
    random_numbers_of,
    random_state_kept,
)

HALVES = (torch.float16, torch.bfloat16)
# Autocast sets their `dtype` to float32 and leaves the arguments unchanged, so the gradients are
# computed in the type of the arguments.
BY_DTYPE = frozenset("prod softmax log_softmax cumprod cumsum sum".split())


class OnCopies(Substitute):
    """Runs calls on copies of their arguments. Views compute nothing, and are left alone."""

    def begin(self, options: Options) -> None:
        self.hits: Counter[str] = Counter()
        self._dtypes: dict[Hashable, list[torch.dtype]] = {}

    def expected(self, call: Call, device: torch.device, *more: Hashable) -> list[torch.dtype]:
        """The types of the results on the device, determined once for each signature."""
        key = (signature(call), torch.is_autocast_enabled(device.type), *more)
        if key not in self._dtypes:
            self._dtypes[key] = dtypes_on_device(call, device)
        return self._dtypes[key]

    def summary(self, text: str) -> list[str]:
        """The counts of calls by operator; `text` describes what the tool did."""
        total = sum(self.hits.values())
        lines = [
            _(
                "{name}: {total} {total:call|calls} of {count} {count:operator|operators} {text}"
            ).format(name=type(self).__name__, total=total, count=len(self.hits), text=text)
        ]
        if self.hits:
            lines.append("  " + ", ".join(f"{n} x {name}" for name, n in self.hits.most_common(8)))
        return lines


def computing_device(call: Call) -> torch.device | None:
    """The device that computes a call; None for the host, and for views and copies."""
    device = device_of(call.args, call.kwargs)
    if device is None or device.type == "cpu" or moves(call) or not dense(call):
        return None
    is_view = call.level == "aten" and getattr(call.func, "is_view", False)
    return None if is_view else device


class OpFallback(OnCopies):
    """Runs operators on the CPU. Results, writes, aliases and gradients are returned on the device.

    Views and copies between devices compute nothing and run on the device.
    """

    key = "FALLBACK"
    hook = "OpFallbackHook"
    excluded = op_names.VIEWS | op_names.UNINITIALISED | frozenset({"cpu", "numpy", "pin_memory"})
    excluded |= {"_efficientzerotensor"}  # zeros without memory

    def begin(self, options: Options) -> None:
        super().begin(options)
        self._rejected: dict[Hashable, bool] = {}

    def substitute(self, call: Call) -> Any:
        device = computing_device(call)
        if device is None:
            return NotImplemented
        if self._rejects(call, device):  # the program gets the device's own error
            return NotImplemented
        with random_numbers_of(device) as draws:
            done = self._on_host(call, device, draws)
            if done.has_view:
                draws.advances = False
                return NotImplemented
        returned = give_back(call, done, device)
        self.hits[call.name] += 1
        if terminal.verbose():
            _show(call, done.copies, done.result, returned)
        return returned

    def _rejects(self, call: Call, device: torch.device) -> bool:
        """Whether the device raises because tensors of the call are on several devices."""
        if call.level not in ("api", "aten") or not _is_mixed(call):
            return False
        key = (signature(call), *(tensor.device for tensor in call.inputs))
        if key not in self._rejected:
            self._rejected[key] = False
            try:
                dtypes_on_device(call, device)
            except (RuntimeError, ValueError) as error:
                is_missing = isinstance(error, NotImplementedError)  # a kernel, which the CPU has
                self._rejected[key] = not is_missing and bool(_ABOUT_DEVICES.search(str(error)))
        return self._rejected[key]

    def _on_host(self, call: Call, device: torch.device, draws: Draws | None = None) -> Done:
        draws = Draws() if draws is None else draws
        if torch.is_autocast_enabled(device.type):
            return self._under_autocast(call, device, draws)
        state = torch.get_rng_state()
        try:
            return run_on_host(call, None, draws)
        except (RuntimeError, NotImplementedError):
            if not any(t.dtype in HALVES for t in tensors(call.args, call.kwargs)):
                raise
        torch.set_rng_state(state)
        draws.restart()
        done = run_on_host(call, torch.float32, draws)  # the CPU lacks some half kernels
        lost = {t.dtype for t in tensors(call.args, call.kwargs) if t.is_floating_point()}
        if len(lost) == 1:
            wanted = lost.pop()
            done.cast(lambda t: wanted if t.is_floating_point() else t.dtype)
        return done

    def _under_autocast(self, call: Call, device: torch.device, draws: Draws) -> Done:
        """Run in the types that the autocast of the device chooses."""
        chosen = torch.get_autocast_dtype(device.type)
        wanted = self.expected(call, device, chosen)
        floating = [dtype for dtype in wanted if dtype.is_floating_point]
        if chosen in floating:
            with torch.autocast("cpu", dtype=chosen):
                done = run_on_host(call, None, draws)
        else:
            raised = torch.float32 if torch.float32 in floating else None
            if raised is not None and op_names.last(call.name) in BY_DTYPE:
                call = call.with_arguments(call.args, {**call.kwargs, "dtype": raised})
                raised = None
            with no_autocast(device):
                done = run_on_host(call, raised, draws)
        expected = iter(wanted)
        done.cast(lambda _: next(expected))
        return done

    def finish(self, started: Started) -> None:
        terminal.summary(self, started, self.summary(_("ran on the CPU")))


def moves(call: Call) -> bool:
    """Whether a call copies a tensor to another device, which the CPU must not do."""
    if (
        op_names.last(call.name) not in op_names.TRANSFERS
        and op_names.last(call.name) != "_to_copy"
    ):
        return False
    if call.kwargs.get("device") is not None:
        return True
    others = call.args[1:]
    return op_names.last(call.name) not in ("to", "_to_copy") or any(
        isinstance(value, (str, int, torch.device, Tensor)) and not isinstance(value, bool)
        for value in others
    )


def dense(call: Call) -> bool:
    """Whether all tensors are dense; a call with other tensors runs on the device."""
    for tensor in tensors(call.args, call.kwargs):
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            tool_errors.skip(_("sparse, nested or quantized tensors"))
            return False
    return True


_ABOUT_DEVICES = re.compile(r"same device|two devices|should be the same|on cpu|for generator")


def _is_mixed(call: Call) -> bool:
    """Whether a tensor with dimensions, or a generator, of a call on a device is on the CPU."""
    if any(t.device.type == "cpu" and t.dim() for t in call.inputs):
        return True
    return any(g.device.type == "cpu" for g in generators_of(call))


@dataclass
class Done:
    """A call on copies of its arguments: result, copies, and tensors saved for autograd."""

    result: Any
    copies: Copies
    saved: Saved

    @property
    def has_view(self) -> bool:
        """Whether a result is a view of a copy, which should be a view of the argument."""
        sharing, original_of = self.copies.sharing, self.copies.original_of
        return any(sharing(t) is not None and original_of(t) is None for t in tensors(self.result))

    def cast(self, dtype_of: Callable[[Tensor], torch.dtype]) -> None:
        """Cast the results; one that is an argument and has its type stays the argument."""
        self.result = mapped(self.result, lambda leaf: self._cast(leaf, dtype_of))

    def _cast(self, leaf: Any, dtype_of: Callable[[Tensor], torch.dtype]) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dtype = dtype_of(leaf)
        original = self.copies.original_of(leaf)
        if original is not None and original.dtype != dtype:
            return leaf.to(dtype, copy=True)
        return leaf if original is not None or leaf.dtype == dtype else leaf.to(dtype)


def run_on_host(call: Call, halves_as: torch.dtype | None, draws: Draws) -> Done:
    """Run a call on the CPU, on copies that autograd connects with the arguments."""

    def copy(tensor: Tensor) -> Tensor:
        raised = halves_as is not None and tensor.dtype in HALVES
        return converted(tensor, _CPU, halves_as if raised else None)

    return run_on_copies(call, copy, draws)


def run_on_copies(call: Call, copy: Callable[[Tensor], Tensor], draws: Draws) -> Done:
    """Run a call on the CPU, on copies of its arguments and the generators of `draws`."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            return draws.on_host(leaf)
        return _CPU if isinstance(leaf, torch.device) else leaf

    copies = Copies(copy, call=call)
    args = mapped(copies.of(call.args), change)
    kwargs = {key: mapped(value, change) for key, value in copies.of(call.kwargs).items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = _CPU
    return run(call, copies, args, kwargs)


def run(call: Call, copies: Copies, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
    """Run a call on arguments that contain `copies`."""
    saved = Saved(copies)
    with saved.hooks():
        return Done(call.run_on(args, kwargs), copies, saved)


_CPU = torch.device("cpu")
# The place of a result that is on the CPU on every device.
_STAY = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}


def give_back(
    call: Call, done: Done, device: torch.device, dtypes: Iterable[torch.dtype] | None = None
) -> Any:
    """Write back the written copies, and move the results to the device, cast to `dtypes` if given.

    A result that is an argument stays the argument.
    """
    types = itertools.repeat(None) if dtypes is None else iter(dtypes)
    for written in done.copies.written():
        written.write_back()
    moved: list[tuple[Tensor, Tensor]] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        replacement, dtype = done.copies.original_of(leaf), next(types)
        if replacement is None:
            replacement = placed(leaf, device, dtype)
        moved.append((leaf, replacement))
        return replacement

    stays = _STAY.get(op_names.last(call.name))
    if stays is None:
        returned = mapped(done.result, place)
    else:
        returned = tuple(v if at == stays else place(v) for at, v in enumerate(done.result))
    done.saved.returned(moved)
    return returned


def generators_of(call: Call) -> list[torch.Generator]:
    """The generators among the arguments of a call."""
    return [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, torch.Generator)]


def dtypes_on_device(call: Call, device: torch.device) -> list[torch.dtype]:
    """The types of the results, by one call on copies, which leaves no trace."""
    copies = Copies(lambda tensor: tensor.detach().clone())
    with random_state_kept(device, generators_of(call)), torch.no_grad():
        result = call.func(*copies.of(call.args), **copies.of(call.kwargs))
    return [tensor.dtype for tensor in tensors(result)]


def _show(call: Call, copies: Copies, on_host: Any, on_device: Any) -> None:
    name = call.name
    args, kwargs = copies.of((call.args, call.kwargs))
    terminal.show_call(
        f"{name}    forward_id: {call.id}",
        call,
        [
            *terminal.argument_rows(f"{name} input(device)", call.args, call.kwargs),
            *terminal.argument_rows(f"{name} input(cpu)", args, kwargs),
            *terminal.tensor_rows(f"{name} output(device)", on_device),
            *terminal.tensor_rows(f"{name} output(cpu)", on_host),
        ],
    )
