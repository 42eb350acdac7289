# SPDX-License-Identifier: Apache-2.0
"""The reference chip's runtime, in C++; gloo between hosts."""

from __future__ import annotations

import logging
import socket
import uuid
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from deeplink import settings
from deeplink_vendors.reference.library import runtime as runtime

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store

log = logging.getLogger("torch_dipu")


def communicator(store: Store, rank: int, size: int, timeout: timedelta) -> Backend | None:
    """Return None for the chip's own communicator, for processes of one host; gloo
    between hosts.
    """
    from torch.distributed import ProcessGroupGloo

    if _on_one_host(store, rank, size, timeout):
        return None
    return ProcessGroupGloo(store, rank, size, timeout)


def _on_one_host(store: Store, rank: int, size: int, timeout: timedelta) -> bool:
    """Whether all ranks are on one host and select the chip's communicator: rank 0
    decides for all.
    """
    store.set(
        f"dicl/host/{rank}",
        f"{settings.DIPU_COLLECTIVES.get()} {socket.gethostname()} {_system()}",
    )
    if rank == 0:
        keys = [f"dicl/host/{other}" for other in range(size)]
        store.wait(keys, timeout)
        places = {tuple(store.get(key).decode().split()) for key in keys}
        chosen, hosts = {place[0] for place in places}, sorted({place[1] for place in places})
        if len(places) > 1 and chosen == {"chip"}:
            log.warning("dicl: the ranks are not on one host (%s): over gloo", ", ".join(hosts))
        store.set("dicl/by", "chip" if len(places) == 1 and chosen == {"chip"} else "gloo")
    store.wait(["dicl/by"], timeout)
    return bool(store.get("dicl/by") == b"chip")


def _system() -> str:
    """Identify the boot of a machine and the PID namespace: containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no such system: treat every process as separate
        return f"unknown {uuid.uuid4()}"


def start() -> None:
    """Switch on the faults of DIPU_QUIRKS; called when the device is registered."""
    if settings.DIPU_QUIRKS.get():
        quirks().start()


def quirks() -> ModuleType:
    """Return the module of this chip's faults; imported on demand, as it needs the registered
    device.
    """
    from deeplink_vendors.reference import quirks

    return quirks
