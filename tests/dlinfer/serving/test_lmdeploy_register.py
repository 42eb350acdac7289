"""LMDeploy's device type "dlinfer": what it refuses, what it checks, and what it leaves alone."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deeplink.errors import DeeplinkError
from dlinfer import fused
from dlinfer.framework import lmdeploy as adaptor

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # LMDeploy's and those of what it imports
]
pytest.importorskip("lmdeploy", reason="not installed: scripts/frameworks lmdeploy")


@pytest.fixture
def registered() -> Iterator[adaptor.Registered]:
    found = adaptor.register()
    yield found
    found.undo()


def _config(**given: Any) -> Any:
    from lmdeploy import PytorchEngineConfig

    return PytorchEngineConfig(**{"device_type": "dlinfer", **given})


BAD = {
    "no device type 'dlinfr'; allowed: 'dlinfer'": {"device_type": "dlinfr"},
    "dtype 'float64': device type 'dlinfer' serves auto, float32": {"dtype": "float64"},
    "tp=2: device type 'dlinfer' serves from one device": {"tp": 2},
    "quant_policy=8: device type 'dlinfer' keeps keys and values": {"quant_policy": 8},
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.usefixtures("registered")
def test_what_is_not_served_is_refused(text: str) -> None:
    with pytest.raises(DeeplinkError, match=text):
        _config(**BAD[text])
    assert _config(dtype="float32").device_type == "dlinfer"


def test_torch_is_not_touched_and_undo_gives_lmdeploy_back() -> None:
    from lmdeploy.pytorch.engine.model_agent import agent
    from lmdeploy.pytorch.models import llama

    before = (torch.empty, torch.Tensor.to, torch.cuda.Stream, torch.Tensor.cuda)
    registered = adaptor.register()
    assert adaptor.register() is registered
    assert agent.torch is not torch and llama.torch is torch
    assert (torch.empty, torch.Tensor.to, torch.cuda.Stream, torch.Tensor.cuda) == before
    registered.undo()
    assert agent.torch is torch
    with pytest.raises(AssertionError, match="invalid device_type: dlinfer"):
        _config()


@pytest.mark.usefixtures("registered")
def test_another_device_type_in_the_same_process_is_refused() -> None:
    from lmdeploy.pytorch.backends.selector import get_backend

    assert get_backend("dlinfer").device == "cpu"
    with pytest.raises(DeeplinkError, match="device type 'cuda' in a process where 'dlinfer' is"):
        get_backend("cuda")


def test_an_unknown_release_is_reported_and_the_self_check_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adaptor, "_version", lambda: "9.1.0")
    with caplog.at_level(logging.WARNING, "dlinfer"):
        adaptor.register().undo()
    assert "LMDeploy 9.1.0; dlinfer is tested with 0.18" in caplog.text
    monkeypatch.setattr(fused, "silu_and_mul", lambda x: x[..., : x.shape[-1] // 2])
    with pytest.raises(DeeplinkError, match="compute something else on dlinfer's ops: gate off by"):
        adaptor.register()
    with pytest.raises(AssertionError, match="invalid device_type"):  # it was taken back
        _config()


@pytest.mark.usefixtures("registered")
def test_a_model_of_latent_attention_is_reported() -> None:
    from lmdeploy.pytorch.configurations import deepseek_v2

    with pytest.raises(DeeplinkError, match=r"latent attention \(DeepSeek\): device type"):
        deepseek_v2.flash_mla_available()


@pytest.fixture
def chips(monkeypatch: pytest.MonkeyPatch) -> Iterator[adaptor.Registered]:
    monkeypatch.setenv("DEEPLINK_VENDOR", "cpu")
    found = adaptor.register_chips()
    yield found
    found.undo()


@pytest.mark.usefixtures("chips")
@pytest.mark.parametrize("kind", ["ascend", "maca", "camb"])
def test_the_device_type_of_a_chip_is_served_by_the_vendor_that_is_requested(kind: str) -> None:
    from lmdeploy.pytorch.backends.selector import get_backend

    assert get_backend(kind).get_name() == "dlinfer"
    assert get_backend(kind).device == "cpu"
    with pytest.raises(DeeplinkError, match=f"tp=2: device type '{kind}' serves from one device"):
        _config(device_type=kind, tp=2)


def test_a_config_made_before_the_chips_are_registered_is_refused_by_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lmdeploy.pytorch.engine.config_builder import ConfigBuilder

    config = _config(device_type="ascend", tp=2)
    monkeypatch.setenv("DEEPLINK_VENDOR", "cpu")
    found = adaptor.register_chips()
    try:
        with pytest.raises(DeeplinkError, match="tp=2: device type 'ascend'"):
            ConfigBuilder.build_dist_config(config)
    finally:
        found.undo()


@pytest.mark.usefixtures("registered")
def test_a_chip_that_is_absent_is_not_replaced_without_request() -> None:
    from lmdeploy.pytorch.backends.selector import get_backend

    with pytest.raises(
        DeeplinkError, match="'ascend' is the chip of vendor 'ascend'; this process"
    ):
        get_backend("ascend")


SNIPPET = """
import sys
import lmdeploy
from lmdeploy import PytorchEngineConfig
if __name__ == "__main__":
    pipe = lmdeploy.pipeline(sys.argv[1],
                            backend_config = PytorchEngineConfig(tp=1,
                            cache_max_entry_count=0.4, device_type=sys.argv[2]))
    question = ["Shanghai is", "Please introduce China", "How are you?"]
    response = pipe(question, request_output_len=256, do_preprocess=False)
    for idx, r in enumerate(response):
        print(f"Q: {question[idx]}")
        print(f"A: {r.text!r}")
        print()
"""


def _snippet(folder: Path, kind: str, vendor: str) -> subprocess.CompletedProcess[str]:
    from tests.dlinfer.serving import tiny  # it needs transformers, as LMDeploy does

    here = tiny.make("llama", folder)
    script = folder / "snippet.py"
    script.write_text(SNIPPET)
    command = [sys.executable, str(script), str(here), kind]
    environment = {**os.environ, "DEEPLINK_VENDOR": vendor}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "vendor"), [("ascend", "reference"), ("maca", "cpu"), ("camb", "cpu")]
)
def test_the_documents_snippet_runs(kind: str, vendor: str, tmp_path: Path) -> None:
    done = _snippet(tmp_path, kind, vendor)
    assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if line.startswith("A: ")]
    assert len(answers) == 3 and all(len(answer) > 10 for answer in answers)


def test_the_documents_snippet_names_the_missing_chip(tmp_path: Path) -> None:
    done = _snippet(tmp_path, "ascend", "")
    text = done.stdout + done.stderr
    assert done.returncode == 1
    assert "ascend unavailable (torch_npu is not installed)" in text
    assert "Hint: DEEPLINK_VENDOR=reference serves them on the reference device" in text
