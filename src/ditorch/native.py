# SPDX-License-Identifier: Apache-2.0
"""The native hook: built on first use, self-tested, and omitted where it cannot work."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deeplink import native, settings
from deeplink.errors import BuildError
from ditorch.patches import Patches
from ditorch.target import Target

log = logging.getLogger("ditorch")
_shows_cuda = False


def shows_cuda() -> bool:
    """Whether user code sees the target's devices as cuda, and its tensors as `is_cuda`."""
    return _shows_cuda


def install(patches: Patches, target: Target) -> str:
    """Let "cuda" resolve everywhere in torch's binding; return "",
    or why the hook is not in place.
    """
    if not settings.DITORCH_NATIVE_HOOK.get():
        return "switched off by DITORCH_NATIVE_HOOK=0"
    try:
        hook = native.load_extension("ditorch", say=log.warning)
    except (BuildError, ImportError) as error:  # no compiler, or a build for another torch
        return f"it could not be built: {str(error).splitlines()[0]}"
    if not hook.install_names(target.device, target.has_index):
        return "this build of torch has no import slot for it"
    problem = _self_test(target)
    if problem:
        hook.remove_names()
        return problem
    patches.later(hook.remove_names)
    if not hasattr(torch.Event, "cuda_event"):  # a vendor's events are often torch's own
        hook.set_attribute(torch.Event, "cuda_event", property(lambda event: event.event_id))
        patches.later(lambda: hook.set_attribute(torch.Event, "cuda_event", None))
    if settings.DITORCH_SHOW_DEVICE_AS_CUDA.get():
        if hook.install_identity(_insiders(target), torch._C.TensorBase):
            _set_shows_cuda(True)
            patches.later(hook.remove_identity)
            patches.later(lambda: _set_shows_cuda(False))
        else:
            log.warning("devices show their own name: torch.device has no getter to exchange")
    return ""


def map_library_keys(patches: Patches, keys: Mapping[Any, Any]) -> None:
    """Map the dispatch keys of C++ libraries that are loaded from now on.

    Needs the hook's library, also where `install` could not change the names of devices.
    """
    hook = sys.modules.get("ditorch._C")
    if hook is None:
        log.debug("without the native hook: TORCH_LIBRARY_IMPL(…, CUDA, m) of C++ is not mapped")
        return
    hook.map_library_keys({int(key): int(value) for key, value in keys.items()})
    patches.later(lambda: hook.map_library_keys({}))


def _set_shows_cuda(value: bool) -> None:
    global _shows_cuda
    _shows_cuda = value


def _self_test(target: Target) -> str:
    """Return which function of torch resolves "cuda" incorrectly with the hook; "" for none."""
    wanted = torch.device(target.device)
    for name, made in {
        "torch.device": torch.device("cuda"),
        "torch.empty": torch.empty(0, device="cuda").device,
        "Tensor.to": torch.empty(0).to("cuda").device,
    }.items():
        if made.type != wanted.type:
            return f"its self-test failed: {name} of 'cuda' gave {made.type!r}"
    return ""


def _insiders(target: Target) -> list[str]:
    """Return the folders whose code sees a device's true name: torch's and the vendor's."""
    vendor = target.vendor
    own = (vendor.runtime, vendor.kernels, vendor.fused, vendor.graph, vendor.build)
    modules = ("torch", "torchgen", "functorch", "torch_dipu", "deeplink", "ditorch")
    names = {*modules, vendor.device_module.partition(".")[0]}
    names |= {module.rpartition(".")[0] for module in own}
    loaded = {name for name in names if name in sys.modules}
    # compilers and fused operators select by the device; a program may import them later
    found = (importlib.util.find_spec(name) for name in sorted(loaded | {"dicp", "dlinfer"}))
    return [f"{Path(spec.origin).parent}/" for spec in found if spec and spec.origin]
