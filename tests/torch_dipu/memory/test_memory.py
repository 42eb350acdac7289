"""The caching allocator: statistics, capacity, running out, and memory closed to the host."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.torch_dipu.interpreter import output_of, run_python

MIB = 1 << 20

STATISTICS = [
    f"{name}.{pool}.{kind}"
    for name in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    )
    for pool in ("all", "large_pool", "small_pool")
    for kind in ("current", "peak", "allocated", "freed")
] + ["num_alloc_retries", "num_ooms"]


def test_allocated_memory_goes_up_and_down() -> None:
    before = torch.dipu.memory_allocated()
    tensor = torch.empty(4 * MIB, dtype=torch.uint8, device="dipu")
    assert torch.dipu.memory_allocated() - before == 4 * MIB
    del tensor
    assert torch.dipu.memory_allocated() == before


def test_small_allocations_are_rounded_to_512_bytes() -> None:
    before = torch.dipu.memory_allocated()
    tensor = torch.empty(1, device="dipu")
    assert torch.dipu.memory_allocated() - before == 512
    del tensor


def test_freed_memory_stays_reserved_until_empty_cache() -> None:
    torch.dipu.empty_cache()
    before = torch.dipu.memory_reserved()
    tensor = torch.empty(32 * MIB, dtype=torch.uint8, device="dipu")
    assert torch.dipu.memory_reserved() - before >= 32 * MIB
    del tensor
    assert torch.dipu.memory_reserved() - before >= 32 * MIB
    torch.dipu.empty_cache()
    assert torch.dipu.memory_reserved() == before


def test_a_freed_block_is_used_again() -> None:
    first = torch.empty(3 * MIB, dtype=torch.uint8, device="dipu")
    pointer = first.data_ptr()
    del first
    second = torch.empty(3 * MIB, dtype=torch.uint8, device="dipu")
    assert second.data_ptr() == pointer


def test_the_peak_is_kept_until_it_is_reset() -> None:
    torch.dipu.reset_peak_memory_stats()
    before = torch.dipu.memory_allocated()
    tensor = torch.empty(8 * MIB, dtype=torch.uint8, device="dipu")
    del tensor
    assert torch.dipu.max_memory_allocated() == before + 8 * MIB
    assert torch.dipu.max_memory_reserved() >= before + 8 * MIB
    torch.dipu.reset_peak_memory_stats()
    assert torch.dipu.max_memory_allocated() == torch.dipu.memory_allocated()


def test_each_device_counts_its_own_memory() -> None:
    before = [torch.dipu.memory_allocated(index) for index in range(2)]
    tensor = torch.empty(MIB, dtype=torch.uint8, device="dipu:1")
    assert torch.dipu.memory_allocated(0) == before[0]
    assert torch.dipu.memory_allocated("dipu:1") == before[1] + MIB
    assert torch.dipu.memory_allocated(torch.device("dipu", 1)) == before[1] + MIB
    del tensor


def test_a_view_allocates_nothing() -> None:
    tensor = torch.zeros(1000, device="dipu")
    before = torch.dipu.memory_allocated()
    views = [tensor[1:], tensor.view(10, 100), tensor.view(10, 100).t()]
    assert torch.dipu.memory_allocated() == before
    del views


def test_memory_stats_has_the_keys_of_cuda() -> None:
    tensor = torch.empty(1, device="dipu")
    assert set(STATISTICS) - set(torch.dipu.memory_stats()) == set()
    del tensor


def test_memory_stats_agree_with_the_short_names() -> None:
    tensor = torch.empty(2 * MIB, dtype=torch.uint8, device="dipu")
    stats = torch.dipu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.dipu.memory_allocated()
    assert stats["reserved_bytes.all.current"] == torch.dipu.memory_reserved()
    assert stats["allocated_bytes.all.peak"] == torch.dipu.max_memory_allocated()
    del tensor


def test_memory_summary_is_a_table() -> None:
    assert "memory summary, device" in torch.dipu.memory_summary()


def test_mem_get_info_counts_down_from_the_capacity() -> None:
    torch.dipu.empty_cache()
    free, total = torch.dipu.mem_get_info()
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="dipu")
    assert torch.dipu.mem_get_info() == (free - 64 * MIB, total)
    assert torch.dipu.get_device_properties(0).total_memory == total
    del tensor


def test_out_of_memory_has_torchs_type_and_cudas_words() -> None:
    text = output_of(
        """
import torch, torch_dipu
try:
    torch.empty(1 << 30, device="dipu")
except torch.OutOfMemoryError as error:
    print(error)
    print(isinstance(error, RuntimeError), torch.dipu.OutOfMemoryError is torch.OutOfMemoryError)
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    assert text.startswith("DIPU out of memory. Tried to allocate 4.00 GiB.")
    assert "has a total capacity of 64.00 MiB" in text
    assert text.endswith("True True")


