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
    """None: the chip's own, which joins processes of one host. Between hosts it is gloo."""
    from torch.distributed import ProcessGroupGloo

    if _can_meet(store, rank, size, timeout):
        return None
    return ProcessGroupGloo(store, rank, size, timeout)


def _can_meet(store: Store, rank: int, size: int, timeout: timedelta) -> bool:
    """Whether all ranks are on one host and want the chip's own: rank 0 finds out, for all."""
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
    """Which boot of a machine, and whose process numbers: containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no such system: no two processes of it are the same
        return f"unknown {uuid.uuid4()}"


def start() -> None:
    """Once the device is registered: the faults named in DIPU_QUIRKS are switched on."""
    if settings.DIPU_QUIRKS.get():
        quirks().start()


def quirks() -> ModuleType:
    """The faults of this chip; loaded when somebody asks, they need the registered device."""
    from deeplink_vendors.reference import quirks

    return quirks
