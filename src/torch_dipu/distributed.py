"""The process group "dicl": the chip's communicator on device tensors."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import torch.distributed as dist

from deeplink.errors import DeeplinkError
from torch_dipu import _C


def register(chip: ModuleType) -> None:
    """Makes `init_process_group("dicl")`, and the device's default back end, known to torch."""
    if not dist.is_available():
        return

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        communicator = getattr(chip, "communicator", None)
        if communicator is None:
            raise DeeplinkError(
                f"the vendor's runtime {chip.__name__} has no communicator.",
                hint="define communicator(store, rank, size, timeout) in that module.",
            )
        return _C.make_process_group(communicator(store, rank, size, timeout))

    dist.Backend.register_backend("dicl", create, devices=["dipu"])
