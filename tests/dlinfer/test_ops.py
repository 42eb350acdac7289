"""The ops as torch ops: the checks of opcheck, and what they write under torch.compile."""

from typing import Any

import pytest
import torch

import dlinfer
from dlinfer import fused
from dlinfer.conformance import cases


@pytest.mark.parametrize("name", dlinfer.OPS)
def test_opcheck_is_clean(name: str) -> None:
    case = next(cases(name, torch.float32))
    torch.library.opcheck(dlinfer.OPS[name].overload, (), case.arguments)


# torch's own, when inductor is imported
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "onnxrtgraph"])
def test_what_is_written_to_the_cache_is_kept_when_compiled(backend: str) -> None:
    def step(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        fused.fill_kv_cache(k, v, k_cache, v_cache, slots)

    k, v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    caches = [torch.zeros(2, 4, 2, 8) for _ in range(2)]
    compiled = [torch.zeros(2, 4, 2, 8) for _ in range(2)]
    slots = torch.tensor([5, -1, 0])
    step(k, v, *caches, slots)
    torch.compile(step, backend=backend, fullgraph=True)(k, v, *compiled, slots)
    assert torch.equal(compiled[0], caches[0]) and torch.equal(compiled[1], caches[1])
    assert caches[0].any()


def test_one_graph_serves_changing_batches_and_lengths() -> None:
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def step(q: Any, cache: Any, table: Any, lengths: Any, longest: int) -> Any:
        return fused.paged_decode_attention(q, cache, cache, table, lengths, longest, 0.3)

    cache = torch.randn(16, 4, 2, 8)
    for rows, longest in ((5, 9), (6, 11), (7, 12)):
        lengths = torch.full((rows,), longest)
        found = step(torch.randn(rows, 4, 8), cache, torch.zeros(rows, 3).int(), lengths, longest)
        assert found.shape == (rows, 4, 8)
    assert counter.frame_count == 1


def test_a_product_is_summed_over_a_process_group(tmp_path: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        group = torch.distributed.group.WORLD
        assert group is not None
        x, weight = torch.randn(2, 4), torch.randn(3, 4)
        found = fused.linear(x, weight, None, group.group_name)
        torch.testing.assert_close(found, x @ weight.t())
    finally:
        torch.distributed.destroy_process_group()