def test_a_program_goes_on_after_running_out_of_memory() -> None:
    text = output_of(
        """
import torch, torch_dipu
kept = []
try:
    while True:
        kept.append(torch.ones(1 << 20, device="dipu"))
except torch.OutOfMemoryError:
    held = len(kept)
    kept.clear()
print(held, torch.ones(12 << 20, device="dipu").sum().item(), torch.dipu.memory_allocated())
print(torch.dipu.memory_stats()["num_ooms"])
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    assert text.split() == ["16", str(float(12 << 20)), "0", "1"]


def test_cached_blocks_are_given_back_before_giving_up() -> None:
    text = output_of(
        """
import torch, torch_dipu
small = [torch.empty(10 << 20, dtype=torch.uint8, device="dipu") for _ in range(5)]
del small
print(torch.empty(60 << 20, dtype=torch.uint8, device="dipu").numel())
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    assert text == str(60 << 20)


def test_out_of_memory_in_the_middle_of_a_kernel_leaves_the_device_usable() -> None:
    text = output_of(
        """
import torch, torch_dipu
a = torch.ones(2000, 2000, device="dipu")
try:
    torch.cat([a, a, a, a])
except torch.OutOfMemoryError as error:
    print("caught", a.sum().item())
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    assert text == "caught 4000000.0"


def test_a_memory_fraction_limits_the_process() -> None:
    text = output_of(
        """
import torch, torch_dipu
torch.dipu.set_per_process_memory_fraction(0.5)
try:
    torch.empty(40 << 20, dtype=torch.uint8, device="dipu")
except torch.OutOfMemoryError:
    print("refused", torch.empty(30 << 20, dtype=torch.uint8, device="dipu").numel() >> 20)
""",
        DIPU_DEVICE_MEMORY="64MiB",
    )
    assert text == "refused 30"


def test_a_host_read_of_device_memory_is_stopped_and_named() -> None:
    done = run_python(
        """
import ctypes, torch, torch_dipu
tensor = torch.ones(4, device="dipu")
ctypes.string_at(tensor.data_ptr(), 4)
"""
    )
    assert done.returncode == -signal.SIGSEGV
    assert "dipu:0" in done.stderr


def test_numpy_is_refused_as_on_cuda() -> None:
    message = (
        r"can't convert dipu:0 device type tensor to numpy\. "
        r"Use Tensor\.cpu\(\) to copy the tensor to host memory first\."
    )
    with pytest.raises(TypeError, match=message):
        torch.ones(2, device="dipu").numpy()


def test_the_array_protocol_is_refused_too() -> None:
    import numpy as np

    with pytest.raises(TypeError, match="can't convert dipu:0 device type tensor to numpy"):
        np.asarray(torch.ones(2, device="dipu"))


MIXES = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "in place": lambda a, b: a.mul_(b),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize(
    ("first", "second"), [("dipu:0", "cpu"), ("cpu", "dipu:0"), ("dipu:0", "dipu:1")]
)
def test_mixing_devices_is_refused(name: str, first: str, second: str) -> None:
    a, b = torch.ones(2, 2, device=first), torch.ones(2, 2, device=second)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        MIXES[name](a, b)


def test_the_message_names_both_devices() -> None:
    with pytest.raises(RuntimeError, match=r"dipu:0.*cpu|cpu.*dipu:0"):
        torch.ones(2, device="dipu") + torch.ones(2)


def test_a_zero_dim_host_tensor_may_be_mixed() -> None:
    result = torch.ones(2, device="dipu") + torch.tensor(2.0)
    assert result.device.type == "dipu"
    assert result.tolist() == [3.0, 3.0]


def test_a_fault_still_reaches_pythons_fault_handler() -> None:
    done = run_python(
        """
import ctypes, faulthandler, torch, torch_dipu
faulthandler.enable()
ctypes.string_at(torch.ones(4, device="dipu:1").data_ptr(), 4)
"""
    )
    assert done.returncode == -signal.SIGSEGV
    assert "dipu:1" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_host_fault_elsewhere_is_not_blamed_on_the_device() -> None:
    done = run_python(
        """
import ctypes, torch, torch_dipu
torch.ones(1, device="dipu")
ctypes.string_at(16, 4)
"""
    )
    assert done.returncode == -signal.SIGSEGV
    assert "dipu:" not in done.stderr


def test_a_host_view_lies_in_the_window_of_the_device() -> None:
    x = torch.ones(1000, device="dipu")[7:]
    window, seen = torch.dipu.host_window(), torch.dipu.host_view(x)
    assert window is not None and seen is not None
    device, host, size = window
    assert device <= x.data_ptr() < device + size
    assert seen.data_ptr() == host + x.data_ptr() - device


def test_a_host_view_is_the_memory_itself_once_it_is_written() -> None:
    x = torch.ones(1000, device="dipu")
    with torch.dipu.quirk("latency", "mul", ms=20.0):
        y = x * 3
        seen = torch.dipu.host_view(y)
    assert seen is not None and seen.device.type == "cpu" and seen.unique().tolist() == [3.0]
    y.add_(1)
    torch.dipu.synchronize()
    assert seen[0].item() == 4.0  # no copy
