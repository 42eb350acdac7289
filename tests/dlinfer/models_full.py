"""Models of full size with random weights on a GPU, with dlinfer's ops and without.

Weights are random on the GPU in bfloat16. Tokens of such models are often nearly as likely as
others, so logits decide: both runs against the same model in float32 on the same tokens. A batching
run, which returns tokens only, is judged by how much less likely each is than the best.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dlinfer
from dlinfer.framework import internlm2
from tests.dlinfer.support import Found

transformers: Any = importlib.import_module("transformers")

KIND = torch.bfloat16
ROWS, GIVEN, NEW = 4, 64, 24
WORSE = 1.5  # times the error of stock transformers: the most that is called close
ENDLESS: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1}
QWEN2: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    **ENDLESS,
}
LLAMA3: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    **ENDLESS,
}
MIXTRAL = LLAMA3 | {"vocab_size": 32000, "num_hidden_layers": 4, "num_local_experts": 8}
QWEN2_MOE = QWEN2 | {
    "num_hidden_layers": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
}
DEEPSEEK_V2: dict[str, Any] = {
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **ENDLESS,
}
INTERNLM2 = {
    "model_type": "internlm2",
    "torch_dtype": "bfloat16",
    "bias": False,
    "rope_theta": 1000000,
    **{name: LLAMA3[name] for name in internlm2.SAME if name in LLAMA3},
    "vocab_size": 92544,
    "num_hidden_layers": 8,
}
IMAGE, START, END, VIDEO = 96, 94, 93, 95  # tokens
INTERNVL_SEES: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": [448, 448],
    "patch_size": [14, 14],
}
QWEN2_VL_SEES = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584}
GRID = 16  # patches on a side of Qwen2-VL's image


@dataclass(frozen=True)
class Full:
    """A model: how it is made, and what of the published one it has."""

    build: Callable[[], Any]
    shape: str
    batching: bool = True  # transformers' own does not take every kind of cache


def _causal(family: str, config: dict[str, Any]) -> Any:
    made = getattr(transformers, f"{family}Config")(**config)
    return getattr(transformers, f"{family}ForCausalLM")._from_config(made, dtype=KIND)


def _internlm2() -> Any:
    """Load a checkpoint through the loader that is written for it."""
    size, inner = INTERNLM2["hidden_size"], INTERNLM2["intermediate_size"]
    head = size // INTERNLM2["num_attention_heads"]
    both = size + 2 * INTERNLM2["num_key_value_heads"] * head
    shapes = {"attention.wqkv": (both, size), "attention.wo": (size, size)}
    shapes |= {f"feed_forward.w{n}": (inner, size) for n in (1, 3)}
    shapes["feed_forward.w2"] = (size, inner)
    ends = (INTERNLM2["vocab_size"], size)
    kept = {f"{name}.weight": _drawn(ends) for name in ("model.tok_embeddings", "output")}
    kept["model.norm.weight"] = torch.ones(size, dtype=KIND)
    for n in range(INTERNLM2["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        kept |= {f"{layer}.{name}.weight": _drawn(shape) for name, shape in shapes.items()}
        for name in ("attention_norm", "ffn_norm"):
            kept[f"{layer}.{name}.weight"] = torch.ones(size, dtype=KIND)
    kept = {name: weight.cpu() for name, weight in kept.items()}
    with tempfile.TemporaryDirectory() as folder:
        save = importlib.import_module("safetensors.torch").save_file
        save(kept, Path(folder) / "model.safetensors")
        (Path(folder) / "config.json").write_text(json.dumps(INTERNLM2), "utf-8")
        return internlm2.load(folder)


def _drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=KIND) * 0.02


def _internvl() -> Any:
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**INTERNVL_SEES),
        text_config=transformers.Qwen2Config(**QWEN2),
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return transformers.InternVLForConditionalGeneration._from_config(config, dtype=KIND)


def _qwen2_vl() -> Any:
    size = QWEN2["hidden_size"] // QWEN2["num_attention_heads"]
    parts = [size // 8, size * 3 // 16, size * 3 // 16]
    rope = {"rope_type": "default", "mrope_section": parts, "rope_theta": 1000000.0}
    config = transformers.Qwen2VLConfig(
        vision_config=QWEN2_VL_SEES,
        text_config=QWEN2 | {"rope_parameters": rope},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=False,
    )
    return transformers.Qwen2VLForConditionalGeneration._from_config(config, dtype=KIND)


causal = functools.partial(functools.partial, _causal)
MODELS = {
    "qwen2": Full(causal("Qwen2", QWEN2), "Qwen2-7B"),
    "mixtral": Full(causal("Mixtral", MIXTRAL), "Mixtral-8x7B, 4 of its 32 layers"),
    "internlm2": Full(_internlm2, "InternLM2.5-7B, 8 of its 32 layers"),
    "internvl": Full(_internvl, "InternVL2.5-8B's tower over Qwen2-7B", batching=False),
    "qwen2_vl": Full(_qwen2_vl, "Qwen2-VL-7B", batching=False),
    "deepseek_v2": Full(causal("DeepseekV2", DEEPSEEK_V2), "DeepSeek-V2-Lite", batching=False),
    "llama3": Full(causal("Llama", LLAMA3), "Llama-3-8B"),
    "qwen2_moe": Full(causal("Qwen2Moe", QWEN2_MOE), "Qwen2-57B-A14B, 4 of its 28 layers"),
}


def measured(words: list[str], device: str = "cuda") -> Iterator[Found]:
    """Measure the named models, or all of them."""
    where = torch.cuda.get_device_name() if device == "cuda" else device
    run = f"{time.strftime('%Y-%m-%d')}, {where}, torch {torch.__version__.partition('+')[0]}"
    run += f", transformers {transformers.__version__}"
    for name in [name for name in MODELS if name in words] or MODELS:
        for mode, status, text in checked(MODELS[name], device):
            told = f"{MODELS[name].shape}, random bfloat16 weights: {text}"
            yield Found(name, "transformers", f"{device}, full size", mode, status, told, run)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def checked(full: Full, device: str) -> Iterator[tuple[str, str, str]]:
    """Mode, status and its remark."""
    torch.manual_seed(0)
    with torch.device(device):
        model = full.build().eval()
    given = inputs(model)
    prompts = given["input_ids"].tolist()
    stock, expected = generated(model, given)
    applied = dlinfer.apply(model)
    found, logits = generated(model, given)
    batched = _batched(model, prompts) if full.batching else None
    applied.undo()
    model.float()
    wrong, usual = _error(model, given, found, logits), _error(model, given, stock, expected)
    same = int((found == stock).sum())
    said = f"logits off by {wrong:.1e} from float32's (stock {usual:.1e}), "
    said += f"{same} of {found.numel()} tokens stock's, apply's check {applied.difference:.1e}"
    close = "close" if wrong <= WORSE * usual else "wrong"
    yield "generate", "exact" if same == found.numel() else close, said
    if batched is not None:
        missed, normal = (_missed(model, given, rows) for rows in (batched, stock))
        close = "close" if missed <= max(WORSE * normal, 4 * usual) else "wrong"
        text = f"the tokens' logits at most {missed:.1e} of the largest below the best of float32"
        equal = torch.equal(batched, stock)
        yield "generate_batch", "exact" if equal else close, f"{text} (stock {normal:.1e})"


def inputs(model: Any) -> dict[str, Tensor]:
    """Rows of random tokens; with an image in each where the model takes one."""
    draw = torch.Generator().manual_seed(1)
    kind, rows = type(model).__name__, torch.randint(100, 30000, (ROWS, GIVEN), generator=draw)
    given: dict[str, Tensor] = {}
    if kind == "InternVLForConditionalGeneration":
        seen = model.config.vision_config
        side = seen.image_size[0] / seen.patch_size[0] * model.config.downsample_ratio
        count = int(side) ** 2
        given["pixel_values"] = torch.randn(ROWS, 3, *seen.image_size, generator=draw)
    elif kind == "Qwen2VLForConditionalGeneration":
        seen = model.config.vision_config
        count = (GRID // seen.spatial_merge_size) ** 2
        size = seen.in_channels * seen.temporal_patch_size * seen.patch_size**2
        given["pixel_values"] = torch.randn(ROWS * GRID * GRID, size, generator=draw)
        given["image_grid_thw"] = torch.tensor([[1, GRID, GRID]] * ROWS)
    else:
        count = 0
    if count:
        image = torch.tensor([START, *[IMAGE] * count, END]).expand(ROWS, -1)
        rows = torch.cat((rows[:, :8], image, rows[:, 8:]), 1)
    given |= {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    if "image_grid_thw" in given:
        given["mm_token_type_ids"] = (rows == IMAGE).int()
    return {name: value.to(model.device) for name, value in given.items()}


def generated(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The new tokens, greedily, and the logits of each."""
    how = {"max_new_tokens": NEW, "do_sample": False, "output_logits": True}
    done = model.generate(**_as(model, given), **how, return_dict_in_generate=True)
    logits = torch.stack(done.logits, 1).float().cpu()
    return done.sequences[:, -NEW:], logits


