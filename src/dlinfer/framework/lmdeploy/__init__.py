# SPDX-License-Identifier: Apache-2.0
"""LMDeploy on dlinfer's ops: `PytorchEngineConfig(device_type="dlinfer")`, or "ascend", "maca" and
"camb", for which LMDeploy imports `dlinfer.framework.lmdeploy_ext`.

LMDeploy has no extension point for a device, so some of its functions, listed in `sites`, are
patched, and nothing outside of it. One process serves one kind of device: LMDeploy's own device
types are refused in a process that serves another device.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.vendor import Vendor
from dlinfer.framework.choice import chosen, chosen_chip
from dlinfer.framework.lmdeploy import calls, device, process
from dlinfer.framework.lmdeploy.patches import Patches
from dlinfer.framework.lmdeploy.sites import (
    CHIPS,
    DEVICE_TYPE,
    RELEASES,
    SERVED,
    TESTED,
    Sites,
)

__all__ = ["DEVICE_TYPE", "Registered", "register", "register_chips"]

log = logging.getLogger("dlinfer")

DTYPES = ("auto", "float32", "bfloat16", "float16")
BATCH = 256  # maximum rows, where the user does not set it, as LMDeploy has it for other chips
TORCH = "cuda"  # LMDeploy's name for every device

_registered: list[Registered] = []
_registering = threading.Lock()


@dataclass(frozen=True)
class Registered:
    """LMDeploy with the device type, and the vendor of the device."""

    vendor: Vendor
    release: str
    patches: Patches = field(repr=False)

    def undo(self) -> None:
        """Restore LMDeploy; running engines keep their functions."""
        with _registering:
            self.patches.undo()
            if self in _registered:
                _registered.remove(self)


def register() -> Registered:
    """Register the device type "dlinfer" with LMDeploy; a second call does nothing."""
    with _registering:
        if not _registered:
            _registered.append(_register(chosen()))
        return _registered[0]


def register_chips() -> Registered:
    """Serve LMDeploy's device types "ascend", "maca" and "camb" by the chip of one of them, or by
    the vendor that DEEPLINK_VENDOR names; raise DeeplinkError where there is neither.
    """
    with _registering:
        if not _registered:
            _registered.append(_register(chosen_chip(CHIPS)))
        return _registered[0]


def _register(vendor: Vendor) -> Registered:
    release = _version()
    sites = RELEASES.get(".".join(release.split(".")[:2]))
    if sites is None:
        known = ", ".join(TESTED)
        log.warning(
            "LMDeploy %s; dlinfer is tested with %s: its self-check decides", release, known
        )
        sites = RELEASES[TESTED[-1]]
    patches = Patches("lmdeploy")
    try:
        _patch(patches, sites, vendor)
        calls.check()
        _self_check(vendor)
    except BaseException:
        patches.undo()
        raise
    return Registered(vendor, release, patches)


def _version() -> str:
    try:
        return importlib.metadata.version("lmdeploy")
    except importlib.metadata.PackageNotFoundError as error:
        raise DeeplinkError(
            _("LMDeploy is not installed."),
            _(
                "`pip install lmdeploy`, or scripts/frameworks lmdeploy for an "
                "environment beside this one, on a machine without CUDA."
            ),
        ) from error


def _patch(patches: Patches, sites: Sites, vendor: Vendor) -> None:
    """Apply all changes to LMDeploy."""
    patches.wrap(f"{sites.config}.__post_init__", _accepting)
    patches.replace(sites.selector, functools.partial(_selecting, vendor))
    patches.replace(sites.batch_size, lambda stock: lambda kind: _batch(stock, kind))
    patches.replace(sites.bfloat16, lambda stock: lambda kind=TORCH: _bfloat16(stock, kind))
    patches.replace(sites.dtype, functools.partial(_in_float32, vendor))
    dist = patches.found(sites.dist).__func__
    owner, _, name = sites.dist.rpartition(".")
    patches.set(patches.found(owner), name, staticmethod(functools.partial(_refusing, dist)))
    patches.wrap(f"{sites.dispatcher}.__init__", _dispatching)
    _offer_device(patches, sites)
    patches.set(patches.found(sites.process), "_mp_proc", staticmethod(process.engine))
    if vendor.device == TORCH:
        return  # LMDeploy's own value
    shown = device.Torch(device.names(vendor.device))
    for name in sites.modules:
        patches.set(importlib.import_module(name), "torch", shown)
    for name in sites.words:
        patches.word(name, TORCH, vendor.device)
    patches.replace(sites.latent, lambda stock: lambda: _no_latent_cache())
    patches.wrap(sites.checker, functools.partial(_checking, vendor.device))
    patches.replace(sites.to_device, functools.partial(_moving, vendor.device))
    patches.replace(sites.memory, lambda stock: lambda device_id=None: device.memory(vendor.device))


def _offer_device(patches: Patches, sites: Sites) -> None:
    """Add `--device dlinfer` to LMDeploy's commands."""
    function = patches.found(sites.arguments).__func__
    default, known = function.__defaults__
    function.__defaults__ = (default, [*known, DEVICE_TYPE])
    patches.undoing.append(functools.partial(setattr, function, "__defaults__", (default, known)))


def _accepting(stock: Any) -> Any:
    """Return a check of an engine's config that accepts the device type."""

    def __post_init__(self: Any) -> None:
        if self.device_type in CHIPS:
            _refuse(self)
        if self.device_type != DEVICE_TYPE:
            try:
                stock(self)
            except AssertionError as error:
                if "invalid device_type" not in str(error):
                    raise
                raise DeeplinkError(
                    f"no device type {self.device_type!r}; allowed: {DEVICE_TYPE!r}, and those of "
                    "LMDeploy: 'cuda', 'ascend', 'maca', 'camb'."
                ) from error
            return
        _refuse(self)
        asked = self.dtype
        # the methods that LMDeploy calls for a device type without rules of its own
        self.device_type, self.dtype = "maca", "auto" if asked == "float32" else asked
        try:
            stock(self)
        finally:
            self.device_type, self.dtype = DEVICE_TYPE, asked

    return __post_init__


