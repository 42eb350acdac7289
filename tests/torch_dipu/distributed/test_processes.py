"""Pinned memory, data loaders, forked and spawned processes, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch_dipu.interpreter import output_of


def test_pinned_memory_is_known_as_pinned() -> None:
    tensor = torch.ones(4)
    pinned = tensor.pin_memory()
    assert pinned.is_pinned()
    assert not tensor.is_pinned()
    assert pinned.device.type == "cpu"
    assert pinned.tolist() == [1.0] * 4


def test_pinned_memory_from_a_factory() -> None:
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.zeros(0, pin_memory=True).numel() == 0


def test_a_view_of_pinned_memory_is_pinned() -> None:
    assert torch.empty(8).pin_memory()[2:4].is_pinned()


def test_a_device_tensor_cannot_be_pinned() -> None:
    with pytest.raises(RuntimeError, match="cannot pin"):
        torch.ones(2, device="dipu").pin_memory()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", ["", "dipu"])
@pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory_device' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:pin_memory_device is deprecated:UserWarning")
def test_a_data_loader_pins_its_batches(workers: int, device: str) -> None:
    data = TensorDataset(torch.arange(8.0).view(8, 1))
    loader = DataLoader(
        data, batch_size=4, num_workers=workers, pin_memory=True, pin_memory_device=device
    )
    total = torch.zeros(1, device="dipu")
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to("dipu", non_blocking=True).sum()
    assert total.item() == 28.0


def test_a_forked_child_that_uses_the_device_gets_a_hint() -> None:
    text = output_of(
        """
import os, torch, torch_dipu
torch.ones(1, device="dipu")
child = os.fork()
if child == 0:
    try:
        torch.ones(1, device="dipu")
    except RuntimeError as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    assert text.startswith("Cannot re-initialize DIPU in forked subprocess")
    assert "'spawn'" in text


def test_a_fork_before_the_first_use_is_harmless() -> None:
    text = output_of(
        """
import os, torch, torch_dipu
child = os.fork()
if child == 0:
    os.write(1, str(torch.ones(2, device="dipu").sum().item()).encode())
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    assert text == "2.0"


def _fill(inbox: Any, outbox: Any) -> None:
    """Run in the other process: read the shared tensor, change it, notify the producer."""
    import torch_dipu  # noqa: F401

    tensor = inbox.get(timeout=300)
    outbox.put((str(tensor.device), tensor.tolist()))
    tensor.fill_(7)
    torch.dipu.synchronize()
    del tensor
    outbox.put("written")


def test_a_device_tensor_is_shared_between_processes() -> None:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=_fill, args=(inbox, outbox))
    other.start()
    before = torch.dipu.memory_allocated(1)
    tensor = torch.arange(4.0, device="dipu:1")
    inbox.put(tensor)
    try:
        assert outbox.get(timeout=300) == ("dipu:1", [0.0, 1.0, 2.0, 3.0])
        assert outbox.get(timeout=300) == "written"
        assert tensor.tolist() == [7.0] * 4
    finally:
        other.join(300)
    assert other.exitcode == 0
    inbox.close()
    inbox.join_thread()
    del tensor
    torch.dipu.ipc_collect()
    assert torch.dipu.memory_allocated(1) == before


def _together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return `work`'s results in each of `count` threads that start together."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        barrier.wait()
        results[index] = work(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_four_threads_compute_at_once() -> None:
    def work(index: int) -> float:
        value = torch.full((50, 50), 0.01 * (index + 1), device="dipu")
        for _ in range(50):
            value = (value @ value).clamp(max=1.0) + 0.01
        return value.sum().item()

    actual = _together(4, work)
    assert actual == [work(index) for index in range(4)]


def test_four_threads_run_backward_at_once() -> None:
    def work(index: int) -> list[float]:
        x = torch.ones(3, device=f"dipu:{index % 2}", requires_grad=True)
        for _ in range(20):
            (x * (index + 1)).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert _together(4, work) == [[20.0 * (index + 1)] * 3 for index in range(4)]


def test_the_current_device_belongs_to_the_thread() -> None:
    torch.dipu.set_device(1)
    assert _together(2, lambda _: torch.dipu.current_device()) == [0, 0]
    assert torch.dipu.current_device() == 1


def test_a_tensor_made_in_one_thread_is_freed_in_another() -> None:
    before = torch.dipu.memory_allocated()
    tensors: list[Tensor] = _together(4, lambda _: torch.ones(1000, device="dipu"))
    assert torch.dipu.memory_allocated() > before
    _together(1, lambda _: tensors.clear())
    assert torch.dipu.memory_allocated() == before


def test_threads_train_replicas_of_one_model() -> None:
    torch.manual_seed(2)
    reference = nn.Linear(4, 1).to("dipu")
    state = reference.state_dict()

    def work(index: int) -> list[float]:
        net = nn.Linear(4, 1).to("dipu")
        net.load_state_dict(state)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(2, 4, device="dipu")).square().sum().backward()
            optimizer.step()
        return net.weight.flatten().tolist()

    results = _together(4, work)
    assert all(result == results[0] for result in results)
