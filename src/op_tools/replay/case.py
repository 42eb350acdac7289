# SPDX-License-Identifier: Apache-2.0
"""Captured calls: find them on disk, and replay them on any device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import vendor
from deeplink.i18n import _
from deeplink.vendor import Vendor
from op_tools.capture import encoding, folder_store
from op_tools.capture.encoding import Device, Drawing, Opaque, Recorded
from op_tools.capture.packed_reader import SUFFIX, Archive
from op_tools.core import dispatch, op_names
from op_tools.core.call import tensors
from op_tools.replay.allowed_functions import ReplayError, function_of
from op_tools.tensors.host_transfer import mapped
from op_tools.tensors.snapshot import extent, rebuild, values


@dataclass(frozen=True)
class Case:
    """A captured call on disk; `load()` reads it."""

    where: str  # of a folder its path, of an archive its path and the call's id
    name: str = field(default="", compare=False)
    archive: Archive | None = field(default=None, repr=False, compare=False)
    call: int = 0
    problem: str = field(default="", repr=False, compare=False)  # why it cannot be read

    def load(self) -> Recorded:
        """Read the call with its tensors on the CPU; ReplayError where it cannot be read."""
        if self.problem:
            raise ReplayError(self.problem)
        return self.archive.load(self.call) if self.archive else folder_store.read(Path(self.where))


@dataclass(frozen=True)
class Replayed:
    """The results of a replay."""

    result: Any
    mutated: dict[int, Tensor]  # arguments that were captured as written, after the replay
    gradients: list[Tensor | None] | None  # of the arguments; None: no backward pass
    random: bool  # it generated random numbers
    device: torch.device


def load_cases(path: str | Path) -> list[Case]:
    """Find every captured call under a path: a folder of calls, an archive, or a folder of both."""
    root = Path(path)
    if not root.exists():
        raise ReplayError(_("there is nothing at {root}.").format(root=root))
    cases = list(_archived(root)) if root.is_file() else []
    if root.is_dir():
        cases = [Case(str(folder)) for folder in folder_store.find(root)]
        for file in sorted(root.rglob(f"*{SUFFIX}")):
            cases += _archived(file)
    if not cases:
        raise ReplayError(
            _(
                "no captured call at {root}: neither a folder with input.pth nor a *{suffix} file."
            ).format(root=root, suffix=SUFFIX),
            _("give the folder that OpCapture wrote to, op_tools_results unless it was set."),
        )
    return cases


def _archived(file: Path) -> Iterator[Case]:
    """Yield the calls of an archive, and a case with a problem for damaged ones."""
    try:
        archive = Archive(file)
    except ValueError as error:
        yield Case(str(file), problem=str(error))
        return
    for call in archive:
        yield Case(f"{file}#{call}", archive.header(call)["name"], archive, call)
    if archive.problem:
        yield Case(str(file), problem=archive.problem)


def replay(
    case: Case | Recorded, device: str | torch.device | None = None, trust: Sequence[str] = ()
) -> Replayed:
    """Replay a call. Without a device: on the captured one where this machine has it.

    `trust` names packages other than torch whose functions may be called. The backward pass runs
    from the captured gradients of the results.
    """
    recorded = case.load() if isinstance(case, Case) else case
    target = target_device(str(device)) if device is not None else home(recorded)
    return Prepared(recorded, target, trust).run()


class Prepared:
    """A call ready to run, with its arguments on a device."""

    def __init__(
        self,
        recorded: Recorded,
        device: torch.device,
        trust: Sequence[str] = (),
        backward: bool = True,
    ) -> None:
        self.recorded = recorded
        self.device = device
        self.func = function_of(recorded, device, trust)
        places = (str(recorded.header.get("device") or ""), *recorded.devices)
        self._accelerated = any(place and not place.startswith("cpu") for place in places)
        self.wants_backward = backward and bool(
            recorded.grad_outputs and any(g is not None for g in recorded.grad_outputs)
        )
        self.fresh()

    def fresh(self) -> None:
        """Copy the captured arguments to the device again: a run may have written them."""
        recorded = self.recorded
        captured = list(tensors(recorded.args, recorded.kwargs))
        self._first = {id(t): at for at, t in reversed(list(enumerate(captured)))}
        self._copies: dict[int, Tensor] = {}  # by the id of the captured tensor
        self._leaves: dict[int, Tensor] = {}  # that need a gradient, by the id of the argument
        with torch.no_grad():
            self.args, self.kwargs = mapped((recorded.args, recorded.kwargs), self._value)
        # the tensors among the arguments, with the values that runs have written
        self.inputs = [self._copies[id(tensor)] for tensor in captured]
        if isinstance(self.kwargs.get("device"), (str, int)):
            self.kwargs["device"] = self._place(self.kwargs["device"])
        if op_names.last(recorded.name) == "to" and isinstance((*self.args, None)[1], (str, int)):
            self.args = (self.args[0], self._place(self.args[1]), *self.args[2:])

    @property
    def wanted(self) -> frozenset[int]:
        """The ids of the arguments whose gradients are computed."""
        return frozenset(self._leaves)

    def run(self) -> Replayed:
        """Run forward, and backward where gradients were captured."""
        state = _random_state(self.device)
        with dispatch.unseen(), self.modes():
            result = self.forward()
        random = _random_state(self.device) != state
        gradients = self.backward(result) if self.wants_backward else None
        mutated = {at: self.inputs[at].detach() for at in self.recorded.mutated}
        return Replayed(result, mutated, gradients, random, self.device)

    def forward(self) -> Any:
        with torch.set_grad_enabled(self.wants_backward):
            return self.func(
                *mapped(self.args, self._through), **mapped(self.kwargs, self._through)
            )

    def modes(self) -> AbstractContextManager[Any]:
        """Enter autocast as it was at the call."""
        cast = self.recorded.header.get("autocast")
        if not cast:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, cast[1]))

    def backward(self, result: Any) -> list[Tensor | None]:
        """Compute the gradients of the arguments, one for each tensor among them."""
        outputs, seeds = [], []
        for output, seed in zip(tensors(result), self.recorded.grad_outputs or [], strict=False):
            if seed is not None and output.requires_grad:
                outputs.append(output)
                seeds.append(seed.detach().to(self.device).to(output.dtype))
        leaves = list(dict.fromkeys(self._leaves.values()))
        if not outputs or not leaves:
            return [None] * len(self.inputs)
        with dispatch.unseen():
            gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        by_leaf = {id(leaf): grad for leaf, grad in zip(leaves, gradients, strict=True)}
        # the gradient of a tensor that occurs twice is at its first place
        return [by_leaf.pop(id(self._leaves.get(id(each))), None) for each in self.inputs]

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (torch.device, Device)):
            return self._place(value)
        if isinstance(value, Drawing):
            generator = torch.Generator(self.device)
            if encoding.device_type(value.device) == self.device.type:
                generator.set_state(value.state)
            return generator
        if isinstance(value, Opaque):
            raise ReplayError(
                _("an argument was not captured, only its text: {value}").format(value=value)
            )
        return value

    def _place(self, named: torch.device | str | int) -> Any:
        """Map a captured device argument to the replay's device; the host stays the host."""
        return named if encoding.device_type(named) in ("cpu", "meta") else self.device

    def _tensor(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device with its strides; a CPU tensor of a device call stays."""
        if id(tensor) in self._copies:
            return self._copies[id(tensor)]
        at = self._first.get(id(tensor), -1)
        stays = at >= 0 and self.recorded.devices[at].startswith("cpu") and self._accelerated
        copy = copy_to(tensor, torch.device("cpu") if stays else self.device)
        grads = self.recorded.grad_inputs or []
        wants = tensor.requires_grad or (0 <= at < len(grads) and grads[at] is not None)
        if self.wants_backward and wants and (copy.is_floating_point() or copy.is_complex()):
            self._leaves[id(copy)] = copy.requires_grad_()
        self._copies[id(tensor)] = copy
        return copy

    def _through(self, value: Any) -> Any:
        """Replace a leaf that the call writes by a copy: autograd refuses writes to leaves."""
        if not isinstance(value, Tensor) or id(value) not in self._leaves:
            return value
        places = [at for at, each in enumerate(self.inputs) if each is value]
        in_place = op_names.sounds_in_place(self.recorded.name)
        if not (in_place or self.recorded.written.intersection(places)):
            return value
        passed: Tensor = _Identity.apply(value)  # type: ignore[no-untyped-call]
        self._leaves[id(passed)] = value
        for at in places:
            self.inputs[at] = passed
        return passed


class _Identity(torch.autograd.Function):
    """A copy with the same strides, through which gradients pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return copy_to(tensor, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device with its strides."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_contiguous():
        return tensor.to(device, copy=True)
    shape, stride = tuple(tensor.shape), tensor.stride()
    copy = rebuild(values(tensor), shape, stride)
    if device.type == "cpu":
        return copy
    if not copy.numel():
        return torch.empty_strided(shape, stride, dtype=copy.dtype, device=device)
    return copy.as_strided((extent(shape, stride),), (1,)).to(device).as_strided(shape, stride)


def _random_state(device: torch.device) -> tuple[bytes, ...]:
    states = [torch.get_rng_state()]
    module = getattr(torch, device.type, None)
    if device.type not in ("cpu", "meta") and hasattr(module, "get_rng_state"):
        states.append(module.get_rng_state(device))  # type: ignore[union-attr]
    return tuple(state.numpy().tobytes() for state in states)


# Devices.


def home(recorded: Recorded) -> torch.device:
    """The captured device where this machine has it, else the chosen vendor's device."""
    was = str(recorded.header.get("device") or "")
    kind = encoding.device_type(was)
    for name in (was, kind):
        if name and not _problem(name):
            return torch.device(name)
    return default_device(kind)


@cache
def target_device(wanted: str) -> torch.device:
    """The device that a user names for a replay; ReplayError when this machine does not have it.

    "cuda" is the chosen vendor's device where there is no CUDA, as ditorch has it.
    """
    kind, colon, index = wanted.partition(":")
    chosen = default_device(kind)
    name = wanted
    if kind == "cuda" != chosen.type and _problem(kind):
        name = chosen.type + (colon + index if chosen.type != "cpu" else "")
    problem = _problem(name)
    if not problem:
        return torch.device(name)
    allowed = sorted({"cpu", "cuda", *(row.device for row in _available())})
    raise ReplayError(
        _("device {wanted!r} cannot be used: {problem}; allowed: {names}.").format(
            wanted=wanted, problem=problem, names=", ".join(allowed)
        ),
        _("`deeplink doctor` shows the devices of this machine."),
    )


@cache
def default_device(kind: str = "") -> torch.device:
    """The device of the available vendor of this kind, else of the chosen vendor."""
    chosen = next((v for v in _available() if v.device == kind), None) or vendor.choose().vendor
    if chosen.device_module and _problem(chosen.device):
        importlib.import_module(chosen.device_module)
    return torch.device(chosen.device)


def _available() -> list[Vendor]:
    return [row.vendor for row in vendor.discover() if row.vendor and row.status == "available"]


def _problem(name: str) -> str:
    """Why this process cannot compute on a device; empty: it can."""
    if name == "cpu":
        return ""
    if encoding.device_type(name) == "meta":
        return _("tensors of 'meta' have no values")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, LookupError, ImportError) as error:
        text = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        return _("torch has no device of this name") if "device string" in text else text
    return ""
