"""LMDeploy's device type "dlinfer": what it refuses, what it checks, and what it leaves alone."""

import logging
from collections.abc import Iterator
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


def test_an_unknown_release_is_told_and_the_self_check_decides(
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
def test_a_model_of_latent_attention_is_told() -> None:
    from lmdeploy.pytorch.configurations import deepseek_v2

    with pytest.raises(DeeplinkError, match=r"latent attention \(DeepSeek\): device type"):
        deepseek_v2.flash_mla_available()
