"""Models of transformers, tiny ones from their configurations, on a vendor's kernels: loss and
gradients against the CPU's.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from diopi import implementation
from torch_dipu import routes

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers", exc_type=ImportError)

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
TEXT = {**SIZES, "vocab_size": 99, "intermediate_size": 64}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 99}
START = {"decoder_start_token_id": 0, "pad_token_id": 0}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 1}, "words"),
    "qwen3": ("Qwen3ForCausalLM", {**TEXT, "num_key_value_heads": 1, "head_dim": 16}, "words"),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99},
        "words",
    ),
    "mixtral": (
        "MixtralForCausalLM",
        # as torch 2.13's CPU: no histogram of integers, which the grouped experts take elsewhere
        {
            **TEXT,
            "num_key_value_heads": 1,
            "num_local_experts": 4,
            "experts_implementation": "eager",
        },
        "words",
    ),
    "bert": ("BertForMaskedLM", TEXT, "words"),
    "t5": ("T5ForConditionalGeneration", {**T5, **START}, "words"),
    "vit": (
        "ViTForImageClassification",
        {**SIZES, "intermediate_size": 64, "image_size": 16, "patch_size": 8, "num_labels": 5},
        "images",
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5},
        "images",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    module = importlib.import_module("deeplink_vendors.reference.kernels")
    routes.bind(implementation.of(module, "reference"))
    yield
    routes.unbind()


def given(kind: str) -> dict[str, Tensor]:
    if kind == "images":
        return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 3])}
    words = torch.randint(0, 99, (2, 12))
    return {"input_ids": words, "labels": words}


def trained(model: torch.nn.Module, inputs: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """The loss and the gradients of one step."""
    model = copy.deepcopy(model).to(device)
    loss = model(**{name: value.to(device) for name, value in inputs.items()}).loss
    loss.backward()
    gradients = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach().cpu(), **gradients}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers itself
def test_a_model_trains_as_on_the_cpu(name: str) -> None:
    class_name, sizes, kind = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    # no dropout: the CPU and the device draw from their own generators
    model = model_class(model_class.config_class(**sizes)).eval()
    inputs = given(kind)
    expected, found = (trained(model, inputs, device) for device in ("cpu", "dipu"))
    assert len(expected) > 10
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
