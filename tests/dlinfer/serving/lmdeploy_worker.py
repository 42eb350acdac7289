"""LMDeploy on dlinfer's ops, a process: `… lmdeploy_worker MODEL FOLDER RESULT MODE…`.

RESULT gets, by torch.save, for each mode: what the engine was given, the tokens, how often an op of
attention was called, how many tokens of prompts were cached, the graphs before and while serving.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.dlinfer.serving import images
from tests.dlinfer.serving.prompts import LONG, NEW, PROMPTS

BLOCK = 16
MODES: dict[str, dict[str, Any]] = {
    "eager": {"eager_mode": True},
    "graph": {},
    "prefix caching": {"eager_mode": True, "enable_prefix_caching": True},
    "chunked prefill": {"eager_mode": True, "max_prefill_token_num": 48},
    "few blocks": {"eager_mode": True, "num_gpu_blocks": 16},  # two long rows at once
}


def main(model: str, folder: str, result: str, *modes: str) -> None:
    kept = images.declare() if model == "internvl" else None
    import torch  # after torchvision's ops are declared

    from dlinfer.framework.lmdeploy import register
    from tests.dlinfer.serving import tiny

    register()
    counted = _counting()
    here = tiny.make(model, Path(folder))
    found = {mode: _run(here, counted, **MODES[mode]) for mode in modes}
    torch.save(found, result)
    del kept


def _counting() -> Counter[str]:
    from dlinfer import ops

    calls: Counter[str] = Counter()

    def counting(name: str, op: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return op(*args, **named)

        return call

    for name in ("prefill_attention", "paged_prefill_attention"):
        setattr(ops, name, counting(name, getattr(ops, name)))
    return calls


def _run(here: Path, calls: Counter[str], **mode: Any) -> dict[str, Any]:
    import torch
    from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline

    sizes = {"session_len": 256, "max_batch_size": 8, "num_gpu_blocks": 64, "block_size": BLOCK}
    config = PytorchEngineConfig(device_type="dlinfer", **{**sizes, **mode})
    pipe = pipeline(str(here), backend_config=config, log_level="ERROR")
    given = _recorded()
    compiled = torch._dynamo.utils.counters["stats"]
    graphs = compiled["unique_graphs"]
    compiled.clear()
    how = GenerationConfig(max_new_tokens=NEW, ignore_eos=True, do_sample=False)
    with_images = here.name == "internvl"
    asked = [(p, _image(seed)) if with_images else p for seed, p in enumerate(PROMPTS)]
    pipe([asked[PROMPTS.index(LONG)]], gen_config=how, do_preprocess=with_images)  # a prefix
    given.clear()
    calls.clear()
    answers = pipe(asked, gen_config=how, do_preprocess=with_images)
    pipe.close()
    return {
        "given": given,
        "tokens": [answer.token_ids for answer in answers],
        "calls": dict(calls),
        "cached": sum(answer.cached_tokens for answer in answers),
        "graphs": graphs,
        "graphs while serving": compiled["unique_graphs"],
    }


def _image(seed: int) -> Any:
    import numpy
    from PIL import Image

    pixels = numpy.random.default_rng(seed).integers(0, 255, (28, 28, 3), dtype=numpy.uint8)
    return Image.fromarray(pixels)


def _recorded() -> list[dict[str, Any]]:
    """The requests to the engine, in the order of the prompts."""
    from lmdeploy.pytorch.engine.engine_instance import EngineInstance

    stock = vars(EngineInstance)["async_stream_infer"]
    stock = getattr(stock, "stock", stock)
    found: list[dict[str, Any]] = []

    def async_stream_infer(
        self: Any, session_id: int, input_ids: Any, *args: Any, **named: Any
    ) -> Any:
        inputs = (named.get("multimodal") or [{}])[0]
        pixels = inputs.get("pixel_values")
        found.append({"ids": list(input_ids), "pixels": pixels})
        return stock(self, session_id, input_ids, *args, **named)

    async_stream_infer.stock = stock  # type: ignore[attr-defined]
    EngineInstance.async_stream_infer = async_stream_infer
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
