"""Train a small Llama with the Trainer of transformers, and time its slowest operators.

The program is written for CUDA: `deeplink run examples/huggingface_trainer.py`. The callback times
the operators of steps 2 and 3, and leaves the others alone.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

import op_tools
from op_tools.integrations import trainer_callback

WORDS = 64
TOKENS = [[(row + 3 * place) % WORDS for place in range(16)] for row in range(64)]
DATA: Any = [{"input_ids": row, "labels": row} for row in TOKENS]


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    timing = op_tools.OpTimeMeasure()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=40,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            bf16=True,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            LlamaForCausalLM(config),
            arguments,
            train_dataset=DATA,
            callbacks=[trainer_callback(timing, "2-3")],
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    slowest = max(timing.summary("op"), key=lambda line: line.forward.total)
    print(f"device: {torch.cuda.get_device_name()}, slowest operator: {slowest.name}")
    print(f"loss {float(losses[0]):.2f} -> {float(losses[-1]):.2f}")


if __name__ == "__main__":
    main()
