# SPDX-License-Identifier: Apache-2.0
"""torch.distributed: `nccl` maps to the vendor's collective backend, `cuda` to its device.

User code that requested nccl sees nccl (`get_backend`, `get_backend_config`). torch and the
vendor's package see the true backend, except in code that supports nccl alone (`ONLY_NCCL`).
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from deeplink.errors import DeeplinkError
from deeplink.process import gloo_shutdown
from ditorch.patches import Patches, twin
from ditorch.target import Target

# torch modules with a code path for nccl and an error or a slow path for unknown backends
ONLY_NCCL = (
    "torch.distributed.nn.functional",
    "torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook",
)


def apply(patches: Patches, target: Target) -> None:
    """Patch the functions that take a backend or a device, if torch has a distributed part."""
    if not dist.is_available():
        return
    groups = Groups(target)
    c10d = dist.distributed_c10d
    if not hasattr(c10d, "ProcessGroupNCCL"):  # torch evaluates isinstance(…, ProcessGroupNCCL)
        patches.set(c10d, "ProcessGroupNCCL", ProcessGroupNCCL)
        patches.set(dist, "ProcessGroupNCCL", ProcessGroupNCCL)
    wrap(patches, dist.init_process_group, groups.init_process_group)
    wrap(patches, dist.new_group, groups.new_group)
    wrap(patches, c10d.split_group, groups.split_group)
    wrap(patches, dist.get_backend, groups.get_backend)
    wrap(patches, dist.get_backend_config, groups.get_backend_config)
    wrap(patches, dist.get_default_backend_for_device, groups.get_default_backend_for_device)
    wrap(patches, c10d._set_pg_timeout, groups.set_timeout)
    patches.replace(c10d, "is_nccl_available", lambda: bool(target.vendor.collective))
    _meshes(patches, target)
    if not target.has_index:
        _data_parallel_on_cpu(patches)


class ProcessGroupNCCL:
    """Replacement where torch was built without NCCL: no group is an instance;
    options are reported.
    """

    class Options:
        """Accepts the arguments of NCCL's options; they have no effect on another backend."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()
            self._timeout = timedelta(minutes=10)


