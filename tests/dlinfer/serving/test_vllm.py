"""vLLM with dlinfer's plugin gives the tokens of stock transformers."""

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

from tests.dlinfer.serving import runs

pytestmark = pytest.mark.frameworks
pytest.importorskip("vllm", reason="not installed: scripts/frameworks vllm")


def test_tokens_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="dlinfer"):
        pytest.skip("deeplink was installed before it had the plugin: make setup")
    from tests.dlinfer.serving import tiny

    model = tiny.make("llama", tmp_path, hidden_size=128)  # vLLM has heads of 32 at least
    monkeypatch.setenv("DLINFER_VLLM", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    runs.python("tests.dlinfer.serving.vllm_worker", str(model), str(tmp_path / "result"))
    rows = json.loads((tmp_path / "result").read_text("utf-8"))
    requests = tmp_path / "requests"
    torch.save({"llama": [{"ids": ids} for ids, _ in rows]}, requests)
    expected = runs.python("tests.dlinfer.serving.reference", str(tmp_path), str(requests))
    assert [tokens for _, tokens in rows] == json.loads(expected)["llama"]