def _refusing(stock: Any, engine_config: Any) -> Any:
    """Refuse unsupported options of a config that was created before LMDeploy imported dlinfer."""
    if engine_config.device_type in CHIPS:
        _refuse(engine_config)
    return stock(engine_config)


def _refuse(config: Any) -> None:
    """Refuse options that the device type does not support, before LMDeploy starts."""
    kind = config.device_type
    if config.dtype not in DTYPES:
        raise DeeplinkError(
            f"dtype {config.dtype!r}: device type {kind!r} serves {', '.join(DTYPES)}."
        )
    held = config.num_gpu_blocks * config.block_size
    if held and config.session_len and held < config.session_len:
        text = "%d blocks of %d tokens hold %d, fewer than session_len=%d: longer requests fail"
        log.warning(text, config.num_gpu_blocks, config.block_size, held, config.session_len)
    spread = {name: getattr(config, name) for name in ("tp", "dp", "ep")}
    if any(count > 1 for count in spread.values()):
        asked = ", ".join(f"{name}={count}" for name, count in spread.items() if count > 1)
        raise DeeplinkError(f"{asked}: device type {kind!r} serves from one device.")
    if int(config.quant_policy) > 0:
        raise DeeplinkError(
            _(
                "quant_policy={quant_policy}: device type {kind!r} keeps keys and values "
                "as the model computes them."
            ).format(quant_policy=int(config.quant_policy), kind=kind),
            _("leave quant_policy out."),
        )


def _no_latent_cache() -> bool:
    raise DeeplinkError(
        _(
            "latent attention (DeepSeek): device type {device_type!r} has caches of keys "
            "and of values, and LMDeploy one for both."
        ).format(device_type=DEVICE_TYPE),
        _("transformers serves such a model on dlinfer's ops: `dlinfer.apply(model)`."),
    )


def _selecting(vendor: Vendor, stock: Any) -> Any:
    """Return a function that selects the backend for a device type."""

    def _get_backend() -> Any:
        devices: Any = importlib.import_module("lmdeploy.pytorch.devices")
        kind = devices.get_device_manager().current_context().device_type
        if kind in SERVED:
            _check_chip(kind, vendor)
            return _backend(vendor)
        if vendor.device != TORCH:
            raise DeeplinkError(
                _("device type {kind!r} in a process where {device_type!r} is {device!r}.").format(
                    kind=kind, device_type=DEVICE_TYPE, device=vendor.device
                ),
                _("serve it from another process, or `undo()` what `register()` returned."),
            )
        return stock()

    return _get_backend


def _check_chip(kind: str, vendor: Vendor) -> None:
    """Raise where a device type names a chip and another vendor, not requested, would serve."""
    if kind in CHIPS and vendor.name != CHIPS[kind] and not settings.DEEPLINK_VENDOR.get():
        raise DeeplinkError(
            _(
                "device type {kind!r} is the chip of vendor {chips!r}; this process "
                "serves from vendor {name!r}."
            ).format(kind=kind, chips=CHIPS[kind], name=vendor.name),
            _("DEEPLINK_VENDOR={name} serves device type {kind!r} from {label}.").format(
                name=vendor.name, kind=kind, label=vendor.label
            ),
        )


@functools.cache
def _backend(vendor: Vendor) -> Any:
    from dlinfer.framework.lmdeploy.backend import Backend  # needs the framework

    return type("Backend", (Backend,), {"device": vendor.device, "vendor": vendor.name})


def _batch(stock: Any, kind: str) -> int:
    return BATCH if kind in SERVED else int(stock(kind))


def _bfloat16(stock: Any, kind: str) -> bool:
    return kind in SERVED or bool(stock(kind))


def _in_float32(vendor: Vendor, stock: Any) -> Any:
    """Keep float32, which LMDeploy converts to float16, because the CPU's kernels support it,
    unless
    a chip's own device type is served by the chip.
    """

    def _update_torch_dtype(config: Any, dtype: str, device_type: str = "auto") -> Any:
        stock(config, dtype, device_type=device_type)
        text = getattr(config.hf_config, "text_config", None)
        own = getattr(config.hf_config, "dtype", None) or getattr(text, "dtype", None)
        chip = vendor.name == CHIPS.get(device_type)
        if device_type in SERVED and not chip and dtype == "auto" and str(own).endswith("float32"):
            config.dtype = torch.float32
        return config

    return _update_torch_dtype


def _dispatching(stock: Any) -> Any:
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        stock(self, *args, **named)
        self.device_map[DEVICE_TYPE] = "dlinfer"

    return __init__


def _checking(target: str, stock: Any) -> Any:
    def check(self: Any) -> None:
        self.device = target if self.device == TORCH else self.device
        stock(self)

    return check


def _moving(target: str, stock: Any) -> Any:
    def _try_to_cuda(val: Any, non_blocking: bool = False) -> Any:
        if isinstance(val, torch.Tensor):
            return val.to(target, non_blocking=non_blocking)
        return val if val is None else val.to_device(target, non_blocking=non_blocking)

    return _try_to_cuda


def _self_check(vendor: Vendor) -> None:
    from dlinfer.framework.lmdeploy import check  # needs the framework

    check.check(_backend(vendor))
