"""droplet's communicator, by its table: three processes, one result."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diopi.handles import CODES
from torch_dipu import runtime

SIZE = 3


@pytest.fixture(scope="module")
def table(site: Path) -> runtime._Table:
    library = ctypes.CDLL(str(site / "deeplink_droplet" / "libdroplet.so"))
    return runtime._Table.from_address(runtime.table_address(library))


def in_ranks(table: runtime._Table, body: Callable[[int, Callable[..., int]], bool]) -> None:
    """Runs `body(rank, do)` in as many processes; each has to say that it is content."""
    group = runtime._CGroupId()
    assert table.comm_id(group) == runtime.OK
    given = ctypes.cast(ctypes.pointer(group), ctypes.POINTER(runtime._CGivenId))
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            content = False
            try:
                content = _rank(table, given, rank, body)
            finally:
                os._exit(0 if content else 1)  # whatever happened: no test goes on in a child
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * SIZE


def _rank(
    table: runtime._Table,
    given: object,
    rank: int,
    body: Callable[[int, Callable[..., int]], bool],
) -> bool:
    communicator = ctypes.c_void_p()
    if table.comm_create(0, rank, SIZE, given, communicator) != runtime.OK:
        return False

    def do(name: str, source: array[float] | None, to: array[float] | None, **more: int) -> int:
        call = runtime._CCollective(
            communicator=communicator.value,
            src=source.buffer_info()[0] if source else None,
            dst=to.buffer_info()[0] if to else None,
            dtype=CODES[torch.float32],
            **more,
        )
        return int(getattr(table, f"comm_{name}")(call))

    content = body(rank, do)
    return content and table.comm_destroy(communicator) == runtime.OK


def test_reductions_and_gathers(table: runtime._Table) -> None:
    count = 300_000  # more than one piece at a time

    def body(rank: int, do: Callable[..., int]) -> bool:
        own = array("f", [rank + 1.0]) * count
        found, all_ = array("f", [0.0]) * count, array("f", [0.0]) * (count * SIZE)
        codes = [do("all_reduce", own, found, count=count, reduction=0)]
        good = found == array("f", [6.0]) * count
        codes += [do("all_reduce", own, found, count=count, reduction=3)]
        good &= found == array("f", [3.0]) * count
        codes += [do("all_gather", own, all_, count=count)]
        good &= [all_[r * count] for r in range(SIZE)] == [1, 2, 3]
        part = array("f", [0.0]) * count
        codes += [do("reduce_scatter", all_, part, count=count, reduction=0)]
        good &= part[0] == part[-1] == (rank + 1) * SIZE
        codes += [do("broadcast", own, found, count=count, peer=2)]
        return good and found[0] == 3.0 and codes == [runtime.OK] * 5

    in_ranks(table, body)


def test_from_one_to_one(table: runtime._Table) -> None:
    count = 100_000

    def body(rank: int, do: Callable[..., int]) -> bool:
        own, found = array("f", [float(rank)]) * count, array("f", [-1.0]) * count
        if rank == 0:
            return do("send", own, None, count=count, peer=1) == runtime.OK
        if rank == 1:
            return do("receive", None, found, count=count, peer=0) == 0 and found[-1] == 0.0
        return True

    in_ranks(table, body)
