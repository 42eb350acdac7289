"""peft: LoRA on a Llama that is loaded with device_map="auto", saved, loaded and merged."""

import json
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, set_seed

STEPS = 8
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.tensor([[(i * k + k) % 64 for i in range(16)] for k in range(1, 9)])


def values(model):
    """Sum and norm of every trained parameter."""
    kept = {name: p.detach().double() for name, p in model.named_parameters() if p.requires_grad}
    return {name: [p.sum().item(), p.norm().item()] for name, p in kept.items()}


set_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(f"{folder}/base")

    def load_base():
        return AutoModelForCausalLM.from_pretrained(f"{folder}/base", device_map="auto")

    lora = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(load_base(), lora)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = tokens.to(device)
    losses = []
    for _ in range(STEPS):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(f"{folder}/adapter")
    merged = PeftModel.from_pretrained(load_base(), f"{folder}/adapter").merge_and_unload()
    with torch.no_grad():
        merged_loss = merged(input_ids=batch, labels=batch).loss.item()
        loss = model(input_ids=batch, labels=batch).loss.item()
assert abs(merged_loss - loss) < 1e-4, (merged_loss, loss)
print(
    json.dumps(
        {
            "losses": [*losses, merged_loss],
            "parameters": values(model),
            "is_cuda": next(merged.parameters()).is_cuda,
        }
    )
)
