# SPDX-License-Identifier: Apache-2.0
"""CUDA names outside of torch.cuda: methods, arguments that name a device, checkpoints.

Two tables and a few functions; everything uses the patch engine and is undone with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization
from torch.nn.utils.rnn import PackedSequence

from ditorch import calls, native, parallel, redirect
from ditorch.legacy_types import DTYPES
from ditorch.patches import Patches, twin
from ditorch.target import Target

# (where, function, argument): the argument names a device and is mapped
ARGUMENTS = (
    ("torch.amp.autocast_mode:autocast", "__init__", "device_type"),
    ("torch.amp.autocast_mode", "custom_fwd", "device_type"),
    ("torch.amp.autocast_mode", "custom_bwd", "device_type"),
    ("torch.amp.autocast_mode", "is_autocast_available", "device_type"),
    ("torch.amp.grad_scaler:GradScaler", "__init__", "device"),
    ("torch.utils.data:DataLoader", "__init__", "pin_memory_device"),
    ("torch.random", "fork_rng", "device_type"),
    ("torch.utils.checkpoint:DefaultDeviceType", "set_device_type", "device"),
)


def apply(patches: Patches, target: Target) -> None:
    """Apply both tables and the other patches."""
    for where, name, argument in ARGUMENTS:
        map_argument(patches, _owner(where), name, argument, target.name)
    patches.set(torch.Tensor, "cuda", _tensor_cuda(target))
    patches.set(torch.Tensor, "type", _tensor_type(target))
    _packed_sequences(patches, target)
    map_argument(
        patches, torch, "set_default_tensor_type", "t", lambda t: t, _default_type(patches, target)
    )
    _map_activities(patches, target)
    _checkpoints(patches, target)
    _printed_tensors(patches, target)
    if target.has_index:
        before = torch.utils.checkpoint.DefaultDeviceType.get_device_type()
        torch.utils.checkpoint.DefaultDeviceType.set_device_type(target.device)
        patches.later(lambda: torch.utils.checkpoint.DefaultDeviceType.set_device_type(before))
    else:
        _only_host(patches, target)
    parallel.apply(patches, target)


def _owner(where: str) -> Any:
    module, _, name = where.partition(":")
    owner: Any = importlib.import_module(module)
    return getattr(owner, name) if name else owner


def map_argument(
    patches: Patches,
    owner: Any,
    name: str,
    argument: str,
    convert: Callable[[Any], Any],
    instead: Callable[..., Any] | None = None,
) -> None:
    """Patch a function so that one argument is converted (or run `instead`)."""
    function = getattr(owner, name, None)
    code = getattr(function, "__code__", None)
    if function is None or code is None or argument not in code.co_varnames:
        return  # another torch version
    original = twin(function)
    index = code.co_varnames.index(argument)
    positional = index < code.co_argcount

    def mapped(*args: Any, **kwargs: Any) -> Any:
        if positional and index < len(args):
            args = (*args[:index], convert(args[index]), *args[index + 1 :])
        elif argument in kwargs:
            kwargs[argument] = convert(kwargs[argument])
        return original(*args, **kwargs) if instead is None else instead(original, *args, **kwargs)

    patches.replace(owner, name, mapped)


def _tensor_cuda(target: Target) -> Callable[..., Any]:
    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        """Copy the tensor to the device that represents CUDA;
        return the tensor if it is there already.
        """
        where = target.at(device) if device is None or isinstance(device, int) else device
        return self.to(target.name(where), non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _packed_sequences(patches: Patches, target: Target) -> None:
    """Patch PackedSequence, which queries is_cuda inside torch,
    where tensors report the true device.
    """

    def cuda(self: PackedSequence, *args: Any, **kwargs: Any) -> PackedSequence:
        if not args and "device" not in kwargs:
            args = (target.at(None),)
        return self.to(*args, **kwargs)

    def is_cuda(self: PackedSequence) -> bool:
        return self.data.device.type == target.device

    patches.replace(PackedSequence, "cuda", cuda)
    patches.set(PackedSequence, "is_cuda", property(is_cuda))


def _only_host(patches: Patches, target: Target) -> None:
    """Patch methods for plain CPU: a device index is the CPU, and memory needs no pinning."""

    def at_host(function: Callable[..., Any]) -> Callable[..., Any]:
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args and type(args[0]) is int:
                args = (target.at(args[0]), *args[1:])
            if type(kwargs.get("device")) is int:
                kwargs["device"] = target.at(kwargs["device"])
            return function(self, *args, **kwargs)

        return to

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return self

    patches.set(torch.Tensor, "to", at_host(torch.Tensor.to))
    patches.replace(torch.nn.Module, "to", at_host(twin(torch.nn.Module.to)))
    patches.set(torch.Tensor, "pin_memory", pin_memory)
    redirect.wrap_factories(patches, lambda given: given.pop("pin_memory", None))


def _legacy_dtype(kind: Any) -> torch.dtype | None:
    """Return the dtype of "torch.cuda.FloatTensor" (the text,
    or the class of that name), or None.
    """
    name = (
        kind.removeprefix("torch.cuda.") if isinstance(kind, str) else getattr(kind, "__name__", "")
    )
    is_ours = kind == f"torch.cuda.{name}" or getattr(torch.cuda, name, None) is kind
    return DTYPES.get(name.removesuffix("Tensor")) if is_ours and name.endswith("Tensor") else None


def _tensor_type(target: Target) -> Callable[..., Any]:
    plain = torch.Tensor.type
    own = f"torch.{target.device}." if target.has_index else "torch."

    def is_cuda(tensor: torch.Tensor) -> bool:
        """Return `tensor.is_cuda` for the caller of `type`:
        on plain CPU True for user code only.
        """
        if tensor.device.type != target.device:
            return False
        return target.has_index or (native.shows_cuda() and not calls.called_from_inside(2))

    def type(
        self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        """Return the legacy type's name, or the tensor converted to that type."""
        if dtype is None:
            name = str(plain(self))
            is_mine = name.startswith(own) and is_cuda(self)
            return f"torch.cuda.{name.removeprefix(own)}" if is_mine else name
        wanted = _legacy_dtype(dtype)
        if wanted is None:
            return plain(self, dtype, non_blocking, **kwargs)
        return self.to(torch.device(target.device), wanted, non_blocking=non_blocking)

    return type


