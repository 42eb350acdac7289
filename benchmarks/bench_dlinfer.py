"""Cost of dlinfer's ops on the CPU against plain torch, at the shapes of decoding.

Plain torch is what a framework does without fused kernels: transformers' formulas, and attention by
gathering the cached keys and values for torch's own scaled_dot_product_attention. One thread, the
thread's CPU time, each pair alternating: the ratio of medians, and the geometric mean of the
ratios. Then the cost of torch's dispatch over a direct call of the kernel and, where transformers
is installed, its `generate` and `generate_batch` of a small model with and without `dlinfer.apply`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import math
import statistics
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
from deeplink import native
from deeplink.testing import workers
from dlinfer import fused

TURNS, NEW = 15, 32
HIDDEN, INNER, HEADS, SHARED, SIZE, BLOCK = 2048, 5632, 16, 4, 128, 16
AIM, AIM_DISPATCH = 3.0, 1.0
Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One op at one shape."""

    name: str
    plain: Call
    op: Call
    decode: bool = True  # counts in the mean


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


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As transformers' apply_rotary_pos_emb."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def half(x: Tensor) -> Tensor:
        middle = x.shape[-1] // 2
        return torch.cat((-x[..., middle:], x[..., :middle]), -1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, scale: float) -> Tensor:
    """Gather the cached keys and values, rows of one length, and call torch's attention."""
    keys, values = (c[table].flatten(1, 2).transpose(1, 2) for c in (k_cache, v_cache))
    done: Tensor = F.scaled_dot_product_attention(
        q.unsqueeze(2), keys, values, scale=scale, enable_gqa=True
    )
    return done.squeeze(2)


def prefill(q: Tensor, k: Tensor, v: Tensor, length: int, scale: float) -> Tensor:
    """Run sequences of one length as a batch of torch's attention."""
    q, k, v = (t.unflatten(0, (-1, length)).transpose(1, 2) for t in (q, k, v))
    done: Tensor = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=True
    )
    return done.transpose(1, 2).flatten(0, 1)


