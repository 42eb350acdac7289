"""The program of each rank in the tests of reductions,
with the expected result in the widest type.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = "float32 float64 float16 bfloat16 int64 int32 int16 uint8 complex64".split()
Job = Callable[[int, torch.device], Any]


def _mean(values: Tensor) -> Tensor:
    total = values.sum(0)
    exact = values.is_floating_point() or values.is_complex()
    return total / len(values) if exact else total.div(len(values), rounding_mode="trunc")


def _fold(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda values: functools.reduce(operation, values)


# what each reduction means: over the first dimension, in the widest type of its kind
MEANING: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda values: values.sum(0),
    "AVG": _mean,
    "MAX": lambda values: values.amax(0),
    "MIN": lambda values: values.amin(0),
    "PRODUCT": lambda values: values.prod(0),
    "BAND": _fold(torch.bitwise_and),
    "BOR": _fold(torch.bitwise_or),
    "BXOR": _fold(torch.bitwise_xor),
}


def _scattered(x: Tensor, op: Any, size: int, group: Any) -> Tensor:
    out = torch.empty_like(x[0])
    dist.reduce_scatter(out, [row.clone() for row in x], op, group=group)
    return out


def _scattered_tensor(x: Tensor, op: Any, size: int, group: Any) -> Tensor:
    out = torch.empty_like(x[0])
    dist.reduce_scatter_tensor(out, x, op, group=group)
    return out


def _scattered_coalesced(x: Tensor, op: Any, size: int, group: Any) -> Tensor:
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    outs = [torch.empty_like(x[0]) for _ in range(2)]
    work = (group or dist.group.WORLD).reduce_scatter_tensor_coalesced(outs, [x, x], options)
    work.wait()
    torch.testing.assert_close(*outs)
    return outs[1]


def _all_reduced(x: Tensor, op: Any, size: int, group: Any) -> Tensor:
    dist.all_reduce(x, op, group=group)
    return x


def _all_reduced_coalesced(x: Tensor, op: Any, size: int, group: Any) -> Tensor:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    both = [x, x.clone()]
    (group or dist.group.WORLD).allreduce_coalesced(both, options).wait()
    torch.testing.assert_close(*both)  # they may be added in another order
    return x


WAYS = (_all_reduced, _all_reduced_coalesced, _scattered, _scattered_tensor, _scattered_coalesced)


def _values(dtype: torch.dtype, size: int) -> Tensor:
    """Return the ranks' inputs: one (size, 3) tensor each, equal in every process."""
    torch.manual_seed(1)
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.randn(size, size, 3, dtype=torch.complex128) * 3).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, (size, size, 3)).to(dtype)


