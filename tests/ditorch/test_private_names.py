"""Names of torch._C that a torch built for CUDA has, and kernels that can be named, not run."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


def test_a_stream_is_set_by_its_numbers(active: ModuleType) -> None:
    before, other = torch.cuda.current_stream(), torch.cuda.Stream()
    for stream in (other, before):
        torch._C._cuda_setStream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        assert torch.cuda.current_stream().stream_id == stream.stream_id


def test_a_device_is_set_by_its_number(active: ModuleType) -> None:
    torch._C._cuda_setDevice(0)
    assert torch.cuda.current_device() == 0


def test_undo_takes_them_back(active: ModuleType) -> None:
    ours = torch._C._cuda_setStream
    active.undo()
    assert getattr(torch._C, "_cuda_setStream", None) is not ours


def test_a_cuda_kernel_may_be_named_but_not_run(active: ModuleType) -> None:
    code = "template <typename T> T twice(T x) { return x + x; }"
    kernel = torch.cuda.jiterator._create_jit_fn(code)
    with pytest.raises(active.Unsupported, match="jiterator has no equivalent here"):
        kernel(torch.ones(1, device="cuda"))


def test_the_available_device_is_cuda_to_a_program_only(active: ModuleType) -> None:
    assert torch._utils._get_available_device_type() == "cuda"
    assert torch._utils._get_device_attr(lambda module: module.__name__) == "torch_dipu.dipu"
