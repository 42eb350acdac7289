"""Cost of dlinfer's ops on a CUDA device, and of a model of 8 billion weights with them.

    python benchmarks/bench_dlinfer_cuda.py [--ops] [--model]

Each op against plain torch at the shapes of that model, in bfloat16: both are recorded as a CUDA
graph of several calls, so that only the device's time counts, and replayed alternately. The model
is a Llama with random weights; `generate_batch` of transformers, stock, with `dlinfer.apply`, and
with CUDA graphs for decoding.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import dlinfer
from dlinfer import fused
from dlinfer.layout import Layout

CALLS, TURNS = 10, 5
HIDDEN, INNER, HEADS, SHARED, SIZE, BLOCK = 4096, 14336, 32, 8, 128, 16
EXPERTS, CHOSEN = 8, 2
REQUESTS, PROMPT, NEW = 32, 128, 64
KIND, DEVICE = torch.bfloat16, "cuda"
AIM_DECODE, AIM_MODEL = 3.2, 2.5  # TB/s; times stock
Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One op at one shape, with the bytes that it moves or the operations that it computes."""

    name: str
    plain: Call | None
    op: Call
    moved: float = 0.0  # bytes
    computed: float = 0.0  # operations


def draw(*shape: int) -> Tensor:
    """Create normal numbers on the device."""
    return torch.randn(shape, device=DEVICE, dtype=KIND)


def recorded(call: Call) -> Callable[[], float]:
    """Return a function that replays a graph of some calls; returns the microseconds of one."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def replay() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / CALLS

    replay()
    return replay


def measure(row: Row) -> tuple[float, float]:
    """Return microseconds of plain torch and of the op:
    the least of some turns; 0 where missing.
    """
    calls = [recorded(call) if call else None for call in (row.plain, row.op)]
    turns = [[call() if call else 0.0 for call in calls] for _ in range(TURNS)]
    return min(t[0] for t in turns), min(t[1] for t in turns)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As transformers' LlamaRMSNorm."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum, and its norm."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def silu(both: Tensor) -> Tensor:
    """Return the activated gate of a merged product, times the gated half."""
    return F.silu(both[..., :INNER]) * both[..., INNER:]


def gate(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As transformers' MixtralTopKRouter."""
    weights, experts = logits.float().softmax(-1).topk(CHOSEN)
    return weights / weights.sum(-1, keepdim=True), experts


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As transformers' apply_rotary_pos_emb."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def half(x: Tensor) -> Tensor:
        middle = x.shape[-1] // 2
        return torch.cat((-x[..., middle:], x[..., :middle]), -1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def tokens() -> Iterator[Row]:
    """Yield the token-wise ops."""
    weight = draw(HIDDEN)
    for count in (8, 1024):
        x, residual, both = draw(count, HIDDEN), draw(count, HIDDEN), draw(count, 2 * INNER)
        given = (x, residual, weight, 1e-6)
        yield Row(
            f"add_rms_norm {count}",
            partial(add_rms_norm, *given),
            partial(fused.add_rms_norm, *given),
            4 * x.nbytes,
        )
        yield Row(
            f"silu_and_mul {count}",
            partial(silu, both),
            partial(fused.silu_and_mul, both),
            1.5 * both.nbytes,
        )
        turned = (draw(count, HEADS, SIZE), draw(count, SHARED, SIZE))
        angles = (draw(count, SIZE), draw(count, SIZE))
        yield Row(
            f"rotary {count}",
            partial(rotary, *turned, *angles),
            partial(fused.rotary, *turned, *angles),
            2 * sum(t.nbytes for t in turned) + 2 * angles[0].nbytes,
        )


def caches(blocks: int, order: str, kind: torch.dtype = KIND) -> tuple[Tensor, Tensor]:
    """Create random keys and values."""
    made = [
        dlinfer.new_cache(
            blocks, BLOCK, SHARED, SIZE, dtype=kind, device=DEVICE, layout=Layout(order)
        )
        for _ in range(2)
    ]
    for cache in made:
        cache.copy_(9 * draw(*cache.shape))
    return made[0], made[1]


def gathered(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, longest: int
) -> Tensor:
    """Gather the cached keys and values, rows of one length, and call torch's attention."""
    keys, values = (c[table].flatten(1, 2).transpose(1, 2) for c in (k_cache, v_cache))
    done: Tensor = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True)
    return done.squeeze(2)


