"""LMDeploy on dlinfer's ops against stock transformers: CPU time for each token of a small Qwen2.

Runs in an environment with LMDeploy: `scripts/frameworks lmdeploy`, then
`.venv-lmdeploy/bin/python benchmarks/dlinfer_lmdeploy.py`. Both have one thread, equal prompts and
numbers of new tokens; the engine's own threads count. Medians of alternating rounds.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deeplink.console import console, table
from dlinfer.framework import lmdeploy as adaptor

PROMPT, ROUNDS = 64, 3
BATCHES = {1: 48, 16: 24}  # rows: new tokens
VOCABULARY = 8192
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.1,  # no two tokens are almost equally likely
}
Generate = Callable[[list[list[int]], int], list[list[int]]]


def saved(folder: Path) -> Any:
    """Save the model with a tokenizer of digits, which suffices for the prompts."""
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)).eval()
    model.save_pretrained(folder)
    words = {str(number): number for number in range(VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="2").save_pretrained(
        folder
    )
    return model


def stock(model: Any) -> Generate:
    """`generate` of transformers."""

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        tokens: list[list[int]] = found[:, PROMPT:].tolist()
        return tokens

    return generate


def engine(folder: Path, eager: bool) -> Generate:
    """`pipeline` of LMDeploy."""
    lmdeploy: Any = importlib.import_module("lmdeploy")
    config = lmdeploy.PytorchEngineConfig(
        device_type=adaptor.DEVICE_TYPE,
        eager_mode=eager,
        session_len=512,
        max_batch_size=16,
        num_gpu_blocks=256,
        enable_metrics=False,
    )
    pipe = lmdeploy.pipeline(str(folder), backend_config=config, log_level="ERROR")

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        texts = [" ".join(map(str, prompt)) for prompt in prompts]
        how = lmdeploy.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        answers = pipe(texts, gen_config=how, do_preprocess=False)
        return [answer.token_ids for answer in answers]

    return generate


def measure(ways: dict[str, Generate], rows: int, new: int) -> dict[str, float]:
    """Return milliseconds of CPU time for a token, each way; all must generate equal tokens."""
    generator = torch.Generator().manual_seed(rows)
    prompts = torch.randint(3, 10, (rows, PROMPT), generator=generator).tolist()
    times: dict[str, list[float]] = {name: [] for name in ways}
    first = {name: generate(prompts, new) for name, generate in ways.items()}
    same = {name: found == first["transformers"] for name, found in first.items()}
    if not all(same.values()):
        console().print(f"other tokens than transformers': {same}", style="red")
    for _ in range(ROUNDS):
        for name, generate in ways.items():
            start = time.process_time()
            generate(prompts, new)
            times[name].append((time.process_time() - start) * 1e3 / (rows * new))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    vendor = adaptor.register().vendor
    with tempfile.TemporaryDirectory() as folder:
        model = saved(Path(folder))
        ways = {
            "transformers": stock(model),
            "LMDeploy, eager": engine(Path(folder), True),
            "LMDeploy, graph": engine(Path(folder), False),
        }
        lines = []
        for rows, new in BATCHES.items():
            found = measure(ways, rows, new)
            base = found.pop("transformers")
            cells = [(f"{ms:.2f} ms", f"{base / ms:.2f}") for ms in found.values()]
            lines.append((str(rows), f"{base:.2f} ms", *(cell for pair in cells for cell in pair)))
    columns = ("rows", "transformers", "eager", "times as fast", "graph", "times as fast")
    title = f"CPU time of a token, {vendor.label}, one thread"
    console().print(table(title, columns, lines))


if __name__ == "__main__":
    main()
