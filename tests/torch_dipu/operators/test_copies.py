"""Copies between host and device, between devices, and within one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

DEVICES = ["cpu", "dipu:0", "dipu:1"]

SOURCES: dict[str, Tensor] = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "stepped": torch.arange(24.0)[::2],
    "expanded": torch.arange(3.0).view(3, 1).expand(3, 4),
    "overlapping": torch.arange(6.0).as_strided((4, 3), (1, 1)),
    "with offset": torch.arange(12.0)[5:],
    "zero size": torch.zeros(0, 4),
    "zero dim": torch.tensor(5.0),
    "channels last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative view": torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
}


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize("here", DEVICES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_copy_keeps_the_values(name: str, here: str, there: str) -> None:
    source = SOURCES[name]
    moved = source.to(here).to(there)
    assert moved.device == torch.device(there)
    assert torch.equal(moved.cpu(), source)


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize("here", DEVICES)
@pytest.mark.parametrize("name", SOURCES)
def test_copy_into_a_strided_destination(name: str, here: str, there: str) -> None:
    source = SOURCES[name].to(here)
    room = torch.zeros(*source.shape, 2, dtype=source.dtype, device=there)
    room[..., 1].copy_(source)
    assert torch.equal(room[..., 1].cpu(), SOURCES[name])
    assert torch.equal(room[..., 0].cpu(), torch.zeros_like(SOURCES[name]))


@pytest.mark.parametrize("name", ["transposed", "channels last", "contiguous"])
def test_strides_are_kept_on_the_way_as_between_cpu_and_cpu(name: str) -> None:
    source = SOURCES[name]
    assert source.to("dipu").stride() == source.clone().stride()
    assert source.to("dipu").cpu().stride() == source.clone().stride()


@pytest.mark.parametrize("here", ["cpu", "dipu:0"])
@pytest.mark.parametrize("there", ["dipu:0", "dipu:1", "cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float64, torch.bool])
def test_dtype_and_device_change_together(here: str, there: str, dtype: torch.dtype) -> None:
    source = torch.tensor([0.0, 1.7, -2.4]).to(here)
    moved = source.to(there, dtype)
    assert moved.dtype == dtype
    assert torch.equal(moved.cpu(), source.cpu().to(dtype))


def test_copy_broadcasts_its_source() -> None:
    target = torch.zeros(2, 3, device="dipu")
    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert target.tolist() == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]


def test_copy_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.zeros(2, device="dipu").copy_(torch.zeros(3))


def test_to_the_same_device_is_the_same_tensor() -> None:
    tensor = torch.zeros(2, device="dipu")
    assert tensor.to("dipu") is tensor
    assert tensor.to("dipu:0") is tensor
    assert tensor.to("dipu:0", copy=True) is not tensor


def test_to_with_another_tensor_takes_its_device_and_dtype() -> None:
    like = torch.zeros(1, dtype=torch.float64, device="dipu:1")
    moved = torch.ones(2).to(like)
    assert (moved.device, moved.dtype) == (like.device, torch.float64)


def test_a_peer_copy_leaves_the_source_alone() -> None:
    source = torch.arange(4.0, device="dipu:0")
    copy = source.to("dipu:1")
    copy += 10
    assert source.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert copy.tolist() == [10.0, 11.0, 12.0, 13.0]


def test_a_copy_between_parts_of_one_tensor() -> None:
    tensor = torch.arange(6.0, device="dipu")
    tensor[4:].copy_(tensor[:2])
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_non_blocking_copy_is_right_after_synchronize(pinned: bool) -> None:
    source = torch.arange(1000.0)
    source = source.pin_memory() if pinned else source
    there = source.to("dipu", non_blocking=True)
    back = torch.empty(1000, pin_memory=pinned)
    back.copy_(there, non_blocking=True)
    torch.dipu.synchronize()
    assert torch.equal(back, source)


def test_pinned_memory_stays_until_the_copy_that_writes_it_has_arrived() -> None:
    source = torch.full((1024,), 5.0, device="dipu")
    with torch.dipu.quirk("late_copy"):
        gone = torch.empty(1024, pin_memory=True)
        gone.copy_(source, non_blocking=True)
        del gone
        others = [torch.full((1024,), -1.0).pin_memory() for _ in range(4)]
        torch.dipu.synchronize()
    assert all(bool((other == -1).all()) for other in others)


def test_clone_can_change_the_memory_format() -> None:
    source = torch.arange(24.0, device="dipu").view(1, 2, 3, 4)
    clone = source.clone(memory_format=torch.channels_last)
    assert clone.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(clone.cpu(), source.cpu())


def test_a_copy_is_differentiable_across_devices() -> None:
    source = torch.tensor([1.0, 2.0], requires_grad=True)
    (source.to("dipu").mul(3).to("dipu:1").cpu() ** 2).sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [18.0, 36.0]


def test_module_to_device_and_back_keeps_the_values() -> None:
    module = torch.nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.to("dipu")
    assert {value.device.type for value in module.state_dict().values()} == {"dipu"}
    module.cpu()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
