"""Devices: how many, which is current, guards; and the names that torch gives them."""

from __future__ import annotations

import pytest
import torch

from tests.torch_dipu.interpreter import output_of, run_python


def test_there_are_two_devices_by_default() -> None:
    text = output_of("import torch, torch_dipu; print(torch.dipu.device_count())")
    assert text == "2"


def test_the_number_of_devices_can_be_set() -> None:
    text = output_of(
        """
import torch, torch_dipu
tensors = [torch.full((1,), float(i), device=f"dipu:{i}") for i in range(4)]
print(torch.dipu.device_count(), sum(t.to("dipu:3") for t in tensors).item())
""",
        DIPU_DEVICE_COUNT="4",
    )
    assert text == "4 6.0"


def test_a_bad_number_of_devices_is_an_error_that_names_the_variable() -> None:
    done = run_python(
        "import torch, torch_dipu; torch.zeros(1, device='dipu')", DIPU_DEVICE_COUNT="many"
    )
    assert done.returncode == 1
    assert "DIPU_DEVICE_COUNT" in done.stderr


def test_the_device_module_can_be_imported_by_its_name() -> None:
    text = output_of(
        """
import sys, torch_dipu
import torch.dipu
from torch.dipu import amp
print(sys.modules["torch.dipu"] is torch.dipu, torch.dipu.amp is amp)
"""
    )
    assert text == "True True"


def test_importing_does_not_touch_the_device_or_the_random_state() -> None:
    text = output_of(
        """
import torch
torch.manual_seed(5)
expected = torch.rand(1)
torch.manual_seed(5)
import torch_dipu
print(torch.equal(torch.rand(1), expected), torch.dipu.is_initialized())
torch.zeros(1, device="dipu")
print(torch.dipu.is_initialized())
"""
    )
    assert text.split() == ["True", "False", "True"]


def test_set_device_changes_the_current_device() -> None:
    assert torch.dipu.current_device() == 0
    torch.dipu.set_device(1)
    assert torch.dipu.current_device() == 1
    torch.dipu.set_device("dipu:0")
    assert torch.dipu.current_device() == 0
    torch.dipu.set_device(torch.device("dipu", 1))
    assert torch.dipu.current_device() == 1


def test_a_device_context_is_undone_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="left early"), torch.dipu.device(1):
        assert torch.zeros(1, device="dipu").device.index == 1
        raise ValueError("left early")
    assert torch.dipu.current_device() == 0


def test_device_of_follows_a_tensor() -> None:
    with torch.dipu.device_of(torch.zeros(1, device="dipu:1")):
        assert torch.dipu.current_device() == 1
    with torch.dipu.device_of(torch.zeros(1)):
        assert torch.dipu.current_device() == 0


def test_an_op_on_another_device_leaves_the_current_one() -> None:
    result = torch.ones(2, device="dipu:1") * 2
    assert result.device.index == 1
    assert torch.dipu.current_device() == 0


@pytest.mark.parametrize("index", [2, 7])
def test_a_device_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.dipu.set_device(index)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device=f"dipu:{index}")


def test_get_device_module_is_torch_dipu() -> None:
    assert torch.get_device_module("dipu") is torch.dipu
    assert torch.get_device_module(torch.device("dipu", 1)) is torch.dipu


def test_device_names_and_properties() -> None:
    properties = torch.dipu.get_device_properties(1)
    assert torch.dipu.get_device_name(1) == properties.name
    assert isinstance(properties.total_memory, int)
    assert len(torch.dipu.get_device_capability()) == 2
    assert torch.dipu.is_available()
    assert torch.dipu.can_device_access_peer(0, 1)


def test_bfloat16_is_supported() -> None:
    assert torch.dipu.is_bf16_supported()


def test_accelerator_is_this_device() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("dipu")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.dipu.device_count()


def test_accelerator_sets_the_current_device() -> None:
    torch.accelerator.set_device_index(1)
    assert torch.dipu.current_device() == 1
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_device_index() == 1


def test_accelerator_synchronizes_and_has_streams() -> None:
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream() == torch.dipu.current_stream()


def test_accelerator_counts_memory() -> None:
    torch.accelerator.reset_peak_memory_stats()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="dipu")
    assert torch.accelerator.memory_allocated() == torch.dipu.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.dipu.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.dipu.max_memory_allocated()
    del tensor
    torch.accelerator.empty_cache()


def test_the_backend_has_the_name_dipu() -> None:
    assert torch._C._get_privateuse1_backend_name() == "dipu"
    assert str(torch.device("dipu", 1)) == "dipu:1"
    assert torch.tensor(0, device="dipu").get_device() == 0


NAMES = """
current_device set_device device device_of device_count is_available is_initialized init synchronize
get_device_name get_device_capability get_device_properties can_device_access_peer
Stream Event stream current_stream default_stream set_stream StreamContext
memory_allocated max_memory_allocated memory_reserved max_memory_reserved empty_cache memory_stats
reset_peak_memory_stats reset_accumulated_memory_stats memory_summary memory_snapshot mem_get_info
set_per_process_memory_fraction OutOfMemoryError ipc_collect
manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state
get_rng_state_all set_rng_state_all default_generators is_bf16_supported amp
""".split()


def test_torch_dipu_has_the_names_of_torch_cuda() -> None:
    assert [name for name in NAMES if not hasattr(torch.cuda, name)] == []
    assert [name for name in NAMES if not hasattr(torch.dipu, name)] == []
