# SPDX-License-Identifier: Apache-2.0
"""Device arguments without the native hook: wrappers for each callable that takes a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from ditorch.patches import Patches, twin
from ditorch.target import Target

# C functions of torch with a `device` keyword; Python functions that call them need no wrapper.
FACTORIES = """
arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted
empty_quantized empty_strided eye full full_like hamming_window hann_window kaiser_window linspace
logspace ones ones_like rand rand_like randint randint_like randn randn_like randperm range
scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor
sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like
""".split()
OWNERS = (
    (torch, FACTORIES),
    (torch.fft, ("fftfreq", "rfftfreq")),
    (torch._C._nested, ("nested_tensor",)),  # type: ignore[attr-defined]
)
CLASSES = "Generator Stream Event".split()  # their device is the first argument, or a keyword
METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros".split()


def apply(patches: Patches, target: Target) -> None:
    """Wrap every row; an argument that is not a CUDA device is passed on unchanged."""
    convert = functools.partial(_map_device, target=target)
    wrap_factories(patches, convert)
    for name in METHODS:
        patches.set(torch.Tensor, name, _keyword(getattr(torch.Tensor, name), convert))
    for name in CLASSES:
        patches.set(torch, name, _constructor(getattr(torch, name), target))
    patches.set(torch.Tensor, "to", _first(torch.Tensor.to, target))
    patches.replace(torch.nn.Module, "to", _first(twin(torch.nn.Module.to), target))
    if target.has_index:  # torch reads it, too, and must not see plain CPU as cuda
        is_cuda = property(lambda self: self.device.type == target.device)
        patches.set(torch.Tensor, "is_cuda", is_cuda)


def wrap_factories(patches: Patches, convert: Callable[[dict[str, Any]], Any]) -> None:
    """Let `convert` change the keywords of every function of torch that creates a tensor."""
    # torch.device as a context compares them by identity
    torch.utils._device._device_constructors()
    for owner, names in OWNERS:
        for name in names:
            if hasattr(owner, name):
                function = getattr(owner, name)
                wrapper = _keyword(function, convert)
                patches.set(owner, name, wrapper)
                _show_to_torchscript(patches, function, wrapper)


def _show_to_torchscript(patches: Patches, function: Any, wrapper: Any) -> None:
    """Register a wrapper with TorchScript, which finds the operator of a function by identity."""
    operators = torch.jit._builtins._get_builtin_table()
    if id(function) in operators:
        operators[id(wrapper)] = operators[id(function)]
        patches.later(lambda: operators.pop(id(wrapper), None))


def _map_device(given: dict[str, Any], target: Target) -> None:
    device = given.get("device")
    if type(device) is int and not target.has_index:
        given["device"] = target.at(device)
    elif device is not None:
        given["device"] = target.name(device)


def _keyword(
    function: Callable[..., Any], convert: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        convert(kwargs)
        return function(*args, **kwargs)

    return wrapper


def _constructor(cls: type, target: Target) -> type:
    """Create a class whose calls create objects of `cls` and whose instances are those of `cls`."""

    class Kind(type):
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, cls)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if args:
                args = (target.name(args[0]), *args[1:])
            if "device" in kwargs:
                kwargs["device"] = target.name(kwargs["device"])
            return cls(*args, **kwargs)

    return Kind(cls.__name__, (), {"__doc__": cls.__doc__, "__module__": cls.__module__})


def _first(function: Callable[..., Any], target: Target) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (target.name(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = target.name(kwargs["device"])
        return function(self, *args, **kwargs)

    return wrapper