def _batched(model: Any, prompts: list[list[int]]) -> Tensor:
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    how = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=256, max_batch_tokens=512)
    done = model.generate_batch(prompts, config, how)
    for result in done.values():
        if result.error is not None:
            raise RuntimeError(str(result.error))
    return torch.tensor([result.generated_tokens for result in done.values()], device=model.device)


def _as(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.to(model.dtype) if t.is_floating_point() else t for n, t in given.items()}


@torch.no_grad()
def _truth(model: Any, given: dict[str, Tensor], new: Tensor) -> Tensor:
    """The logits of these new tokens by the model as it is now, in one piece."""
    rows = torch.cat((given["input_ids"], new[:, :-1]), 1)
    more = dict(given) | {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    if "mm_token_type_ids" in given:
        more["mm_token_type_ids"] = (rows == IMAGE).int()
    logits: Tensor = model(**_as(model, more), logits_to_keep=NEW).logits
    return logits.float().cpu()


def _error(model: Any, given: dict[str, Tensor], new: Tensor, logits: Tensor) -> float:
    """The root of the mean square of what is off, over that of the logits."""
    truth = _truth(model, given, new)
    return float((logits - truth).norm() / truth.norm())


def _missed(model: Any, given: dict[str, Tensor], new: Tensor) -> float:
    """Return the largest gap of a chosen token's logit below the best, over the largest logit."""
    truth = _truth(model, given, new)
    chosen = truth.gather(-1, new.cpu().unsqueeze(-1)).squeeze(-1)
    return float((truth.amax(-1) - chosen).max() / truth.abs().max())
