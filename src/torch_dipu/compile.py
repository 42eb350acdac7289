"""torch.compile on the device: what dynamo must know of it."""

from __future__ import annotations

from types import ModuleType


def register(chip: ModuleType) -> None:
    """Nothing is loaded here: torch._dynamo is slow to import and few programs need it."""