def _default_type(patches: Patches, target: Target) -> Callable[..., Any]:
    ours: list[str] = []  # filled while the default device comes from a type's name

    def leave() -> None:
        if ours:
            torch.set_default_device(None)
            ours.clear()

    patches.later(leave)

    def set_default(original: Callable[..., Any], t: Any) -> None:
        dtype = _legacy_dtype(t)
        if dtype is None:
            leave()
            original(t)
            return
        torch.set_default_dtype(dtype)
        if target.has_index:
            torch.set_default_device(target.device)
            ours.append(target.device)

    return set_default


def _map_activities(patches: Patches, target: Target) -> None:
    """Map ProfilerActivity.CUDA to the target's activity; on plain CPU that is CPU alone."""
    activity = torch.profiler.ProfilerActivity
    stands_for = activity.PrivateUse1 if target.device == _private_name() else None

    def convert(activities: Any) -> Any:
        if activities is None:
            return None
        kept = [stands_for if item is activity.CUDA else item for item in activities]
        return [item for item in kept if item is not None]

    for owner in torch.profiler.profile.__mro__[:2]:  # use_cuda=True adds to it in between
        map_argument(patches, owner, "__init__", "activities", convert)
    device = None if stands_for is None else target.device

    def older(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False):
            kwargs["use_device"] = device
        original(*args, **kwargs)

    map_argument(
        patches,
        torch.autograd.profiler.profile,
        "__init__",
        "use_device",
        lambda name: device if name == "cuda" else name,
        older,
    )


def _printed_tensors(patches: Patches, target: Target) -> None:
    """Print a tensor with the name that the printing code reads from `x.device`."""
    through = tuple(str(module.__file__) for module in (
        torch._tensor_str, torch._tensor, torch.nn.parameter, torch.overrides))  # fmt: skip
    add_suffixes = twin(torch._tensor_str._add_suffixes)
    true = f"device='{target.device}"

    def shown(tensor_str: str, suffixes: list[str], indent: int, force_newline: bool) -> str:
        if native.shows_cuda() and target.has_index and calls.called_by_program(through):
            suffixes = [
                text.replace(true, "device='cuda", 1) if text.startswith(true) else text
                for text in suffixes
            ]
        return str(add_suffixes(tensor_str, suffixes, indent, force_newline))

    patches.replace(torch._tensor_str, "_add_suffixes", shown)


def _private_name() -> str:
    return str(torch._C._get_privateuse1_backend_name())


def _checkpoints(patches: Patches, target: Target) -> None:
    """Write checkpoints as cuda:0, so that NVIDIA's torch opens them; read cuda:0 as the target.

    torch.load resolves map_location by the same registry, so it is mapped too.
    """
    registry = torch.serialization._package_registry
    before = list(registry)

    def tag(storage: Any) -> str | None:
        device = storage.device
        mine = target.has_index and device.type == target.device
        return f"cuda:{device.index}" if mine else None

    def restore(storage: Any, location: str) -> Any:
        if location != "cuda" and not location.startswith("cuda:"):
            return None
        device = target.at(int(location.partition(":")[2] or 0))
        return storage.to(device=device) if target.has_index else storage

    torch.serialization.register_package(5, tag, restore)

    def undo() -> None:
        registry[:] = before

    patches.later(undo)
