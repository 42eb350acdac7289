# SPDX-License-Identifier: Apache-2.0
"""InternLM2 for transformers, which has no class for it: its checkpoint is loaded as a Llama.

InternLM2 stores queries, keys and values in one weight, grouped by the heads of keys; all else is
Llama under other names. No code of the checkpoint is run.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

NAMES = {
    "model.tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}
SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    *("num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"),
)


def load(directory: Path | str, dtype: torch.dtype | None = None) -> Any:
    """Load a checkpoint of InternLM2 as an equivalent LlamaForCausalLM."""
    folder = Path(directory)
    given = json.loads((folder / "config.json").read_text("utf-8"))
    if given.get("model_type") != "internlm2":
        raise DeeplinkError(
            _("{folder} holds a model of type {value!r}, not 'internlm2'.").format(
                folder=folder, value=given.get("model_type")
            ),
            _("other types are loaded by transformers itself."),
        )
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(**llama_config(given))
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(regrouped(_weights(folder), config))
    wanted = dtype or getattr(torch, given.get("torch_dtype") or given.get("dtype") or "float32")
    return model.to(wanted).eval()


def llama_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a config of InternLM2 to the arguments of LlamaConfig."""
    kept = {name: given[name] for name in SAME if name in given}
    scaling = dict(given.get("rope_scaling") or {})
    kind = scaling.pop("type", None) or scaling.pop("rope_type", None) or "default"
    rope = {"rope_type": kind, "rope_theta": float(given.get("rope_theta", 10000)), **scaling}
    return {**kept, "attention_bias": bool(given.get("bias")), "rope_parameters": rope}


def regrouped(weights: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Convert the weights of InternLM2 to Llama's names."""
    shared = config.num_key_value_heads
    group = config.num_attention_heads // shared
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if ".attention.wqkv." in name:
            parts = weight.unflatten(0, (shared, group + 2, -1)).split((group, 1, 1), 1)
            for part, letter in zip(parts, "qkv", strict=True):
                place = name.replace(".attention.wqkv.", f".self_attn.{letter}_proj.")
                found[place] = part.flatten(0, 2).contiguous()
        else:
            found[_named(name)] = weight
    return found


def _named(name: str) -> str:
    for theirs, ours in NAMES.items():
        if name.startswith(f"{theirs}.") or f".{theirs}." in name:
            return name.replace(theirs, ours, 1)
    return name


def _weights(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if files:
        read = importlib.import_module("safetensors.torch").load_file
        return {name: weight for file in files for name, weight in read(file).items()}
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise DeeplinkError(
            _("{folder} has no weights.").format(folder=folder),
            _("*.safetensors or pytorch_model*.bin."),
        )
    kept: dict[str, Tensor] = {}
    for file in files:
        kept |= torch.load(file, map_location="cpu", weights_only=True)
    return kept
