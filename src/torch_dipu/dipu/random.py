# SPDX-License-Identifier: Apache-2.0
"""The device's random generators: a seed and an offset each, as in CUDA.

A state has 16 bytes, the seed and the offset. Each random operator uses the numbers of one offset
and advances the generator to the next one (offsets are multiples of 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from torch_dipu import _C
from torch_dipu.dipu.device import Device, device_count, index_of

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "host_rng_state",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


class _Generators:
    """The default generator of every device, as a sequence."""

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < len(self):
            raise IndexError(f"no dipu device {index}; there are {len(self)}")
        generator: torch.Generator = _C.default_generator(index)
        return generator

    def __len__(self) -> int:
        return device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def _generator(device: Device) -> torch.Generator:
    return default_generators[index_of(device)]


def get_rng_state(device: Device = "dipu") -> torch.Tensor:
    """Return the state of a device's generator as a host ByteTensor."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "dipu") -> None:
    """Restore the state of a device's generator."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all devices, in their order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def host_rng_state(of: Device | torch.Generator = "dipu") -> torch.Tensor:
    """Return the state for torch.set_rng_state with which the CPU generates the numbers that the
    next
    operator of a device, or with a generator, would use. The generator is not changed.
    """
    if not isinstance(of, torch.Generator):
        return _C.host_state(index_of(of))
    # as bytes: a tensor that such a function returns would be moved to the device
    state = _C.call_on_host(lambda host: host.get_state().numpy().tobytes(), (of,), {}, False)
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator randomly."""
    _generator(None).seed()


def seed_all() -> None:
    """Seed every device's generator randomly, all with one seed."""
    first = _generator(0).seed()
    manual_seed_all(first)


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _generator(None).initial_seed()
