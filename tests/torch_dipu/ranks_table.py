"""Every collective with every dtype, blocking and async: each rank's result against its meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (
    "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 float8_e4m3fn"
).split()
REDUCED = [name for name in DTYPES if name not in ("complex64", "float8_e4m3fn")]
LARGE = 40_000  # elements: more than the chip takes at a time
Job = Callable[[int, torch.device], Any]
Pair = tuple[list[Tensor], list[Tensor]]  # what came, and what should


class Case:
    """The values of all ranks, and this rank's place among them."""

    def __init__(self, dtype: torch.dtype, device: torch.device, asynchronous: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.dtype, self.device, self.asynchronous = dtype, device, asynchronous

    def of(self, rank: int, length: int = 6) -> Tensor:
        """Return a rank's input: integers that every type represents, on the host."""
        values = torch.arange(length) * (rank + 2) % 3 + rank % 2
        return values.to(self.dtype)

    def mine(self, length: int = 6) -> Tensor:
        return self.of(self.rank, length).to(self.device)

    def empty(self, length: int = 6) -> Tensor:
        return torch.zeros(length, device=self.device).to(self.dtype)

    def do(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        work = call(*args, **kwargs, async_op=self.asynchronous)
        if self.asynchronous:
            work.wait()


def _broadcast(case: Case) -> Pair:
    x = case.mine()
    case.do(dist.broadcast, x, case.size - 1)
    return [x], [case.of(case.size - 1)]


def _all_gather(case: Case) -> Pair:
    parts = [case.empty() for _ in range(case.size)]
    case.do(dist.all_gather, parts, case.mine())
    return parts, [case.of(rank) for rank in range(case.size)]


def _all_gather_into_tensor(case: Case) -> Pair:
    out = case.empty(LARGE * case.size)
    case.do(dist.all_gather_into_tensor, out, case.mine(LARGE))
    return [out], [torch.cat([case.of(rank, LARGE) for rank in range(case.size)])]


def _gather(case: Case) -> Pair:
    parts = [case.empty() for _ in range(case.size)] if case.rank == 1 else None
    case.do(dist.gather, case.mine(), parts, 1)
    return parts or [], [case.of(rank) for rank in range(case.size)] if parts else []


def _scatter(case: Case) -> Pair:
    out = case.empty()
    parts = [case.of(to).to(case.device) for to in range(case.size)] if case.rank == 0 else None
    case.do(dist.scatter, out, parts, 0)
    return [out], [case.of(case.rank)]


def _all_to_all(case: Case) -> Pair:
    out = [case.empty(1 + case.rank) for _ in range(case.size)]
    case.do(dist.all_to_all, out, [case.mine(1 + to) for to in range(case.size)])
    return out, [case.of(rank, 1 + case.rank) for rank in range(case.size)]


def _all_to_all_single(case: Case) -> Pair:
    out = case.empty(2 * case.size)
    case.do(dist.all_to_all_single, out, case.mine(2 * case.size))
    own = slice(2 * case.rank, 2 * case.rank + 2)
    return [out], [torch.cat([case.of(rank, 2 * case.size)[own] for rank in range(case.size)])]


def _batch(case: Case) -> Pair:
    """Around the ring, everyone sends before anyone receives, and much of it."""
    out, after, before = case.empty(LARGE), case.rank + 1, case.rank - 1
    posts = [
        dist.P2POp(dist.isend, case.mine(LARGE), after % case.size),
        dist.P2POp(dist.irecv, out, before % case.size),
    ]
    for work in dist.batch_isend_irecv(posts):
        work.wait()
    return [out], [case.of(before % case.size, LARGE)]


MOVES: dict[str, Callable[[Case], Pair]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "batch_isend_irecv": _batch,
}


def _sum(case: Case, length: int = 6) -> Tensor:
    if case.dtype == torch.bool:
        return functools.reduce(torch.logical_or, (case.of(r, length) for r in range(case.size)))
    wide = sum(case.of(rank, length).double() for rank in range(case.size))
    assert isinstance(wide, Tensor)
    return wide.to(case.dtype)


def _all_reduce(case: Case) -> Pair:
    x = case.mine(LARGE)
    case.do(dist.all_reduce, x)
    return [x], [_sum(case, LARGE)]


def _reduce(case: Case) -> Pair:
    x = case.mine()
    case.do(dist.reduce, x, 1)
    return [x], [_sum(case) if case.rank == 1 else case.of(case.rank)]


def _reduce_scatter(case: Case) -> Pair:
    out = case.empty()
    case.do(dist.reduce_scatter, out, [case.mine() for _ in range(case.size)])
    return [out], [_sum(case)]


def _reduce_scatter_tensor(case: Case) -> Pair:
    out, length = case.empty(LARGE), LARGE * case.size
    case.do(dist.reduce_scatter_tensor, out, case.mine(length))
    return [out], [_sum(case, length)[case.rank * LARGE : (case.rank + 1) * LARGE]]


REDUCTIONS: dict[str, Callable[[Case], Pair]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
}


def _table(name: str) -> Job:
    """The collectives that are wrong with a dtype."""

    def job(rank: int, device: torch.device) -> Any:
        cases = {**MOVES, **(REDUCTIONS if name in REDUCED else {})}
        wrong = []
        for collective, run in cases.items():
            for asynchronous in (False, True):
                came, should = run(Case(getattr(torch, name), device, asynchronous))
                pairs = zip(came, should, strict=True)
                if not all(torch.equal(_bytes(a.cpu()), _bytes(b)) for a, b in pairs):
                    wrong.append((collective, asynchronous))
        return wrong

    return job


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _unbatched(rank: int, device: torch.device) -> Any:
    """Each sends much to the rank on the other side before it receives."""
    case, other = Case(torch.float32, device, True), rank ^ 1
    out = case.empty(LARGE)
    sent, received = dist.isend(case.mine(LARGE), other), dist.irecv(out, other)
    for work in (sent, received):
        assert work is not None
        work.wait()
    return [] if torch.equal(out.cpu(), case.of(other, LARGE)) else ["wrong"]


JOBS: dict[str, Job] = {
    "isend before irecv": _unbatched,
    **{f"table {name}": _table(name) for name in DTYPES},
}
