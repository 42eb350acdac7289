"""vLLM with dlinfer's plugin gives the tokens of stock transformers."""

import importlib
import importlib.metadata
import logging
from pathlib import Path
from typing import Any

import pytest

from deeplink.errors import DeeplinkError

pytestmark = pytest.mark.frameworks
pytest.importorskip("vllm", reason="not installed: scripts/frameworks vllm")
runs: Any = importlib.import_module("tests.dlinfer.serving.runs")


@pytest.mark.parametrize("model", runs.VLLM)
def test_tokens_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="dlinfer"):
        pytest.skip("deeplink was installed before it had the plugin: make setup")
    for mode, run in runs.vllm(model, tmp_path).items():
        assert run["tokens"] == run["expected"], mode


@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
def test_a_layer_that_computes_something_else_is_reported_and_not_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin: Any = importlib.import_module("dlinfer.framework.vllm")
    layers: Any = importlib.import_module("dlinfer.framework.vllm.layers")
    monkeypatch.setenv("DLINFER_VLLM", "1")
    monkeypatch.setattr(plugin, "TESTED", ("0.1",))
    monkeypatch.setattr(layers.Gate, "forward", lambda self, x: x.chunk(2, -1)[0])
    with (
        caplog.at_level(logging.WARNING, "dlinfer"),
        pytest.raises(DeeplinkError, match=r"something else on dlinfer's ops: gate off by"),
    ):
        plugin.register()
    assert "dlinfer is tested with vLLM 0.1, not 0.32" in caplog.text
    assert "SiluAndMul" not in layers.registry.op_registry_oot
