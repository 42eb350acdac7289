"""Greedy tokens of stock transformers, in a separate process: `… reference FOLDER REQUESTS`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.dlinfer.serving.prompts import END, NEW


def main(folder: str, requests: str) -> None:
    wanted = torch.load(requests)
    print(json.dumps({name: _tokens(Path(folder, name), rows) for name, rows in wanted.items()}))


def _tokens(here: Path, rows: list[dict[str, Any]]) -> list[list[int]]:
    plain = here.parent / "llama" if here.name == "internlm2" else here  # the same weights
    loader = (
        transformers.AutoModelForImageTextToText
        if here.name == "internvl"
        else transformers.AutoModelForCausalLM
    )
    model = loader.from_pretrained(plain, attn_implementation="eager").eval()
    return [_generated(model, **row) for row in rows]


def _generated(model: Any, ids: list[int], pixels: torch.Tensor | None = None) -> list[int]:
    given = torch.tensor([ids])
    more = {} if pixels is None else {"pixel_values": pixels}
    found = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=NEW,
        do_sample=False,
        suppress_tokens=[END],
        **more,
    )
    tokens: list[int] = found[0, len(ids) :].tolist()
    return tokens


if __name__ == "__main__":
    main(*sys.argv[1:])