def rows(dtype: torch.dtype) -> Iterator[Row]:
    """Return the measured rows."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    weight = draw(HIDDEN)
    for tokens in (1, 8, 32):
        x, residual = draw(tokens, HIDDEN), draw(tokens, HIDDEN)
        normed = (x, weight, 1e-6)
        yield Row(
            f"rms_norm {tokens}", partial(rms_norm, *normed), partial(fused.rms_norm, *normed)
        )
        added = (x, residual, weight, 1e-6)
        yield Row(
            f"add_rms_norm {tokens}",
            partial(add_rms_norm, *added),
            partial(fused.add_rms_norm, *added),
        )
        both = draw(tokens, 2 * INNER)
        yield Row(f"silu_and_mul {tokens}", partial(silu, both), partial(fused.silu_and_mul, both))
        turned = (draw(tokens, HEADS, SIZE), draw(tokens, SHARED, SIZE))
        angles = (draw(tokens, SIZE), draw(tokens, SIZE))
        yield Row(
            f"rotary {tokens}",
            partial(rotary, *turned, *angles),
            partial(fused.rotary, *turned, *angles),
        )
        yield _filling(dtype, tokens)
    for tokens in (1, 4, 8):
        given = (draw(tokens, HIDDEN), draw(INNER, HIDDEN))
        yield Row(f"linear {tokens}", partial(F.linear, *given), partial(fused.linear, *given))
    for count, length in ((1, 2048), (8, 512), (32, 128)):
        yield _decoding(dtype, count, length)
    yield from _quantised(dtype)
    for count in (1, 8):
        yield from _delta(dtype, count)
    for count, length in ((1, 256), (8, 32)):
        q, k, v = (draw(count * length, heads, SIZE) for heads in (HEADS, SHARED, SHARED))
        bounds = torch.arange(0, count * length + 1, length, dtype=torch.int32)
        yield Row(
            f"prefill_attention {count} x {length}",
            partial(prefill, q, k, v, length, SIZE**-0.5),
            partial(fused.prefill_attention, q, k, v, bounds, bounds, length, length, SIZE**-0.5),
            decode=False,
        )


def _quantised(dtype: torch.dtype) -> Iterator[Row]:
    """Return products with weights of 4 bits and of float8, against dequantising them before."""
    group = 128
    for tokens in (1, 8):
        x, scale = torch.randn(tokens, HIDDEN).to(dtype), torch.rand(INNER, HIDDEN // group) / 64
        four = torch.randint(0, 255, (INNER, HIDDEN // 2), dtype=torch.uint8)
        eight = torch.randn(INNER, HIDDEN).to(torch.float8_e4m3fn)
        for name, weight in (("4 bits", four), ("float8", eight)):

            def plain(x: Tensor = x, weight: Tensor = weight, scale: Tensor = scale) -> Tensor:
                numbers = weight
                if weight.dtype == torch.uint8:
                    numbers = torch.stack((weight & 15, weight >> 4), -1).flatten(-2)
                groups = numbers.to(dtype).unflatten(-1, (-1, group)) * scale[..., None].to(dtype)
                return F.linear(x, groups.flatten(-2))

            given = (x, weight, scale.to(dtype), None, None, group)
            yield Row(
                f"weight_quant_matmul {tokens}, {name}",
                plain,
                partial(fused.weight_quant_matmul, *given),
                decode=False,  # plain torch dequantises all weights, which nobody does in a loop
            )


def _delta(dtype: torch.dtype, count: int) -> Iterator[Row]:
    """Return a step of the gated delta rule and of its convolution, as transformers writes them."""
    heads, size, channels, width = 8, 128, 4096, 4
    q, k, v = (torch.randn(count, heads, size).to(dtype) for _ in range(3))
    decay, beta = -torch.rand(count, heads), torch.rand(count, heads).to(dtype)
    state, slots = torch.zeros(count, heads, size, size), torch.arange(count)

    def rule() -> Tensor:
        queries, keys, values = (t.float() for t in (q, k, v))
        queries, keys = (
            t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (queries, keys)
        )
        now = state * decay.exp()[..., None, None]
        held = (now * keys[..., None]).sum(-2)
        error = (values - held) * beta.float()[..., None]
        now = now + keys[..., None] * error[..., None, :]
        state.copy_(now)
        out: Tensor = (now * (queries * size**-0.5)[..., None]).sum(-2)
        return out.to(dtype)

    given = (q, k, v, decay, beta, state, slots, size**-0.5)
    yield Row(f"gated_delta_decode {count}", rule, partial(fused.gated_delta_decode, *given))
    x, weight = torch.randn(count, channels).to(dtype), torch.randn(channels, width).to(dtype)
    last = torch.zeros(count, channels, width, dtype=dtype)

    def convolution() -> Tensor:
        context = torch.cat((last, x[..., None]), -1)
        last.copy_(context[..., -width:])
        out = F.conv1d(context, weight[:, None], None, groups=channels)
        return F.silu(out[..., -1])

    yield Row(
        f"causal_conv1d_decode {count}",
        convolution,
        partial(fused.causal_conv1d_decode, x, weight, None, last, slots),
    )


def _cache(dtype: torch.dtype, blocks: int) -> Tensor:
    cache = dlinfer.new_cache(blocks, BLOCK, SHARED, SIZE, dtype=dtype, device="cpu")
    return cache.copy_(torch.randn(cache.shape))


def _filling(dtype: torch.dtype, tokens: int) -> Row:
    caches = _cache(dtype, 64), _cache(dtype, 64)
    slots = torch.randperm(64 * BLOCK)[:tokens]
    k, v = (torch.randn(tokens, SHARED, SIZE).to(dtype) for _ in range(2))

    def plain() -> None:
        places = slots // BLOCK, slots % BLOCK
        caches[0][places] = k
        caches[1][places] = v

    return Row(f"fill_kv_cache {tokens}", plain, lambda: fused.fill_kv_cache(k, v, *caches, slots))


def _decoding(dtype: torch.dtype, count: int, length: int) -> Row:
    blocks = length // BLOCK
    caches = _cache(dtype, count * blocks), _cache(dtype, count * blocks)
    table = torch.randperm(count * blocks, dtype=torch.int32).view(count, blocks)
    lengths = torch.full((count,), length, dtype=torch.int32)
    q = torch.randn(count, HEADS, SIZE).to(dtype)
    return Row(
        f"paged_decode_attention {count} x {length}",
        lambda: decode(q, *caches, table, SIZE**-0.5),
        lambda: fused.paged_decode_attention(q, *caches, table, lengths, length, SIZE**-0.5),
    )


def measure(first: Call, second: Call) -> tuple[float, float]:
    """Return the medians of both in microseconds of CPU time, alternating."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    calls = [_calls(call) for call in (first, second)]
    for _ in range(TURNS):
        for call, count, found in zip((first, second), calls, times, strict=True):
            start = time.thread_time()
            for _ in range(count):
                call()
            found.append((time.thread_time() - start) / count * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def _calls(call: Call) -> int:
    """Return the number of calls that take about 2 ms."""
    start = time.thread_time()
    call()
    return max(1, min(500, int(2e-3 / max(time.thread_time() - start, 1e-6))))


def models() -> tuple[Any, Any]:
    """Create a Qwen2 of 31 million weights twice, stock and with dlinfer."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.Qwen2Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        eos_token_id=None,
    )
    stock, applied = (transformers.Qwen2ForCausalLM(config).eval() for _ in range(2))
    applied.load_state_dict(stock.state_dict())
    dlinfer.apply(applied)
    return stock, applied


def generating(pair: tuple[Any, Any], batch: int) -> tuple[float, float]:
    """Return milliseconds of CPU time for a token, stock and with dlinfer: medians."""
    ids = torch.randint(8192, (batch, 64))
    mask = torch.ones_like(ids)

    def run(model: Any) -> None:
        model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)

    return _turns(pair, run, NEW)


def batching(pair: tuple[Any, Any]) -> tuple[float, float]:
    """Return milliseconds of CPU time for a token of continuous batching, stock and with dlinfer.

    Sixteen requests, 64 tokens each as the prompt and 64 generated.
    """
    transformers: Any = importlib.import_module("transformers")
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # of psutil, each time
    prompts = torch.randint(8192, (16, 64)).tolist()
    wanted = transformers.GenerationConfig(max_new_tokens=64, do_sample=False, eos_token_id=-1)
    cache = {"page_size": 32, "num_blocks": 128, "max_batch_tokens": 512}
    found: list[list[list[int]]] = []

    def run(model: Any) -> None:
        how = transformers.ContinuousBatchingConfig(**cache)
        done = model.generate_batch(prompts, wanted, how)
        found.append([list(result.generated_tokens) for result in done.values()])

    times = _turns(pair, run, 64)
    assert all(tokens == found[0] for tokens in found), "the tokens are not the same"
    return times


def _turns(pair: tuple[Any, Any], run: Callable[[Any], None], tokens: int) -> tuple[float, float]:
    """Return medians of the process's CPU time, alternating: batching uses a separate thread."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(6):
        for model, found in zip(pair, times, strict=True):
            start = time.process_time()
            run(model)
            if turn:  # the first one warms up
                found.append((time.process_time() - start) / tokens * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print one table."""
    told = workers.spare_the_cpu()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table(
        caption=told or None, title="dlinfer's ops on the CPU, microseconds of one thread"
    )
    for column in ("op, tokens or rows", "type", "plain torch", "dlinfer", "ratio"):
        table.add_column(column, justify="left" if column[0] == "o" else "right")
    ratios = []
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for row in rows(dtype):
                plain, op = measure(row.plain, row.op)
                if row.decode:
                    ratios.append(plain / op)
                name = str(dtype).removeprefix("torch.")
                table.add_row(row.name, name, f"{plain:.1f}", f"{op:.1f}", f"{plain / op:.2f}")
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        table.add_section()
        table.add_row("geometric mean, decoding", f"aim {AIM:g}", "", "", f"{mean:.2f}")
        x, weight = torch.randn(1, 64), torch.randn(64)
        direct = native.load_extension("deeplink_vendors.cpu.fused").rms_norm
        plain, op = measure(
            lambda: direct(x, weight, 1e-6), lambda: fused.rms_norm(x, weight, 1e-6)
        )
        aim = f"aim {AIM_DISPATCH:g} us"
        table.add_row(
            "dispatch: kernel, op", aim, f"{plain:.2f}", f"{op:.2f}", f"+{op - plain:.2f}"
        )
    if importlib.util.find_spec("transformers"):
        table.add_section()
        pair = models()
        # transformers collects garbage at both ends of `generate_batch`: without the modules
        gc.freeze()
        rows_of = {f"generate, batch {n}": partial(generating, pair, n) for n in (1, 4, 8, 16)}
        rows_of["generate_batch, 16 requests"] = partial(batching, pair)
        for name, measured in rows_of.items():
            stock, applied = measured()
            ratio = f"{stock / applied:.2f}"
            times = f"{stock:.2f}", f"{applied:.2f}"
            table.add_row(f"{name}, ms a step", "float32", *times, ratio)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
