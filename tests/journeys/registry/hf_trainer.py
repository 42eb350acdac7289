"""transformers' Trainer in bfloat16 over a small GPT-2 and a small Llama, then generate()."""

import json
import sys
import tempfile

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

on_cpu = "--cpu" in sys.argv
TOKENS = [[(i * k + k) % 64 for i in range(16)] for k in range(1, 65)]
DATA = [{"input_ids": row, "labels": row, "attention_mask": [1] * 16} for row in TOKENS]


def gpt2():
    config = GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def llama():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return LlamaForCausalLM(config)


def train(make):
    set_seed(42)
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=12,
            per_device_train_batch_size=int(sys.argv[1]),
            learning_rate=3e-3,
            logging_steps=1,
            bf16=True,
            use_cpu=on_cpu,
            save_steps=6,
            report_to=[],
            disable_tqdm=True,
            seed=42,
            data_seed=42,
            gradient_checkpointing=make is llama,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=DATA, eval_dataset=DATA[:16])
        trainer.train()
        history = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        evaluation = trainer.evaluate()["eval_loss"]
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
        again = [row["loss"] for row in trainer.state.log_history if "loss" in row][-6:]
    model.eval()
    device = "cpu" if on_cpu else "cuda"
    model.to(device)
    prompt = torch.tensor([[1, 2, 3, 4]]).to(device)
    options = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    greedy = model.generate(prompt, max_new_tokens=8, do_sample=False, **options)
    beams = model.generate(prompt, max_new_tokens=6, num_beams=3, do_sample=False, **options)
    options["min_new_tokens"] = 6  # devices draw other numbers, and one may draw the end
    sampled = model.generate(prompt, max_new_tokens=6, do_sample=True, top_k=8, **options)
    return {
        "losses": [float(loss) for loss in history],
        "eval": evaluation,
        "resumed": [float(loss) for loss in again],
        "lengths": [greedy.shape[1], sampled.shape[1], beams.shape[0]],
        "is_cuda": greedy.is_cuda and trainer.args.device.type == "cuda",
    }


print(json.dumps({make.__name__: train(make) for make in (gpt2, llama)}))
