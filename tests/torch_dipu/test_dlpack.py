"""DLPack: tensors of the device exchanged with other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import DLDeviceType, to_dlpack


def test_an_exchange_between_device_tensors_shares_the_memory() -> None:
    x = torch.arange(6.0, device="dipu").view(2, 3)
    for imported in (torch.from_dlpack(x), torch.from_dlpack(to_dlpack(x))):
        assert imported.device == x.device
        assert imported.data_ptr() == x.data_ptr()
    imported.add_(1)
    assert x.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_strides_offsets_and_types_are_kept() -> None:
    x = torch.arange(24, device="dipu:1", dtype=torch.bfloat16).view(4, 6)[1:, ::2].t()
    imported = torch.from_dlpack(x)
    assert (imported.stride(), imported.dtype, imported.device) == (x.stride(), x.dtype, x.device)
    assert torch.equal(imported, x)


def test_imported_memory_outlives_the_exporting_tensor() -> None:
    x = torch.full((1000,), 3.0, device="dipu")
    imported = torch.from_dlpack(x)
    del x
    others = [torch.zeros(1000, device="dipu") for _ in range(4)]
    assert imported.sum().item() == 3000.0
    assert len(others) == 4


def test_a_copy_is_made_when_it_is_requested() -> None:
    x = torch.ones(3, device="dipu")
    copied = torch.from_dlpack(x, copy=True)
    copied.zero_()
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert torch.from_dlpack(x, copy=False).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("tensor", [torch.ones(2), torch.ones(2, device="dipu:1")])
def test_the_device_is_named_by_dlpacks_numbers(tensor: torch.Tensor) -> None:
    expected = {"cpu": (DLDeviceType.kDLCPU, 0), "dipu": (DLDeviceType.kDLExtDev, 1)}
    assert tensor.__dlpack_device__() == expected[tensor.device.type]


def test_pinned_memory_is_the_hosts() -> None:
    pinned = torch.arange(3.0).pin_memory()
    assert pinned.__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    shared = np.from_dlpack(pinned)
    shared[0] = 9
    assert pinned.tolist() == [9.0, 1.0, 2.0]


def test_numpy_gets_a_copy_when_it_asks_for_the_host() -> None:
    x = torch.arange(4.0, device="dipu")
    array = np.from_dlpack(x, device="cpu")
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises((BufferError, ValueError)):
        np.from_dlpack(x, device="cpu", copy=False)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(x)  # memory of a device


class _Consumer:
    """A library's view of an export: what it asks for, and what it gets."""

    def __init__(self, tensor: torch.Tensor, **wanted: Any) -> None:
        self.tensor, self.wanted = tensor, wanted

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.wanted.get("dl_device", self.tensor.__dlpack_device__())

    def __dlpack__(self, **ignored: Any) -> Any:
        return self.tensor.__dlpack__(**self.wanted)


@pytest.mark.parametrize("place", [(1, 0), (12, 1)])
def test_an_export_to_another_device_is_a_copy(place: tuple[int, int]) -> None:
    x = torch.arange(3.0, device="dipu")
    imported = torch.from_dlpack(_Consumer(x, dl_device=place))
    assert str(imported.device) == {1: "cpu", 12: "dipu:1"}[place[0]]
    assert imported.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(BufferError, match=r"without a copy.*\nHint: copy=None"):
        x.__dlpack__(dl_device=place, copy=False)


def test_an_export_to_an_unknown_device_is_refused() -> None:
    with pytest.raises(BufferError, match="found kDLMetal"):
        torch.ones(2, device="dipu").__dlpack__(dl_device=(DLDeviceType.kDLMetal, 0))


def test_an_import_moves_to_the_device_that_is_requested() -> None:
    array = np.arange(3.0, dtype=np.float32)
    there = torch.from_dlpack(array, device=torch.device("dipu", 0))
    assert there.device == torch.device("dipu", 0)
    assert there.tolist() == [0.0, 1.0, 2.0]
    back = torch.from_dlpack(there, device="cpu")
    assert back.device.type == "cpu"
    with pytest.raises((ValueError, BufferError)):
        torch.from_dlpack(array, device=torch.device("dipu", 0), copy=False)


def test_what_dlpack_cannot_describe_is_refused() -> None:
    x = torch.ones(2, device="dipu")
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x.clone().requires_grad_())
    with pytest.raises(BufferError, match="require gradient"):
        x.clone().requires_grad_().__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="conjugate"):
        torch.from_dlpack(torch.ones(2, dtype=torch.complex64, device="dipu").conj())


def test_the_consumers_stream_waits_for_the_exporters() -> None:
    consumer = torch.dipu.Stream()
    x = torch.ones(2, device="dipu")
    with torch.dipu.quirk("latency", "mul_", ms=400):
        x.mul_(2)
    x.__dlpack__(stream=consumer.dipu_stream)
    assert not consumer.query()
    consumer.synchronize()
    with pytest.raises(TypeError, match="found str"):
        x.__dlpack__(stream="default")
