# SPDX-License-Identifier: Apache-2.0
"""Functions that a vendor's module lacks, built from torch's own parts; the table names them.

Each takes the target first, then the arguments of the function of torch.cuda. On plain CPU there is
one device, number 0, whatever its name. Streams, events and traces are in host_streams.py.
"""

from __future__ import annotations

import contextlib
import os
import platform
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ditorch import calls, table
from ditorch.target import Target

# The minimum that torch.compile accepts for a GPU. From (8, 0) on libraries select flash attention,
# TF32 and Triton kernels for NVIDIA alone; bfloat16 support is queried by is_bf16_supported.
CAPABILITY = (7, 0)

Device = torch.device | str | int | None


# Constants and calls without an effect.


def nothing(target: Target, *args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def no_kernel(target: Target, code: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Represent a kernel written in CUDA C++: it can be named;
    its call reports a missing equivalent.
    """

    def kernel(*tensors: Any, **options: Any) -> Any:
        name = "torch.cuda.jiterator"
        return calls.missed(name, table.rows()["jiterator._create_jit_fn"].reason, fatal=True)

    return kernel


def no(target: Target) -> bool:
    return False


def zero(target: Target) -> int:
    return 0


def native(target: Target) -> str:
    return "native"


def run_now(target: Target, callable: Callable[[], Any], **kwargs: Any) -> None:
    """Run the callable at once: the device initialises itself, so no call is deferred."""
    callable()


def _missed(name: str, neutral: Any = None, fatal: bool = False) -> Any:
    row = table.rows()[name]
    return calls.missed(row.full_name, row.reason, neutral, fatal)


# Devices.


def is_available(target: Target) -> bool:
    """Whether the target has a device.

    False to triton, which loads CUDA's driver if it is true (`triton.backends.nvidia.driver`):
    there is
    no libcuda here, and torch.compile would fail.
    """
    return calls.calling_package() != "triton" and bool(target.module.is_available())


def get_device_index(
    target: Target, device: Any, optional: bool = False, allow_cpu: bool = False
) -> int:
    """Return the ordinal of a device by any of its names; -1 for the host where that is allowed."""
    if isinstance(device, int):
        return device
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    if device is None:
        if not optional:
            raise ValueError("expected a torch.device with a specified index, but got: None")
        return current_device(target)
    found = torch.device(device)
    if found.type == "cpu" and allow_cpu:
        return -1
    if found.type not in ("cuda", target.device):
        raise ValueError(f"Expected a cuda device, but got: {found}")
    if found.index is None or not target.has_index:
        return current_device(target)
    return int(found.index)


def _index(target: Target, device: Device) -> int:
    return get_device_index(target, device, optional=True)


def current_device(target: Target) -> int:
    if not target.has_index:
        return 0
    own = getattr(target.module, "current_device", torch.accelerator.current_device_index)
    return int(own())


def set_device(target: Target, device: Device) -> None:
    index = get_device_index(target, device)
    if target.has_index and index >= 0:
        own = getattr(target.module, "set_device", torch.accelerator.set_device_index)
        own(index)


def exchange_device(target: Target, device: int) -> int:
    """Make a device current and return the previous one; a negative ordinal changes nothing."""
    before = current_device(target)
    if device >= 0:
        set_device(target, device)
    return before


def device_of(target: Target, self: Any, obj: Any) -> None:
    """Initialise the context manager with the device of a tensor or storage,
    if it is the target.
    """
    here = obj.device.type in ("cuda", target.device)
    torch.cuda.device.__init__(self, _index(target, obj.device) if here else -1)


def synchronize(target: Target, device: Device = None) -> None:
    if target.has_index:
        torch.accelerator.synchronize(_index(target, device))


def get_device_name(target: Target, device: Device = None) -> str:
    theirs = getattr(target.module, "get_device_properties", None)
    if target.has_index and theirs is not None:
        return str(theirs(_index(target, device)).name)
    return f"{target.device} ({platform.processor() or platform.machine()})"


def get_device_capability(target: Target, device: Device = None) -> tuple[int, int]:
    """Return the vendor's value when it is a pair of numbers as CUDA's; else CAPABILITY."""
    theirs = getattr(target.module, "get_device_capability", None)
    if target.has_index and theirs is not None:
        found = theirs(_index(target, device))
        if isinstance(found, tuple) and len(found) == 2:
            return int(found[0]), int(found[1])
    return CAPABILITY


@dataclass(frozen=True)
class DeviceProperties:
    """CUDA's record of a device. A value that the vendor lacks is CUDA's usual value, or 0."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: uuid.UUID
    gcnArchName: str  # inductor reads it where torch was built without CUDA
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * 1024
    shared_memory_per_block_optin: int = 48 * 1024
    shared_memory_per_multiprocessor: int = 64 * 1024
    L2_cache_size: int = 0
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0


def get_device_properties(target: Target, device: Device = None) -> DeviceProperties:
    """Return the vendor's record under CUDA's names, with defaults for missing values."""
    index = _index(target, device)
    theirs = getattr(target.module, "get_device_properties", None)
    record = theirs(index) if target.has_index and theirs is not None else None
    told = {f.name: getattr(record, f.name, None) for f in fields(DeviceProperties)}
    major, minor = get_device_capability(target, index)
    name = get_device_name(target, index)
    known: dict[str, Any] = {
        "name": name,
        "gcnArchName": name,
        "major": major,
        "minor": minor,
        "total_memory": mem_get_info(target, index)[1],
        "multi_processor_count": os.cpu_count() or 1,
        "uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"{target.device}:{index}"),
    }
    return DeviceProperties(**known | {k: v for k, v in told.items() if v is not None})


def can_device_access_peer(target: Target, device: Device, peer_device: Device) -> bool:
    """Return False: direct copies between devices are unknown, so none is promised."""
    return False


def is_bf16_supported(target: Target, including_emulation: bool = True) -> bool:
    """Return True for the CPU; try bfloat16 on another device."""
    if not target.has_index:
        return True
    try:
        torch.ones(1, dtype=torch.bfloat16, device=target.device)
    except Exception:  # any error of the vendor means no support
        return False
    return True


class _Cudart:
    """The functions of the CUDA runtime that programs call through torch.cuda.cudart()."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def cudaProfilerStart(self) -> int:
        _missed("profiler.start")
        return 0

    def cudaProfilerStop(self) -> int:
        _missed("profiler.stop")
        return 0

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return mem_get_info(self._target, device)

    def cudaDeviceSynchronize(self) -> int:
        torch.cuda.synchronize()
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        reason = "the CUDA runtime is not here; use the functions of torch.cuda"
        return calls.missed(f"torch.cuda.cudart().{name}", reason, fatal=True)


def cudart(target: Target) -> _Cudart:
    return _Cudart(target)


def check_error(target: Target, res: int) -> None:
    """Raise CUDA's own error for a code that is not success."""
    if res != torch.cuda.cudaStatus.SUCCESS:
        raise torch.cuda.CudaError(res)


def cuda_error(target: Target, self: Any, code: int) -> None:
    """Initialise the error of a code; CUDA's runtime, which is not here, has the texts."""
    RuntimeError.__init__(self, f"CUDA error ({code})")


def set_sync_debug_mode(target: Target, debug_mode: int | str) -> None:
    if debug_mode not in (0, "default"):
        _missed("set_sync_debug_mode")


def make_graphed_callables(target: Target, callables: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the callables unchanged: equal results, without the speed of a graph."""
    _missed("make_graphed_callables", "the callables unchanged")
    return callables


# Memory: of a device by torch.accelerator; the CPU's allocator has no counters.


def memory_stats(target: Target, device: Device = None) -> dict[str, Any]:
    if not target.has_index:
        return {}
    return dict(torch.accelerator.memory_stats(_index(target, device)))


def memory_stats_as_nested_dict(target: Target, device: Device = None) -> dict[str, Any]:
    """Convert the flat keys to {"allocated_bytes": {"all": {"current": …}}, …}."""
    nested: dict[str, Any] = {}
    for key, value in torch.cuda.memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _stat(device: Device, key: str) -> int:
    return int(torch.cuda.memory_stats(device).get(key, 0))


def memory_allocated(target: Target, device: Device = None) -> int:
    return _stat(device, "allocated_bytes.all.current")


def max_memory_allocated(target: Target, device: Device = None) -> int:
    return _stat(device, "allocated_bytes.all.peak")


def memory_reserved(target: Target, device: Device = None) -> int:
    return _stat(device, "reserved_bytes.all.current")


def max_memory_reserved(target: Target, device: Device = None) -> int:
    return _stat(device, "reserved_bytes.all.peak")


def reset_peak_memory_stats(target: Target, device: Device = None) -> None:
    if target.has_index:
        torch.accelerator.reset_peak_memory_stats(_index(target, device))


def reset_accumulated_memory_stats(target: Target, device: Device = None) -> None:
    if target.has_index:
        torch.accelerator.reset_accumulated_memory_stats(_index(target, device))


def empty_cache(target: Target) -> None:
    if target.has_index:
        torch.accelerator.empty_cache()


def mem_get_info(target: Target, device: Device = None) -> tuple[int, int]:
    """Return free and total bytes: of the device; on plain CPU, of the machine."""
    if target.has_index:
        own = getattr(target.module, "mem_get_info", torch.accelerator.get_memory_info)
        free, total = own(_index(target, device))
        return int(free), int(total)
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def device_memory_used(target: Target, device: Device = None) -> int:
    free, total = mem_get_info(target, device)
    return total - free


def memory_summary(target: Target, device: Device = None, abbreviated: bool = False) -> str:
    """Format the counters, one per line."""
    lines = [f"{target.device} memory summary, device {_index(target, device)}"]
    stats = torch.cuda.memory_stats(device)
    wanted = (key for key in stats if ".all." in key or not abbreviated)
    return "\n".join(lines + [f"{key:50}{stats[key]:>20,}" for key in wanted])


def caching_allocator_disabled(target: Target) -> contextlib.AbstractContextManager[None]:
    _missed("caching_allocator_disabled")
    return contextlib.nullcontext()


# Random numbers: the default generator of each device; on plain CPU torch's own.


def default_generators(target: Target) -> Sequence[torch.Generator]:
    own: Sequence[torch.Generator] | None = getattr(target.module, "default_generators", None)
    if target.has_index and own is not None:
        return own
    return (torch.default_generator,)


def _generator(target: Target, device: Device) -> torch.Generator:
    generators = default_generators(target)
    return generators[_index(target, device) if target.has_index else 0]


def get_rng_state(target: Target, device: Device = "cuda") -> torch.Tensor:
    return _generator(target, device).get_state()


def set_rng_state(target: Target, new_state: torch.Tensor, device: Device = "cuda") -> None:
    _generator(target, device).set_state(new_state)


def get_rng_state_all(target: Target) -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators(target)]


def set_rng_state_all(target: Target, new_states: Iterable[torch.Tensor]) -> None:
    for generator, state in zip(default_generators(target), new_states, strict=False):
        generator.set_state(state)


def manual_seed(target: Target, seed: int) -> None:
    _generator(target, None).manual_seed(int(seed))


def manual_seed_all(target: Target, seed: int) -> None:
    for generator in default_generators(target):
        generator.manual_seed(int(seed))


def seed(target: Target) -> None:
    _generator(target, None).seed()


def seed_all(target: Target) -> None:
    manual_seed_all(target, default_generators(target)[0].seed())


def initial_seed(target: Target) -> int:
    return _generator(target, None).initial_seed()
