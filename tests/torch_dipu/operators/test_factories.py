"""Making tensors on the device: every factory and dtype, and how they print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

FACTORIES: dict[str, Callable[..., Tensor]] = {
    "zeros": lambda **kw: torch.zeros(2, 3, **kw),
    "ones": lambda **kw: torch.ones(2, 3, **kw),
    "full": lambda **kw: torch.full((2, 3), 7.5, **kw),
    "arange": lambda **kw: torch.arange(1, 9, 2, **kw),
    "linspace": lambda **kw: torch.linspace(0, 1, 5, **kw),
    "logspace": lambda **kw: torch.logspace(0, 2, 3, **kw),
    "eye": lambda **kw: torch.eye(3, 4, **kw),
    "tensor": lambda **kw: torch.tensor([[1.0, -2.0], [0.5, 4.0]], **kw),
    "as_tensor": lambda **kw: torch.as_tensor([1, 2, 3], **kw),
    "tril_indices": lambda **kw: torch.tril_indices(3, 3, **kw),
    "hann_window": lambda **kw: torch.hann_window(6, **kw),
    "complex full": lambda **kw: torch.full((2,), 1 + 2j, **kw),
    "zero size": lambda **kw: torch.zeros(0, 3, **kw),
    "zero dim": lambda **kw: torch.tensor(3, **kw),
}

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
]


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_what_the_cpu_makes(name: str) -> None:
    actual = FACTORIES[name](device="dipu")
    assert actual.device == torch.device("dipu", 0)
    torch.testing.assert_close(actual.cpu(), FACTORIES[name](), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_survives_the_way_there_and_back(dtype: torch.dtype) -> None:
    expected = torch.tensor([0.0, 1.0, 2.0, 3.0]).to(dtype)
    actual = expected.to("dipu")
    assert actual.dtype == dtype
    assert torch.equal(actual.cpu().view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like"])
def test_a_like_factory_keeps_device_shape_and_dtype(name: str) -> None:
    source = torch.zeros(2, 3, dtype=torch.float64, device="dipu:1")
    actual = getattr(torch, name)(source)
    assert (actual.device, actual.shape, actual.dtype) == (
        torch.device("dipu", 1),
        (2, 3),
        torch.float64,
    )


def test_new_factories_stay_on_the_device() -> None:
    source = torch.zeros(1, device="dipu:1")
    assert source.new_ones(2).cpu().tolist() == [1.0, 1.0]
    assert source.new_tensor([4.0]).device == source.device
    assert source.new_full((2,), 3.0).cpu().tolist() == [3.0, 3.0]


def test_a_like_factory_can_cross_devices() -> None:
    assert torch.zeros_like(torch.ones(2), device="dipu").cpu().tolist() == [0.0, 0.0]
    assert torch.ones_like(torch.zeros(2, device="dipu"), device="cpu").tolist() == [1.0, 1.0]


def test_a_numpy_array_becomes_a_device_tensor() -> None:
    import numpy as np

    source: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert torch.tensor(source, device="dipu").cpu().tolist() == source.tolist()


def test_the_device_string_without_index_is_the_current_device() -> None:
    torch.dipu.set_device(1)
    assert torch.zeros(1, device="dipu").device == torch.device("dipu", 1)


def test_a_default_device_serves_all_factories() -> None:
    torch.set_default_device("dipu")
    try:
        made = [torch.zeros(2), torch.randn(2), torch.tensor([1.0])]
        module = torch.nn.Linear(2, 2)
    finally:
        torch.set_default_device(None)
    assert {t.device.type for t in [*made, module.weight]} == {"dipu"}


def test_a_device_context_serves_all_factories() -> None:
    with torch.device("dipu:1"):
        assert torch.zeros(1).device == torch.device("dipu", 1)
    assert torch.zeros(1).device == torch.device("cpu")


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([1.0, 2.0]), "tensor([1., 2.], device='dipu:0')"),
        (torch.tensor(3), "tensor(3, device='dipu:0')"),
        (torch.zeros(0), "tensor([], device='dipu:0')"),
        (torch.tensor([1], dtype=torch.int32), "tensor([1], device='dipu:0', dtype=torch.int32)"),
        (torch.tensor([True, False]), "tensor([ True, False], device='dipu:0')"),
    ],
)
def test_a_device_tensor_prints_with_its_device(tensor: Tensor, text: str) -> None:
    assert repr(tensor.to("dipu")) == text


def test_a_large_tensor_prints_summarised() -> None:
    text = repr(torch.zeros(2000, device="dipu"))
    assert text == "tensor([0., 0., 0.,  ..., 0., 0., 0.], device='dipu:0')"


def test_a_parameter_prints_with_its_gradient_flag() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, device="dipu"))
    assert repr(parameter) == (
        "Parameter containing:\ntensor([1.], device='dipu:0', requires_grad=True)"
    )


def test_format_and_item_read_the_value() -> None:
    value = torch.tensor(2.5, device="dipu")
    assert f"{value:.2f}" == "2.50"
    assert value.item() == 2.5
    assert float(value) == 2.5
    assert bool(torch.tensor(True, device="dipu"))


def test_tolist_reads_all_values() -> None:
    assert torch.arange(4, device="dipu").view(2, 2).tolist() == [[0, 1], [2, 3]]


def test_is_dipu_and_the_dipu_method_exist() -> None:
    tensor = torch.ones(2)
    moved = tensor.dipu()  # type: ignore[attr-defined]
    assert moved.is_dipu
    assert not tensor.is_dipu  # type: ignore[attr-defined]
    assert moved.device == torch.device("dipu", 0)


FILLED = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.complex64]


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", FILLED)
def test_new_memory_is_filled_as_on_the_cpu(deterministic: None, dtype: torch.dtype) -> None:
    ours = torch.empty(3, dtype=dtype, device="dipu")
    torch.testing.assert_close(ours.cpu(), torch.empty(3, dtype=dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", FILLED)
def test_what_a_resize_adds_is_filled_as_on_the_cpu(
    deterministic: None, dtype: torch.dtype
) -> None:
    host = torch.ones(2, dtype=dtype)
    ours = host.to("dipu").resize_(5)
    torch.testing.assert_close(ours.cpu(), host.clone().resize_(5), equal_nan=True)


def test_an_empty_tensor_has_no_value() -> None:
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        torch.ops.aten._local_scalar_dense(torch.empty(0, device="dipu"))
