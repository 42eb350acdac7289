"""DITORCH_FLOAT32_REDUCE: one rounding for the sum of many ranks' short floats."""

from __future__ import annotations

import functools
import math
import tempfile
from typing import Any

import pytest
import torch.multiprocessing as mp

from tests.ditorch import ranks_reductions

# on every rank, with the setting: 256 + 1 + 1 = 258, which bfloat16 has; 257 is rounded to 256
SUM = {2: 256.0, 3: 258.0}
ON_ALL = ("all_reduce", "wait", "future", "polled")
SCATTERED = ("reduce_scatter_tensor", "reduce_scatter")


@functools.cache
def _run(world: int, vendor: str) -> list[list[dict[str, Any]]]:
    """The results of each rank: without the setting, with it, without it again."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    arguments = (world, vendor, f"{tempfile.mkdtemp()}/rendezvous", queue)
    processes = [
        context.Process(target=ranks_reductions.main, args=(rank, *arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(300)
    return [results[rank] for rank in range(world)]


@pytest.mark.parametrize(("world", "vendor"), [(2, "cpu"), (3, "cpu"), (3, "reference")])
def test_short_floats_are_added_up_in_float32(world: int, vendor: str) -> None:
    total = [SUM[world]] * world
    for rank, (_, on, _) in enumerate(_run(world, vendor)):
        own = [256.0 if place == rank else 1.0 for place in range(world)]
        assert {name: on[name] for name in ON_ALL} == dict.fromkeys(ON_ALL, total)
        assert {name: on[name] for name in SCATTERED} == dict.fromkeys(SCATTERED, total[:1])
        assert on["average"] == [60000.0]
        assert on["max"] == [256.0] * world
        assert on["integers"] == [255 + world] * world
        assert on["a group of one"] == own
        # the ranks that send keep their own
        assert on["reduce"] == (total if rank == world - 1 else own)
        assert on["reduce in a group"] == (total if rank == 0 else own)


def test_without_it_the_back_end_rounds_as_it_does() -> None:
    for off, _, again in _run(3, "cpu"):  # gloo adds up bfloat16 in bfloat16
        assert off["all_reduce"] == again["all_reduce"]
        assert 256.0 in off["all_reduce"]
        assert math.isinf(off["average"][0])
        assert off["integers"] == again["integers"] == [258] * 3
