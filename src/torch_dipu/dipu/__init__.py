# SPDX-License-Identifier: Apache-2.0
"""torch.dipu: the device as a module, with the names of torch.cuda."""

from collections.abc import Callable

from torch_dipu.dipu import amp, graphs
from torch_dipu.dipu import device as _device
from torch_dipu.dipu import memory as _memory
from torch_dipu.dipu import operators as _operators
from torch_dipu.dipu import quirks as _quirks
from torch_dipu.dipu import random as _random
from torch_dipu.dipu import streams as _streams
from torch_dipu.dipu.device import *  # noqa: F403
from torch_dipu.dipu.graphs import *  # noqa: F403
from torch_dipu.dipu.memory import *  # noqa: F403
from torch_dipu.dipu.operators import *  # noqa: F403
from torch_dipu.dipu.quirks import *  # noqa: F403
from torch_dipu.dipu.random import *  # noqa: F403
from torch_dipu.dipu.streams import *  # noqa: F403

__all__ = [
    "amp",
    "graphs",
    *_device.__all__,
    *graphs.__all__,
    *_memory.__all__,
    *_operators.__all__,
    *_quirks.__all__,
    *_random.__all__,
    *_streams.__all__,
]


# Names that torch reads and whose values need modules that are imported late: by torch_internals.
LAZY: dict[str, Callable[[], object]] = {}


def __getattr__(name: str) -> object:
    # torch.utils.checkpoint reads it to decide whether to save this device's RNG state
    if name == "_initialized":
        return _device.is_initialized()
    if name in LAZY:
        return LAZY[name]()
    raise AttributeError(f"module 'torch.dipu' has no attribute {name!r}")
