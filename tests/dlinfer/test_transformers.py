"""A model of transformers with dlinfer's ops gives the tokens that it gave without them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dlinfer
from deeplink.errors import DeeplinkError
from dlinfer import fused

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def _model(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # far from each other: no two tokens are nearly as likely
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture(scope="module")
def llama() -> Any:
    return _model("Llama")


def _tokens(model: Any) -> list[torch.Tensor]:
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    how = {"max_new_tokens": 12, "do_sample": False}
    return [model.generate(ids, attention_mask=m, **how) for m in (torch.ones_like(ids), mask)]


@pytest.mark.parametrize("family", ["Llama", pytest.param("Qwen2", marks=pytest.mark.slow)])
def test_generated_tokens_are_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(family)
    expected = _tokens(model)
    applied = dlinfer.apply(model)
    assert applied.layers == {
        f"{family}RMSNorm": 5,
        f"{family}MLP": 2,
        f"{family}Attention": 2,
        f"{family}DecoderLayer": 2,
        "Linear": 15,
    }
    assert applied.difference is not None and applied.difference < 1e-4
    monkeypatch.setenv("DLINFER_STRICT", "1")  # every op by the CPU's kernels
    for found, wanted in zip(_tokens(model), expected, strict=True):
        assert torch.equal(found, wanted)


def _names(call: Callable[[], object]) -> set[str]:
    with torch.profiler.profile() as profile:
        call()
    return {event.name for event in profile.events() if event.name.startswith("dlinfer::")}


def test_only_the_model_that_was_given_changes_and_undo_takes_it_back(llama: Any) -> None:
    other, ids = _model("Llama"), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        plain = llama(ids).logits
        applied = dlinfer.apply(llama, check=False)
        assert "dlinfer::prefill_attention" in _names(lambda: llama(ids))
        assert _names(lambda: other(ids)) == set()
        applied.undo()
        assert _names(lambda: llama(ids)) == set()
        torch.testing.assert_close(llama(ids).logits, plain)


def test_gradients_are_the_models_own(llama: Any) -> None:
    ids = torch.tensor([[5, 6, 7]])

    def gradient() -> torch.Tensor:
        llama.zero_grad()
        llama(ids, labels=ids).loss.backward()
        found: torch.Tensor = llama.model.layers[0].mlp.gate_proj.weight.grad
        return found.clone()

    expected = gradient()
    applied = dlinfer.apply(llama)
    torch.testing.assert_close(gradient(), expected)
    applied.undo()


def test_weights_that_are_loaded_or_cast_later_count(llama: Any) -> None:
    model, ids = _model("Llama"), torch.tensor([[5, 6, 7]])
    dlinfer.apply(model)
    doubled = {name: 2 * value for name, value in llama.state_dict().items()}
    with torch.no_grad():
        for target in (model, llama):
            target.load_state_dict(doubled)
        torch.testing.assert_close(model(ids).logits, llama(ids).logits)
        model.double()
        torch.testing.assert_close(model(ids).logits.float(), llama(ids).logits)


def test_an_adaptor_that_changes_the_result_is_taken_back(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "rms_norm", lambda x, weight, eps: x)
    with pytest.raises(DeeplinkError, match="computes something else with dlinfer's ops: off by"):
        dlinfer.apply(llama)
    assert "forward" not in vars(llama.model.norm)
    assert llama.config._attn_implementation != "dlinfer"


def test_a_model_without_an_adaptor_is_told() -> None:
    with pytest.raises(DeeplinkError, match=r"no adaptor for torch.nn.modules.linear.Linear"):
        dlinfer.apply(torch.nn.Linear(2, 2))
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)
    with pytest.raises(DeeplinkError, match="knows no layer of GPT2LMHeadModel"):
        dlinfer.apply(transformers.GPT2LMHeadModel(config))
