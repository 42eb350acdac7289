"""vLLM, a process: `… vllm_worker FOLDER FILE eager|graph` writes prompts and tokens as JSON,
to a file: it logs a lot.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.dlinfer.serving.prompts import END, NEW, PROMPTS


def main(folder: str, result: str, mode: str) -> None:
    import vllm

    sizes: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 8}
    llm = vllm.LLM(model=folder, dtype="float32", enforce_eager=mode == "eager", **sizes)
    how = vllm.SamplingParams(
        max_tokens=NEW, temperature=0, ignore_eos=True, logit_bias={END: -100}
    )
    answers = llm.generate(list(PROMPTS), how)
    rows = [[list(a.prompt_token_ids), list(a.outputs[0].token_ids)] for a in answers]
    Path(result).write_text(json.dumps(rows), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