def attention() -> Iterator[Row]:
    """Yield attention over caches in blocks, and packed sequences."""
    shapes = ((1, 8192, "NHBD"), (8, 2048, "NHBD"), (32, 2048, "NHBD"), (32, 2048, "NBHD"))
    for rows, length, order in (*shapes, (64, 2048, "NHBD"), (128, 2048, "NHBD")):
        held = caches(rows * length // BLOCK, order)
        table = torch.randperm(rows * length // BLOCK, device=DEVICE).int().view(rows, -1)
        lengths = torch.full((rows,), length, device=DEVICE, dtype=torch.int32)
        given = (draw(rows, HEADS, SIZE), *held, table, lengths, length)
        yield Row(
            f"paged_decode {rows} x {length} {order}",
            partial(gathered, *given) if rows <= 32 else None,
            partial(fused.paged_decode_attention, *given, SIZE**-0.5),
            2 * held[0].nbytes,
        )
    scales = [torch.full((SHARED, SIZE), 0.02, device=DEVICE) for _ in range(2)]
    small = caches(32 * 2048 // BLOCK, "NHBD", torch.int8)
    yield Row(
        "paged_decode 32 x 2048 int8",
        None,
        partial(
            fused.paged_decode_attention,
            draw(32, HEADS, SIZE),
            *small,
            torch.randperm(32 * 2048 // BLOCK, device=DEVICE).int().view(32, -1),
            torch.full((32,), 2048, device=DEVICE, dtype=torch.int32),
            2048,
            SIZE**-0.5,
            k_scales=scales[0],
            v_scales=scales[1],
        ),
        2 * small[0].nbytes,
    )
    yield from prefills()


def prefills() -> Iterator[Row]:
    """Yield four packed prompts, and their last part over a cache."""
    count, length, new = 4, 2048, 512
    q, k, v = (draw(count * length, heads, SIZE) for heads in (HEADS, SHARED, SHARED))
    bounds = torch.arange(0, count * length + 1, length, device=DEVICE, dtype=torch.int32)

    def plain() -> Tensor:
        a, b, c = (t.unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=True)

    operations = 2 * 2 * count * length * length / 2 * HEADS * SIZE
    yield Row(
        f"prefill {count} x {length}",
        plain,
        partial(fused.prefill_attention, q, k, v, bounds, bounds, length, length, SIZE**-0.5),
        computed=operations,
    )
    held = caches(count * length // BLOCK, "NHBD")
    table = torch.randperm(count * length // BLOCK, device=DEVICE).int().view(count, -1)
    lengths = torch.full((count,), length, device=DEVICE, dtype=torch.int32)
    few = torch.arange(0, count * new + 1, new, device=DEVICE, dtype=torch.int32)
    yield Row(
        f"paged_prefill {count} x {new} of {length}",
        None,
        partial(
            fused.paged_prefill_attention,
            draw(count * new, HEADS, SIZE),
            *held,
            table,
            few,
            lengths,
            new,
            length,
            SIZE**-0.5,
        ),
        computed=2 * 2 * count * new * (length - new / 2) * HEADS * SIZE,
    )


def products() -> Iterator[Row]:
    """Yield mixtures of experts, and quantised products."""
    gate_up, down = draw(EXPERTS, 2 * INNER, HIDDEN), draw(EXPERTS, HIDDEN, INNER)
    for count in (8, 512):
        x, logits = draw(count, HIDDEN), draw(count, EXPERTS)
        weights, experts = fused.moe_gating(logits, CHOSEN, True)
        used = len(experts.unique())
        yield Row(
            f"moe_gating {count}",
            partial(gate, logits),
            partial(fused.moe_gating, logits, CHOSEN, True),
        )
        yield Row(
            f"fused_moe {count}",
            None,
            partial(fused.fused_moe, x, gate_up, down, weights, experts),
            used * (gate_up.nbytes + down.nbytes) / EXPERTS,
            2 * 3 * count * CHOSEN * HIDDEN * INNER,
        )
    for count in (8, 1024):
        x, weight = draw(count, HIDDEN), draw(INNER, HIDDEN)
        small = torch.randint(-127, 127, (INNER, HIDDEN), device=DEVICE, dtype=torch.int8)
        scale = torch.rand(INNER, 1, device=DEVICE)
        numbers, rows_scale = fused.dynamic_quant(x)
        plain = partial(F.linear, x, weight)
        yield Row(
            f"weight_quant_matmul {count}",
            plain,
            partial(fused.weight_quant_matmul, x, small, scale.to(KIND)),
            small.nbytes,
            2 * count * HIDDEN * INNER,
        )
        yield Row(
            f"linear_w8a8 {count}",
            plain,
            partial(fused.linear_w8a8, numbers, small, rows_scale, scale, KIND),
            small.nbytes,
            2 * count * HIDDEN * INNER,
        )


def ops(table: Table) -> None:
    """Add the ops' rows."""
    x = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
    copied = measure(Row("", None, partial(torch.empty_like(x).copy_, x)))[1]
    table.add_row(
        "copy, 256 MiB", "", f"{copied:.1f}", "", f"{2 * x.nbytes / copied / 1e6:.2f}", ""
    )
    with torch.inference_mode():
        for row in (*tokens(), *attention(), *products()):
            plain, op = measure(row)
            table.add_row(
                row.name,
                f"{plain:.1f}" if plain else "",
                f"{op:.1f}",
                f"{plain / op:.2f}" if plain else "",
                f"{row.moved / op / 1e6:.2f}" if row.moved else "",
                f"{row.computed / op / 1e6:.0f}" if row.computed else "",
            )
            torch.cuda.empty_cache()


def llama(transformers: Any) -> Any:
    """Create a model of 8 billion random weights."""
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=32,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        max_position_embeddings=8192,
        dtype=KIND,
        eos_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(KIND)
    try:
        with torch.device(DEVICE):
            made = transformers.LlamaForCausalLM._from_config(config, dtype=KIND)
    finally:
        torch.set_default_dtype(before)
    return made.eval()


def model(table: Table) -> None:
    """Add the rows of `generate_batch`: tokens per second."""
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    whole = llama(transformers)
    prompts = torch.randint(3, 128000, (REQUESTS, PROMPT)).tolist()
    how = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )

    def rate(**options: Any) -> float:
        config = transformers.ContinuousBatchingConfig(
            page_size=32, num_blocks=1024, max_batch_tokens=4096, **options
        )
        best = 0.0
        for _ in range(2):
            start = time.perf_counter()
            done = whole.generate_batch(prompts, how, config, persistent_manager=True)
            spent = time.perf_counter() - start
            made = sum(len(row.generated_tokens) for row in done.values())
            best = max(best, made / spent)
        whole.destroy_cached_continuous_batching_manager()
        gc.collect()
        torch.cuda.empty_cache()
        return best

    stock = rate()
    table.add_row("generate_batch, stock: tokens/s", f"{stock:.0f}", "", "", "", "")
    applied = dlinfer.apply(whole)
    off = f"logits off by {applied.difference:.1e} of the largest"
    table.add_row(f"dlinfer.apply's check: {off}", "", "", "", "", "")
    for name, graphs in (("dlinfer", False), ("dlinfer, CUDA graphs", (False, True))):
        found = rate(use_cuda_graph=graphs)
        table.add_row(f"generate_batch, {name}", "", f"{found:.0f}", f"{found / stock:.2f}", "", "")
    applied.undo()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", action="store_true", help="only the ops")
    parser.add_argument("--model", action="store_true", help="only the model")
    chosen = parser.parse_args()
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16")
    columns = ("op", "plain us", "dlinfer us", f"ratio (model: aim {AIM_MODEL:g})")
    for column in (*columns, f"TB/s (decode: aim {AIM_DECODE:g})", "TFLOP/s"):
        table.add_column(column, justify="left" if column == "op" else "right")
    if chosen.ops or not chosen.model:
        ops(table)
    if chosen.model or not chosen.ops:
        model(table)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