class Groups:
    """The process groups that were requested under a CUDA name, by group name,
    and their creation.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.asked: dict[str, str] = {}

    def init_process_group(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Create the default group with the vendor's backend and device."""
        asked = str(given.get("backend") or "nccl")  # nccl is CUDA's default
        self._map_arguments(given, asked)
        if "gloo" in str(given["backend"]):
            gloo_shutdown.end_cleanly()
        result = original(**given)
        self.asked.clear()  # group names restart with a new default group
        self._remember(dist.group.WORLD, asked)
        self._serve_device_tensors(dist.group.WORLD)
        return result

    def new_group(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Create a group of some ranks; without a backend name, with that of the default group."""
        asked = given.get("backend") or self.asked.get(_name(dist.group.WORLD), "")
        self._map_arguments(given, given.get("backend"))
        group = original(**given)
        self._remember(group, str(asked))
        self._serve_device_tensors(group)
        return group

    def split_group(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Split by the backend if it can, else create one new group for each part."""
        parent = given.get("parent_pg") or dist.group.WORLD
        self._map_arguments(given, given.get("backend"))
        # torch raises its own errors for these
        own_way = self._splits(parent) or not given.get("split_ranks")
        group = original(**given) if own_way else self._split(parent, given)
        if group is not None:
            self._remember(group, self.asked.get(_name(parent), ""))
            self._serve_device_tensors(group)
        return group

    def get_backend(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Return the requested name to user code,
        the true name to torch and the vendor's package.
        """
        truth = original(**given)
        asked = self.asked.get(_name(given.get("group") or dist.group.WORLD))
        caller = _caller()
        if asked is None or (caller in ONLY_NCCL and truth == dist.Backend.GLOO):
            return truth
        return truth if self._sees_true_name(caller) else dist.Backend(asked)

    def get_backend_config(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Return the names of `get_backend` in the form "cpu:gloo,cuda:nccl"."""
        truth = original(**given)
        asked = self.asked.get(_name(given.get("group") or dist.group.WORLD))
        if asked is None or self._sees_true_name(_caller()):
            return truth
        return asked if ":" in asked else f"cuda:{asked}"

    def get_default_backend_for_device(
        self, original: Callable[..., Any], given: dict[str, Any]
    ) -> Any:
        """Return nccl for a CUDA device to user code."""
        device = given["device"]
        is_cuda = _device_type(device) == "cuda" or (
            self.target.has_index and _device_type(device) == self.target.device
        )
        if not is_cuda:
            return original(**given)
        return self._collective() if self._sees_true_name(_caller()) else "nccl"

    def set_timeout(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Set the timeout of a CUDA group, which torch supports for NCCL and gloo only."""
        group = given.get("group") or dist.group.WORLD
        if group is None or not self.target.has_index or _name(group) not in self.asked:
            return original(**given)
        return group.set_timeout(given["timeout"])

    def _serve_device_tensors(self, group: Any) -> None:
        """Let a gloo group accept tensors of the device, as it accepts CUDA's."""
        module = sys.modules.get(f"{self.target.vendor.device_module}.distributed")
        serve = getattr(module, "serve_device_tensors", None)
        if serve is not None and isinstance(group, dist.ProcessGroup):
            serve(group)

    def _map_arguments(self, given: dict[str, Any], asked: Any) -> None:
        """Replace CUDA and NCCL in the arguments by the vendor's names."""
        if asked is not None:
            given["backend"] = self._backend(str(asked))
        if given.get("device_id") is not None:
            device = given["device_id"]
            # plain CPU has no device to bind
            given["device_id"] = self.target.name(device) if self.target.has_index else None
        options = given.get("pg_options")
        if isinstance(options, dist.distributed_c10d.ProcessGroupNCCL.Options):
            given["pg_options"] = None
            warnings.warn(
                f"ProcessGroupNCCL.Options has no meaning for {self._collective()!r}; not used",
                stacklevel=7,  # skips ditorch's frames and torch's two logging wrappers
            )

    def _backend(self, asked: str) -> str:
        """Translate "nccl" or "cpu:gloo,cuda:nccl" to the vendor's backend;
        other names stay as they are.
        """
        if ":" not in asked:
            return self._collective() if asked.lower() == "nccl" else asked
        pairs = [pair.strip().partition(":") for pair in asked.lower().split(",")]
        ours: dict[str, str] = {}
        for device, _, backend in pairs:
            place = self.target.device if device == "cuda" else device
            name = self._collective() if backend == "nccl" else backend
            if ours.setdefault(place, name) != name:
                raise DeeplinkError(
                    f"{asked!r} names both {ours[place]} and {name} on {place}, cuda here.",
                    hint=f"name one back end for {place}.",
                )
        return ",".join(f"{device}:{backend}" for device, backend in ours.items())

    def _collective(self) -> str:
        vendor = self.target.vendor
        if not vendor.collective:
            raise DeeplinkError(
                f"vendor {vendor.name!r} has no collective back end, so nccl has no counterpart.",
                hint="name one in its record: Vendor(…, collective=…).",
            )
        known = dist.Backend.backend_list
        if vendor.collective not in known:
            raise DeeplinkError(
                f"vendor {vendor.name!r} names the back end {vendor.collective!r}, which torch "
                f"does not know; known: {', '.join(known)}.",
                hint=f"{vendor.device_module or 'its device module'} should register it.",
            )
        return vendor.collective

    def _remember(self, group: Any, asked: str) -> None:
        if _is_cuda(asked) and isinstance(group, dist.ProcessGroup):
            self.asked[_name(group)] = asked.lower()

    def _sees_true_name(self, caller: str) -> bool:
        if caller in ONLY_NCCL:
            return False
        roots = {"torch", self.target.vendor.device_module.partition(".")[0]}
        return caller.partition(".")[0] in roots

    def _splits(self, group: Any) -> bool:
        if not self.target.has_index:
            return False  # torch splits on an accelerator alone
        return bool(group._get_backend(torch.device(self.target.device)).supports_splitting)

    def _split(self, parent: Any, given: dict[str, Any]) -> Any:
        ranks = dist.get_process_group_ranks(parent)
        own = dist.get_rank()
        for part in given["split_ranks"]:
            members = [ranks[index] for index in part]
            if own in members:
                return dist.new_group(
                    members,
                    timeout=given.get("timeout"),
                    backend=given.get("backend") or str(dist.get_backend(parent)),
                    use_local_synchronization=True,  # this rank does not wait for the other parts
                    group_desc=given.get("group_desc"),
                )
        return None


def _meshes(patches: Patches, target: Target) -> None:
    """Map the device of DeviceMesh("cuda", …), init_device_mesh and from_group,
    which share one path.
    """

    def init(original: Callable[..., Any], given: dict[str, Any]) -> Any:
        given["device_type"] = target.name(given["device_type"])
        return original(**given)

    wrap(patches, dist.device_mesh.DeviceMesh.__init__, init)


def _data_parallel_on_cpu(patches: Patches) -> None:
    """Accept DDP(model, device_ids=[rank]) on plain CPU, where a model has no device ids."""
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__

    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (None, *args[1:])
        if "output_device" in kwargs:
            kwargs["output_device"] = None
        original(self, module, None, *args, **kwargs)

    patches.set(ddp, "__init__", init)


def wrap(
    patches: Patches,
    function: Callable[..., Any],
    wrapper: Callable[[Callable[..., Any], dict[str, Any]], Any],
) -> None:
    """Replace the function under torch's logging decorators, so that every alias is affected."""
    inner = inspect.unwrap(function)
    original, signature = twin(inner), inspect.signature(inner)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, signature.bind(*args, **kwargs).arguments)

    if not patches.swap(inner, replacement):
        raise DeeplinkError(
            f"ditorch cannot patch {inner.__module__}.{inner.__qualname__} of this torch "
            f"({torch.__version__}).",
            hint="report this torch version.",
        )


def _caller() -> str:
    """Return the module that called the patched function, beyond ditorch's own frames."""
    frame = sys._getframe(4)
    return str(frame.f_globals.get("__name__", ""))


def _is_cuda(asked: str) -> bool:
    return "nccl" in asked.lower() or "cuda" in asked.lower()


def _name(group: Any) -> str:
    return str(getattr(group, "group_name", ""))


def _device_type(device: Any) -> str:
    if isinstance(device, torch.device):
        return device.type
    return str(device).partition(":")[0] if device is not None else ""
