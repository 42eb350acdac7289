"""Common set-up of the device's tests: a registered device, fixed seeds, a check for leaks."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Iterator

import pytest
import torch

import torch_dipu  # noqa: F401

# some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 bmm
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def clean_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seeds before each test; after it, device 0 is current and its memory is given back."""
    torch.manual_seed(0)
    torch.dipu.set_device(0)
    before = _allocated()
    yield
    torch.dipu.set_device(0)
    if request.node.stash.get(FAILED, False) or _fits(before):
        return  # a failed test's tensors live on in its traceback
    gc.collect()  # cycles are not leaks
    deadline = time.monotonic() + 60  # autograd's threads let go a moment after backward returns
    while not _fits(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _fits(before), f"the test left device memory: {before} bytes became {_allocated()}"


def _fits(before: list[int]) -> bool:
    return all(now <= then for now, then in zip(_allocated(), before, strict=True))


def _allocated() -> list[int]:
    return [torch.dipu.memory_allocated(index) for index in range(2)]
