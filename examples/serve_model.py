"""Generate text with a Llama of transformers on the fused operators of the chip's vendor.

`python examples/serve_model.py [FOLDER]`: the folder of a model, or a tiny one with random weights.
The same model behind an OpenAI-compatible server: `deeplink serve --model FOLDER`.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import dlinfer


def tiny() -> LlamaForCausalLM:
    """A model with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else ""
    model = (AutoModelForCausalLM.from_pretrained(folder) if folder else tiny()).eval()
    prompt = torch.randint(2, model.config.vocab_size, (4, 8))

    def generated() -> torch.Tensor:
        found: torch.Tensor = model.generate(prompt, max_new_tokens=16, do_sample=False)
        return found

    stock = generated()
    applied = dlinfer.apply(model)  # checks that the model computes the same
    fused = generated()
    kernels = ", ".join(sorted(set(dlinfer.routes("cpu").values())))
    tokens = fused.shape[1] - prompt.shape[1]
    print(f"{len(prompt)} prompts, {tokens} new tokens each, kernels of: {kernels}")
    print(f"the same tokens as stock transformers: {torch.equal(stock, fused)}")
    applied.undo()


if __name__ == "__main__":
    main()
