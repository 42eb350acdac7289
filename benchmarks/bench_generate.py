"""Tokens per second of transformers' `generate`, stock and after `dlinfer.apply`, in one process.

    python -m benchmarks.bench_generate                                  # the CPU, a small model
    python -m benchmarks.bench_generate --device cuda --shape 8b --dtype bfloat16 --rows 1 16 64

Both alternate, on the same random weights; the ratio is that of medians. `limit` is the share of
the tokens per second that reading all weights once for each step allows at the bandwidth of a copy
in the same process.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import dlinfer

SHAPES: dict[str, dict[str, int]] = {
    "31m": {
        "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
    },
    "8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip
TURNS = 5


def pair(shape: str, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Return a stock Llama, and one with dlinfer's ops and the same weights."""
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES[shape], eos_token_id=None, pad_token_id=0)
    stock = transformers.LlamaForCausalLM._from_config(config, dtype=dtype).to(device).eval()
    model = copy.deepcopy(stock)
    dlinfer.apply(model)
    return stock, model


def bandwidth(device: str) -> float:
    """Return the bytes per second that a copy reads."""
    source = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(TURNS):
        _wait(device)
        start = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - start)
    return source.numel() / min(times)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def seconds(model: Any, ids: torch.Tensor, new: int) -> float:
    """Return the time of one `generate`."""
    _wait(ids.device.type)
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=new, do_sample=False)
    _wait(ids.device.type)
    return time.perf_counter() - start


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="31m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=64)
    given = parser.parse_args()
    both = pair(given.shape, getattr(torch, given.dtype), given.device)
    held = sum(p.numel() * p.element_size() for p in both[0].parameters())
    steps = bandwidth(given.device) / held
    table = Table(title=f"generate, {given.shape} {given.dtype} on {given.device}: tokens/s")
    for column in ("rows", "stock", "dlinfer", "ratio", "limit"):
        table.add_column(column, justify="right")
    for rows in given.rows:
        ids = torch.randint(3, 4000, (rows, given.prompt), device=given.device)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS + 1):
            for model, found in zip(both, times, strict=True):
                took = seconds(model, ids, given.new)
                if turn:  # the first compiles, records and allocates
                    found.append(took)
        stock, ours = (rows * given.new / statistics.median(found) for found in times)
        share = ours / (steps * rows)
        cells = (f"{rows}", f"{stock:.1f}", f"{ours:.1f}", f"{ours / stock:.2f}", f"{share:.2f}")
        table.add_row(*cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
