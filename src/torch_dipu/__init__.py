# SPDX-License-Identifier: Apache-2.0
"""torch_dipu: an out-of-tree PyTorch device. `import torch_dipu` registers it as `dipu`, once."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import logging
import sys
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from deeplink import autoload_hooks, native, settings, vendor
from deeplink.errors import DeeplinkError
from torch_dipu import runtime

log = logging.getLogger(__name__)


def chosen_vendor() -> vendor.Vendor:
    """Return the vendor whose chip is behind the device: the chosen one,
    else the reference vendor.
    """
    found = vendor.choose().vendor
    return found if found.runtime else vendor.choose("reference").vendor


def _hide_cuda() -> None:
    """Hide CUDA from this process, or raise if CUDA is initialised.

    PrivateUse1 outranks CUDA as the accelerator of a process, and autograd then fails for CUDA.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return
    if torch.cuda.is_initialized():
        raise DeeplinkError(
            "torch_dipu cannot share a process with CUDA, and CUDA is initialised here already.",
            hint="import torch_dipu first (CUDA is then hidden), or run CUDA in its own process.",
        )
    settings.hide_cuda()


def _warn_of_older_variables() -> None:
    """Warn about DIPU_ variables of older documents that have no effect."""
    for variable in settings.unknown():
        if variable.hint and variable.name.startswith("DIPU_"):
            log.warning("%s is set, but nothing reads it.\nHint: %s", variable.name, variable.hint)


def _register() -> vendor.Vendor:
    _hide_cuda()
    found = chosen_vendor()
    _warn_of_older_variables()
    chip = importlib.import_module(found.runtime)
    core = native.load_extension("torch_dipu", say=log.warning)
    globals()["_C"] = core
    core.start_memory_check(
        settings.DIPU_MEM_CHECK.get(), settings.DIPU_MEM_CHECK_ENABLE_BACKTRACE.get()
    )
    table = chip.runtime()
    core.initialize(runtime.table_address(table), not isinstance(table, ctypes.CDLL))
    rename_privateuse1_backend("dipu")
    activity: Any = torch.profiler.ProfilerActivity
    if not hasattr(activity, "DIPU"):  # torch 2.11 adds the name only for its own devices
        activity.DIPU = activity.PrivateUse1
    device = importlib.import_module("torch_dipu.dipu")
    torch._register_device_module("dipu", device)
    sys.modules["torch.dipu"] = device
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    for name in ("distributed", "ipc"):
        importlib.import_module(f"torch_dipu.{name}").register(chip)
    importlib.import_module("torch_dipu.torch_internals").register()
    importlib.import_module("torch_dipu.routes").register(found)
    switches = importlib.import_module("torch_dipu.debug.switches")
    switches.register()
    getattr(chip, "start", lambda: None)()
    core.make_missing_autograd_threads()
    # exit handlers run in reverse order: this one runs after the next
    atexit.register(core.finish_memory_check)
    atexit.register(core.drain_autograd)
    atexit.register(core.rest_groups)
    # runs before the check: its operators are not calls of the program
    atexit.register(switches.stop_watching)
    return found


def _bring_cuda_names() -> None:
    """Define CUDA's names at once if DIPU_MOCK_CUDA is true, else at the first `x.cuda()`."""
    if not settings.DIPU_MOCK_CUDA.get() or "ditorch" in sys.modules:  # ditorch defines them itself
        return
    if settings.DIPU_MOCK_CUDA.is_set():
        autoload_hooks.cuda_names(VENDOR.name)
        return
    plain: Any = torch.Tensor.cuda

    @functools.wraps(plain)
    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        autoload_hooks.cuda_names(VENDOR.name)  # CUDA itself is hidden: see _hide_cuda
        found: Any = torch.Tensor.cuda
        return (plain if found is cuda else found)(self, *args, **kwargs)

    torch.Tensor.cuda = cuda  # type: ignore[assignment,method-assign]


VENDOR = _register()
_bring_cuda_names()
