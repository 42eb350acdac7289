"""TRL: supervised fine-tuning of a small Llama on conversations, in bfloat16 where asked for."""

import json
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

precision = sys.argv[1]
WORDS = ["<pad>", "<eos>", "user", "assistant", "one", "two", "three", "four", "five", "plus"]
WORDS += ["six", "seven", "eight", "nine", "is", "?"]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def conversation(a, b):
    question = f"{NUMBERS[a]} plus {NUMBERS[b]} is ?"
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": NUMBERS[a + b + 1]},
        ]
    }


tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "?"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="?"
)
tokenizer.chat_template = (
    "{% for m in messages %}{{ m['role'] }} "
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} <eos> {% endgeneration %}"
    "{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
)
set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
)
data = Dataset.from_list([conversation(a, b) for a in range(5) for b in range(9) if a + b < 8])
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            assistant_only_loss=True,
            bf16=precision == "bf16",
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            max_length=32,
        ),
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.train()
history = [row for row in trainer.state.log_history if "loss" in row]
weights = {name: p.detach().double() for name, p in trainer.model.named_parameters()}
print(
    json.dumps(
        {
            "losses": [row["loss"] for row in history],
            "accuracy": [row["mean_token_accuracy"] for row in history],
            "parameters": {name: [p.sum().item(), p.norm().item()] for name, p in weights.items()},
            "is_cuda": next(trainer.model.parameters()).is_cuda,
        }
    )
)
