# SPDX-License-Identifier: Apache-2.0
"""torch.library: kernels that a program registers for CUDA serve the target's tensors.

A dispatch key that names CUDA ("CUDA", "AutogradCUDA", "AutocastCUDA", "SparseCUDA" …) becomes the
target's key. A kernel that the program registers for the target itself has priority: on plain CPU,
where both are the CPU's, an operator with a kernel for each runs the one for the CPU. What torch
registers for CUDA itself is not mapped.

C++ code registers by constructors of libtorch, which `csrc/library_keys.cpp` maps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ditorch import calls, native
from ditorch.patches import Patches, twin
from ditorch.surface import map_argument
from ditorch.target import Target

# namespaces of torch's own operators: their kernels for the target are what a program overrides
TORCH = ("aten", "prims", "quantized", "_quantized", "sparse", "c10d", "_c10d_functional")
# files of torch that pass a registration on
_THROUGH = (torch.library.__file__, f"{Path(torch._library.__file__).parent}/")
# (owner, function, argument): the argument is the name of a device type
DEVICE_TYPES = (
    (torch.library, "register_autocast", "device_type"),
    (torch._library.custom_ops.CustomOpDef, "register_autocast", "device_type"),
)


def apply(patches: Patches, target: Target) -> None:
    """Map dispatch keys in torch.library, and in C++ libraries that are loaded later."""
    for owner, name, argument in DEVICE_TYPES:
        map_argument(patches, owner, name, argument, target.name)
    mapped = _mapped(target)

    def keys(key: Any) -> Any:
        return mapped(key) if calls.called_by_program(_THROUGH) else key

    map_argument(patches, torch.library, "get_kernel", "dispatch_key", keys)
    patches.set(torch._C, "_dispatch_library", _library(keys))
    if not target.has_index:
        patches.set(torch._C, "_dispatch_key_for_device", _key_for_device())
    registrations = _Registrations(keys)
    for name, wrap in (("impl", registrations.impl), ("fallback", registrations.fallback)):
        function = getattr(torch.library.Library, name)
        patches.replace(torch.library.Library, name, wrap(twin(function)))
    if (
        target.has_index
    ):  # on plain CPU a library's kernels for CUDA would replace those for the CPU
        members = torch._C.DispatchKey.__members__
        cuda = [key for name, key in members.items() if name.endswith("CUDA")]
        native.map_library_keys(patches, {key: mapped(key) for key in cuda})


def _mapped(target: Target) -> Callable[[Any], Any]:
    """Return the function that maps a dispatch key, by name or as an object, to the target's."""
    backend = torch._C._dispatch_key_for_device(target.device)

    def mapped(key: Any) -> Any:
        name = key if isinstance(key, str) else key.name
        if not name.endswith("CUDA"):
            return key
        found = getattr(torch._C.DispatchKey, name.removesuffix("CUDA") + backend, None)
        if found is None:  # the target has no such key
            return key
        return found.name if isinstance(key, str) else found

    return mapped


def _library(keys: Callable[[Any], Any]) -> Callable[..., Any]:
    create = torch._C._dispatch_library

    def library(kind: str, name: str, dispatch: str, *place: Any) -> Any:
        return create(kind, name, keys(dispatch), *place)

    return library


def _key_for_device() -> Callable[[str], str]:
    """Keep CUDA's name on plain CPU, so that `Library.impl` can distinguish it from the CPU's."""
    plain = torch._C._dispatch_key_for_device

    def key_for_device(device: str) -> str:
        return "CUDA" if device.partition(":")[0].lower() == "cuda" else plain(device)

    return key_for_device


class _Registrations:
    """The kernels that were registered for CUDA and serve the target."""

    def __init__(self, keys: Callable[[Any], Any]) -> None:
        self._keys = keys
        self._mapped: set[str] = set()  # "ns/op/key", as torch.library records a registration

    def impl(self, original: Callable[..., None]) -> Callable[..., None]:
        def impl(
            library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any
        ) -> Any:
            wanted = dispatch_key or library.dispatch_key
            key = self._keys(wanted)
            if not callable(fn):
                return original(library, op_name, fn, key, **options)
            name = library._resolve_op_name(op_name, "impl").split("::")[-1]
            entry = f"{library.ns}/{name}/{key}"
            if key != wanted:
                calls.used(f'torch.library for "{wanted}"')
                if self._has_own(library.ns, name, key, entry):
                    return None
                self._mapped.add(entry)
            elif entry in self._mapped:  # the program's kernel for the target itself
                self._mapped.discard(entry)
                if "allow_override" in options:
                    options["allow_override"] = True
            return original(library, op_name, fn, key, **options)

        return impl

    def fallback(self, original: Callable[..., None]) -> Callable[..., None]:
        def fallback(library: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
            return original(
                library, fn, self._keys(dispatch_key or library.dispatch_key), **options
            )

        return fallback

    def _has_own(self, namespace: str, name: str, key: str, entry: str) -> bool:
        """Whether an operator has a kernel that was registered for the target itself."""
        if entry in torch.library._impls:
            return entry not in self._mapped
        return namespace not in TORCH and torch._C._dispatch_has_kernel_for_dispatch_key(
            f"{namespace}::{name}", key
        )
