"""Tiny models of transformers with random weights, and their tokens with and without dlinfer.

`python -m tests.dlinfer.models_transformers llama` prints stock's tokens: the reference is
run in another process, where no model was given dlinfer's ops.
"""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import dlinfer
from dlinfer.framework import internlm2
from tests.dlinfer.support import Found

transformers: Any = importlib.import_module("transformers")

NEW = 10
MODES = ("generate", "generate_batch")
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,  # of what is turned
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
DELTA: dict[str, Any] = {  # three layers of the gated delta rule before one of attention
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
SHARED = MOE | {"shared_expert_intermediate_size": 48}


def _causal(family: str, config_of: str = "", **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        config = getattr(transformers, f"{config_of or family}Config")(**SMALL | more)
        return getattr(transformers, f"{family}ForCausalLM")(config)

    return build


def _internvl() -> Any:
    vision = transformers.InternVLVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=[28, 28],
        patch_size=[7, 7],
    )
    text = transformers.Qwen2Config(**SMALL)
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=96,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    return transformers.InternVLForConditionalGeneration(config)


def _qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    config = transformers.Qwen2VLConfig(
        vision_config=vision,
        text_config=SMALL | {"rope_parameters": rope},
        image_token_id=96,
        video_token_id=95,
        vision_start_token_id=94,
        vision_end_token_id=93,
        tie_word_embeddings=False,
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def write_internlm2(folder: Path) -> None:
    """The tiny Llama as a checkpoint of InternLM2: other names, one weight for q, k and v."""
    model = built("llama")
    heads, shared, size = 4, 2, 16
    kept = {}
    for name, weight in model.state_dict().items():
        if "q_proj" in name:
            parts = [model.state_dict()[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            rows = [p.view(shared, -1, size, 64) for p in parts]
            kept[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(rows, 1)
        elif "k_proj" not in name and "v_proj" not in name:
            pairs = ((ours, theirs) for theirs, ours in internlm2.NAMES.items() if ours in name)
            kept[name.replace(*next(pairs, ("", "")))] = weight
    kept = {n: w.reshape(-1, w.shape[-1]) if "wqkv" in n else w.clone() for n, w in kept.items()}
    importlib.import_module("safetensors.torch").save_file(kept, folder / "model.safetensors")
    config = SMALL | {"model_type": "internlm2", "bias": False, "rope_theta": 10000}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert kept["model.layers.0.attention.wqkv.weight"].shape == ((heads + 2 * shared) * size, 64)


def _internlm2() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        write_internlm2(Path(folder))
        return internlm2.load(folder)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _causal("Llama"),
    "llama3": _causal("Llama", rope_parameters=LLAMA3),
    "mistral": _causal("Mistral", sliding_window=8, head_dim=16),
    "qwen2": _causal("Qwen2"),
    "qwen3": _causal("Qwen3", head_dim=16),
    "mixtral": _causal("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": _causal("Qwen2Moe", shared_expert_intermediate_size=48, **MOE),
    "qwen3_moe": _causal("Qwen3Moe", head_dim=16, **MOE),
    "deepseek_v2": _causal("DeepseekV2", **LATENT),
    "deepseek_v3": _causal("DeepseekV3", **LATENT),
    "deepseek_v32": _causal(
        "DeepseekV32", **LATENT, index_n_heads=4, index_head_dim=16, index_topk=6
    ),
    "glm4_moe": _causal(
        "Glm4Moe", **LATENT | {"head_dim": 16, "num_key_value_heads": 2}, use_qk_norm=True
    ),
    "qwen3_next": _causal("Qwen3Next", **DELTA, **SHARED),
    "qwen3_5": _causal("Qwen3_5", "Qwen3_5Text", **DELTA),
    "qwen3_5_moe": _causal("Qwen3_5Moe", "Qwen3_5MoeText", **DELTA, **SHARED),
    "gpt_oss": _causal(
        "GptOss",
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "internlm2": _internlm2,
    "internvl": _internvl,
    "qwen2_vl": _qwen2_vl,
}


REFERENCE = {"internlm2": "llama"}  # a model whose tokens depend on another class
ON_DEVICE = ("llama", "mixtral", "internvl")  # run on the reference device, too
ALONE = dict.fromkeys(
    ("deepseek_v2", "deepseek_v3"), ", whose paged cache has one size for keys and values"
)
REASONS = {
    "cogvlm": "transformers has no class for it; the code of its checkpoints is on the hub, which "
    "is not reached here",
}


def built(name: str) -> Any:
    """A model whose weights are far from each other: no two tokens are nearly as likely."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    if name in REFERENCE:
        return model
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def tokens(model: Any, mode: str) -> list[list[int]]:
    """Generate greedily: rows with and without padding, or requests."""
    rows = torch.randint(3, 90, (3, 9), generator=torch.Generator().manual_seed(1))
    if mode == "generate_batch":
        prompts = [row[count:].tolist() for row, count in zip(rows, (0, 4, 7), strict=True)]
        return _batched(model, [*prompts, rows.flatten().tolist()])
    how = {"max_new_tokens": NEW, "do_sample": False}
    rows = rows.to(model.device)
    mask = torch.ones_like(rows)
    mask[0, :4] = 0
    found = [model.generate(rows, attention_mask=torch.ones_like(rows), **how)]
    found.append(model.generate(rows, attention_mask=mask, **how))
    found += [model.generate(**image, **how) for image in images(model)]
    return [row for rows in found for row in rows.tolist()]


def _batched(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    config = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1)
    how = transformers.ContinuousBatchingConfig(page_size=4, num_blocks=32, max_batch_tokens=16)
    done = model.generate_batch(prompts, config, how)
    for result in done.values():
        if result.error is not None:
            raise RuntimeError(str(result.error))
    return [list(result.generated_tokens) for result in done.values()]


def images(model: Any) -> Iterator[dict[str, Any]]:
    """The arguments for a prompt with an image, of a model that takes one."""
    draw = torch.Generator().manual_seed(2)
    kind = type(model).__name__
    if kind == "InternVLForConditionalGeneration":
        pixels, more, count = torch.randn(1, 3, 28, 28, generator=draw), {}, 4
    elif kind == "Qwen2VLForConditionalGeneration":
        pixels, count = torch.randn(16, 96, generator=draw), 4
        more = {"image_grid_thw": torch.tensor([[1, 4, 4]])}
    else:
        return
    ids = torch.tensor([[5, 94, *[96] * count, 93, 7, 9]])
    if more:
        more["mm_token_type_ids"] = (ids == 96).int()
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    yield {name: value.to(model.device) for name, value in (given | more).items()}


def measured(words: list[str]) -> Iterator[Found]:
    """Measure the named models and modes, or all of them."""
    run = f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__.partition('+')[0]}"
    run += f", transformers {transformers.__version__}"
    for name in [name for name in [*MODELS, *REASONS] if name in words] or [*MODELS, *REASONS]:
        for mode in [mode for mode in MODES if mode in words] or MODES:
            status, text = ("no", REASONS[name]) if name in REASONS else checked(name, mode)
            yield Found(name, "transformers", "cpu", mode, status, text, run)
            if name in ON_DEVICE:
                status, text = checked(name, mode, "dipu")
                yield Found(name, "transformers", "reference device", mode, status, text, run)


def checked(name: str, mode: str, device: str = "cpu") -> tuple[str, str]:
    """The status of a model, and its remark."""
    if device == "dipu":
        importlib.import_module("torch_dipu")
    expected = stock_tokens(REFERENCE.get(name, name))[mode]
    if isinstance(expected, str):
        return "no", f"transformers alone does not run it{ALONE.get(name, '')}: {expected}"
    model = built(name).to(device)
    dlinfer.apply(model)
    found = tokens(model, mode)
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    said = "prompts of text: it takes no images" if [*images(model)] and mode != "generate" else ""
    return ("exact", said) if found == expected else ("wrong", f"{same} of {len(found)} rows")


@functools.cache
def stock_tokens(name: str) -> dict[str, list[list[int]] | str]:
    """Return the tokens of the model without dlinfer, from another process,
    in each mode; or its error.
    """
    command = [sys.executable, "-m", "tests.dlinfer.models_transformers", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[list[int]] | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _tokens_or_error(model: Any, mode: str) -> list[list[int]] | str:
    try:
        return tokens(model, mode)
    except (RuntimeError, ValueError) as error:
        return str(error)


if __name__ == "__main__":
    stock = built(sys.argv[1])
    print(json.dumps({mode: _tokens_or_error(stock, mode) for mode in MODES}))
