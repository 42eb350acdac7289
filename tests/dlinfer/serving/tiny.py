"""Tiny models with random weights, saved as their makers save theirs: what frameworks load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

IMAGE = {"image_size": 28, "patch_size": 14, "image_seq_length": 1}
SPECIAL = ("<pad>", "<s>", "</s>", "<img>", "</img>", "<IMG_CONTEXT>", "<image>")
CONTEXT = SPECIAL.index("<IMG_CONTEXT>")
TEXT = (
    "Shanghai is a big city in China.",
    "How are you? I am fine, thank you.",
    "The quick brown fox jumps over the lazy dog. 0123456789",
)
SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
}


def make(name: str, folder: Path, **sizes: Any) -> Path:
    """The folder of a model, made once."""
    here = folder / name
    if not here.exists():
        if name == "internlm2":
            _internlm2(make("llama", folder, **sizes), here)
        else:
            model = _internvl() if name == "internvl" else _text(name, **sizes)
            _saved(model, here)
            if name == "internvl":
                _processor(here)
    return here


def _text(name: str, **sizes: Any) -> Any:
    family, more = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **more, **sizes})
    return getattr(transformers, f"{family}ForCausalLM")(config)


def _saved(model: Any, here: Path) -> None:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():  # so that tokens differ, and are far apart
        mean = float(parameter.dim() == 1 and "norm" in name)
        torch.nn.init.normal_(parameter, mean, 0.1 if parameter.dim() == 1 else 0.3)
    with torch.no_grad():  # frameworks know it for zeros, whatever is saved
        model.get_input_embeddings().weight[SPECIAL.index("<pad>")] = 0
    model.eval().save_pretrained(here)
    _tokenizer(model.config.get_text_config().vocab_size).save_pretrained(here)


def _tokenizer(size: int) -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
    )
    return fast


def _internlm2(llama: Path, here: Path) -> None:
    """Llama's weights under InternLM2's names: queries, keys and values of a group side by side."""
    config = json.loads((llama / "config.json").read_text())
    found = load_file(llama / "model.safetensors")
    shared = config["num_key_value_heads"]
    group = config["num_attention_heads"] // shared
    made = {
        "model.tok_embeddings.weight": found["model.embed_tokens.weight"],
        "model.norm.weight": found["model.norm.weight"],
        "output.weight": found["lm_head.weight"],
    }
    names = {
        "attention.wo": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        parts = [found[f"{at}self_attn.{part}_proj.weight"] for part in "qkv"]
        heads = [
            part.view(shared, count, -1, part.shape[1])
            for part, count in zip(parts, (group, 1, 1), strict=True)
        ]
        made[f"{at}attention.wqkv.weight"] = torch.cat(heads, 1).flatten(0, 2)
        for new, old in names.items():
            made[f"{at}{new}.weight"] = found[f"{at}{old}.weight"]
    here.mkdir()
    save_file({k: v.contiguous() for k, v in made.items()}, here / "model.safetensors")
    kept = {name: config[name] for name in (*SMALL, "rms_norm_eps")}
    theirs = {
        "architectures": ["InternLM2ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
        "model_type": "internlm2",
        "bias": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "dtype": "float32",
    }
    (here / "config.json").write_text(json.dumps(kept | theirs))
    (here / "configuration_internlm2.py").write_text(INTERNLM2)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(llama / name, here)


INTERNLM2 = """from transformers.configuration_utils import PretrainedConfig


class InternLM2Config(PretrainedConfig):
    model_type = "internlm2"
"""


def _internvl() -> Any:
    text = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": [28, 28],
        "patch_size": [14, 14],
    }
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=CONTEXT,
        image_seq_length=1,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    return transformers.InternVLForConditionalGeneration(config)


def _processor(here: Path) -> None:
    """The files that define the preparation of images."""
    tokenizer = json.loads((here / "tokenizer_config.json").read_text())
    tokenizer |= {
        "context_image_token": "<IMG_CONTEXT>",
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "video_token": "<image>",
    }
    (here / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    images = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
        "size": {"height": 28, "width": 28},
        "crop_to_patches": False,
        "min_patches": 1,
        "max_patches": 1,
        "do_convert_rgb": True,
    }
    (here / "preprocessor_config.json").write_text(json.dumps(images))
    (here / "processor_config.json").write_text(
        json.dumps({"processor_class": "InternVLProcessor", "image_seq_length": 1})
    )