def _reductions(name: str) -> Job:
    """Every reduction by every way; the result is the list of those that are wrong."""
    dtype = getattr(torch, name)
    return lambda rank, device: _wrong(dtype, rank, device, None)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def _operations(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["SUM", "AVG"]
    bits = ("BAND", "BOR", "BXOR")
    return [name for name in MEANING if not (dtype.is_floating_point and name in bits)]


def _wrong(dtype: torch.dtype, rank: int, device: torch.device, group: Any) -> list[Any]:
    size = dist.get_world_size(group)
    own = dist.get_rank(group)
    values = _values(dtype, size)
    found = []
    for name in _operations(dtype):
        whole = MEANING[name](values.to(_wide(dtype))).to(dtype)
        for way in WAYS:
            x = values[own].to(device)
            actual = way(x, getattr(dist.ReduceOp, name), size, group).cpu()
            expected = whole if actual.shape == whole.shape else whole[own]
            if not torch.allclose(actual, expected, **_tolerance(dtype)):
                found.append((name, way.__name__, actual.tolist(), expected.tolist()))
            if way in (_scattered_tensor, _scattered_coalesced) and not torch.equal(
                x.cpu(), values[own]
            ):
                found.append((name, way.__name__, "its input was written"))
    return found


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    if not (dtype.is_floating_point or dtype.is_complex):
        return {"rtol": 0, "atol": 0}
    # reduced in float32 and rounded once: the last bit at most
    eps = torch.finfo(dtype).eps
    return {"rtol": eps if dtype.itemsize == 2 else 4 * eps, "atol": 8 * eps**2 + 1e-6 * eps}


def _reduce_to(rank: int, device: torch.device) -> Any:
    """Every dst and reduction: it gets the result, the others keep what they had."""
    size = dist.get_world_size()
    values = _values(torch.float32, size)[:, 0]
    wrong = []
    for dst in range(size):
        for name in _operations(torch.float32):
            x = values[rank].to(device)
            dist.reduce(x, dst, getattr(dist.ReduceOp, name))
            whole = MEANING[name](values.double()).float()
            expected = whole if rank == dst else values[rank]
            if not torch.allclose(x.cpu(), expected):
                wrong.append((dst, name, x.tolist()))
    return wrong


def _sub_group(rank: int, device: torch.device) -> Any:
    """The last two ranks alone: AVG divides by two, and `dst` is a rank of the world."""
    last = dist.get_world_size() - 1
    group = dist.new_group([last - 1, last])
    if rank < last - 1:
        return []
    wrong = _wrong(torch.float32, rank, device, group)
    x = torch.tensor([float(rank)], device=device)
    dist.reduce(x, last, dist.ReduceOp.AVG, group=group)
    expected = [last - 0.5] if rank == last else [float(rank)]
    return wrong if x.tolist() == expected else [*wrong, ("reduce", x.tolist(), expected)]


def _large_half(rank: int, device: torch.device) -> Any:
    x = torch.full((2,), 40000.0, dtype=torch.float16, device=device)
    dist.all_reduce(x, dist.ReduceOp.AVG)  # the sum is beyond float16, the average is not
    return x.tolist()


def _scaled(rank: int, device: torch.device) -> Any:
    half = torch.full((2,), rank + 1.0, dtype=torch.bfloat16, device=device)
    dist.all_reduce(half, dist._make_nccl_premul_sum(0.5))
    x = torch.arange(4.0, device=device)
    out = torch.empty(2, device=device)
    factor = torch.tensor([3.0], device=device)
    dist.reduce_scatter_tensor(out, x, dist._make_nccl_premul_sum(factor))
    return half.tolist(), out.tolist(), x.tolist()


def _error(dtype: torch.dtype, operation: Any) -> Job:
    def job(rank: int, device: torch.device) -> Any:
        dist.all_reduce(torch.ones(2, device=device).to(dtype), operation())

    return job


def _average_later(how: Callable[[Any], Any]) -> Job:
    """The call returns before the other rank has joined; the division happens once."""

    def job(rank: int, device: torch.device) -> Any:
        store = dist.distributed_c10d._get_default_store()
        key = f"started {how.__name__}"
        x = torch.full((1000,), rank * 2.0 + 1.0, device=device)
        if rank == 1:
            store.wait([key])
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        early = work.is_completed() if rank == 0 else False
        if rank == 0:
            store.set(key, "yes")
        how(work)
        work.wait()
        return early, x.unique().tolist()

    return job


def _by_waiting(work: Any) -> None:
    threads = [threading.Thread(target=work.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_polling(work: Any) -> None:
    while not work.is_completed():
        pass
    assert work.result()[0].unique().tolist() == [2.0]  # without anyone having waited
    work.synchronize()


def _by_future(work: Any) -> None:
    future = work.get_future().then(lambda done: done.value()[0].unique().tolist())
    assert future.wait() == [2.0]


JOBS: dict[str, Job] = {
    **{f"reductions {name}": _reductions(name) for name in DTYPES},
    "reduce to each": _reduce_to,
    "sub-group": _sub_group,
    "average of large halves": _large_half,
    "premultiplied sum": _scaled,
    "average of bool": _error(torch.bool, lambda: dist.ReduceOp.AVG),
    "premultiplied int": _error(torch.int64, lambda: dist._make_nccl_premul_sum(2.0)),
    "average, waited for": _average_later(_by_waiting),
    "average, polled": _average_later(_by_polling),
    "average, by future": _average_later(_by_future),
}
