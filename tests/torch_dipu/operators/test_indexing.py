"""Reading and writing by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

READS: dict[str, Callable[[Tensor], Any]] = {
    "integer": lambda t: t[1],
    "negative": lambda t: t[-1, -2],
    "ellipsis": lambda t: t[..., 0],
    "none": lambda t: t[:, None, 1],
    "list": lambda t: t[[2, 0, 2]],
    "index tensor": lambda t: t[torch.tensor([1, 3], device=t.device)],
    "host index tensor": lambda t: t[torch.tensor([1, 3])],
    "two index tensors": lambda t: t[
        torch.tensor([0, 1], device=t.device), torch.tensor([2, 0], device=t.device)
    ],
    "boolean mask": lambda t: t[t > 4],
    "row mask": lambda t: t[torch.tensor([True, False, True, False], device=t.device)],
    "empty index": lambda t: t[torch.tensor([], dtype=torch.int64, device=t.device)],
    "gather": lambda t: t.gather(1, torch.tensor([[0], [2], [1], [0]], device=t.device)),
    "index_select": lambda t: t.index_select(1, torch.tensor([2, 0], device=t.device)),
    "take": lambda t: t.take(torch.tensor([0, 5, 11], device=t.device)),
    "take_along_dim": lambda t: t.take_along_dim(t.argsort(1, descending=True), 1),
    "masked_select": lambda t: t.masked_select(t % 2 == 0),
    "nonzero": lambda t: t.nonzero(),
    "nonzero tuple": lambda t: torch.stack(t.nonzero(as_tuple=True)),
    "where": lambda t: torch.where(t > 5, t, -t),
    "where with a number": lambda t: torch.where(t > 5, t, 0.0),
    "argwhere": lambda t: torch.argwhere(t > 9),
    "searchsorted": lambda t: torch.searchsorted(t.flatten(), t[1]),
    "bucketize": lambda t: torch.bucketize(t, t[:, 0].contiguous()),
    "embedding": lambda t: torch.nn.functional.embedding(
        torch.tensor([[1, 0], [3, 3]], device=t.device), t
    ),
    "roll and flip": lambda t: t.roll(1, 0).flip(1),
    "repeat_interleave": lambda t: t.repeat_interleave(
        torch.tensor([1, 0, 2, 1], device=t.device), 0
    ),
}


def _set(tensor: Tensor, index: Any, value: Any) -> None:
    tensor[index] = value


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "integer": lambda t: _set(t, 1, 7.0),
    "slice": lambda t: _set(t, (slice(None), slice(0, 2)), -1.0),
    "mask with a number": lambda t: _set(t, t > 4, 0.0),
    "mask with values": lambda t: _set(t, t > 9, torch.tensor([20.0, 21.0], device=t.device)),
    "index tensor": lambda t: _set(t, torch.tensor([0, 2], device=t.device), 5.0),
    "host index tensor": lambda t: _set(t, torch.tensor([0, 2]), 5.0),
    "host 0-dim value": lambda t: _set(t, (0, 0), torch.tensor(3.0)),
    "index_put accumulate": lambda t: t.index_put_(
        (torch.tensor([1, 1], device=t.device),), torch.tensor(1.0, device=t.device), True
    ),
    "index_add": lambda t: t.index_add_(0, torch.tensor([0, 0], device=t.device), t[2:].clone()),
    "index_copy": lambda t: t.index_copy_(0, torch.tensor([3], device=t.device), t[:1].clone()),
    "index_fill": lambda t: t.index_fill_(1, torch.tensor([1], device=t.device), 9.0),
    "scatter": lambda t: t.scatter_(1, torch.tensor([[2], [0]], device=t.device), 8.0),
    "scatter_add": lambda t: t.scatter_add_(
        1, torch.tensor([[2, 2], [0, 0]], device=t.device), torch.ones(2, 2, device=t.device)
    ),
    "scatter_reduce": lambda t: t.scatter_reduce_(
        0, torch.tensor([[0, 0, 0]], device=t.device), t[3:].clone(), "amax"
    ),
    "masked_fill": lambda t: t.masked_fill_(t < 3, -5.0),
    "masked_scatter": lambda t: t.masked_scatter_(t > 9, torch.tensor([1.0, 2.0], device=t.device)),
    "put": lambda t: t.put_(torch.tensor([4], device=t.device), torch.ones(1, device=t.device)),
    "fill_diagonal": lambda t: t.fill_diagonal_(4.0),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_gives_what_the_cpu_gives(name: str) -> None:
    source = torch.arange(12.0).view(4, 3)
    actual = READS[name](source.to("dipu"))
    assert actual.device.type == "dipu"
    assert torch.equal(actual.cpu(), READS[name](source))


@pytest.mark.parametrize("name", WRITES)
def test_a_write_leaves_what_the_cpu_leaves(name: str) -> None:
    host = torch.arange(12.0).view(4, 3)
    device = host.to("dipu")
    WRITES[name](host)
    WRITES[name](device)
    assert torch.equal(device.cpu(), host)


def test_an_index_past_the_end_is_refused() -> None:
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 2"):
        torch.zeros(2, device="dipu")[5]


def test_an_index_tensor_past_the_end_is_refused() -> None:
    tensor = torch.zeros(2, device="dipu")
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 2"):
        tensor[torch.tensor([7], device="dipu")]


def test_a_device_index_into_a_host_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.zeros(2)[torch.tensor([0], device="dipu")]


def test_gradients_flow_through_indexing() -> None:
    tensor = torch.zeros(3, device="dipu", requires_grad=True)
    tensor[torch.tensor([0, 0, 2], device="dipu")].sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [2.0, 0.0, 1.0]


def test_tensor_split_wants_its_indices_on_the_host_as_on_cuda() -> None:
    tensor = torch.arange(6.0, device="dipu")
    parts = tensor.tensor_split(torch.tensor([2, 4]))
    assert [part.tolist() for part in parts] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(RuntimeError, match="tensor_indices_or_sections to be on cpu"):
        tensor.tensor_split(torch.tensor([2, 4], device="dipu"))
