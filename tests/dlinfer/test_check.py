"""dlinfer.check judges a model's logits and names a wrong op; dlinfer.report names the kernels."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import dlinfer
from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError
from deeplink.vendor import Found, Vendor
from dlinfer import kernels
from dlinfer.framework.applied import applied_to

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
checks: Any = importlib.import_module("tests.dlinfer.models_transformers")
PROMPTS = ([5, 6, 7, 8, 9, 10], [11, 12, 13])


def _llama() -> Any:
    """A model of one layer, so that the envelope of a position is soon computed."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**checks.SMALL | {"num_hidden_layers": 1})
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A vendor that serves the CPU, without kernels yet; the others run by their references."""
    module = ModuleType("faulty_fused")
    monkeypatch.setitem(sys.modules, "faulty_fused", module)
    vendor = Vendor("faulty", "cpu", lambda: True, fused="faulty_fused")
    row = Found("faulty", vendor, "available", "", "")
    monkeypatch.setattr(vendors, "discover", lambda: [row])
    monkeypatch.setattr(vendors, "find", lambda name: row)
    monkeypatch.setattr(kernels, "_fallbacks", {})
    caches = (kernels._served, kernels._loaded)
    for cache in caches:
        cache.cache_clear()
    with dlinfer.using("faulty"):
        yield module
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_model_passes_at_every_position(dtype: torch.dtype) -> None:
    model = _llama().to(dtype)
    found = dlinfer.check(model, PROMPTS, new_tokens=2)
    assert found.passed, found
    assert [p.position for p in found.positions] == [*range(8), *range(5)]
    assert str(found).startswith(
        "LlamaForCausalLM: the logits of all 13 positions are as close to float64"
    )
    assert "forward" not in vars(model.model.norm)  # as it was


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen3_next", "gpt_oss", "deepseek_v32"])
def test_healthy_models_of_other_kinds_pass(name: str) -> None:
    release = tuple(map(int, transformers.__version__.split(".")[:2]))
    if name != "mixtral" and release < (5, 23):
        pytest.skip("the layers are those of transformers 5.23")
    found = dlinfer.check(checks.built(name).bfloat16(), PROMPTS, new_tokens=2)
    assert found.passed, found


def test_a_model_with_the_ops_keeps_them() -> None:
    model = _llama()
    dlinfer.apply(model, check=False)
    assert dlinfer.check(model, PROMPTS[:1], new_tokens=2).passed
    assert applied_to(model) is not None and "forward" in vars(model.model.norm)
    applied = applied_to(model)
    assert applied is not None
    applied.undo()
    assert applied_to(model) is None and "forward" not in vars(model.model.norm)


def test_the_kernel_that_is_wrong_when_decoding_is_named(faulty: Any) -> None:
    meaning = dlinfer.OPS["paged_decode_attention"].meaning

    def paged_decode_attention(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_lens: Tensor,
        max_kv: int, scale: float, window: int = 0, softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
        k_scales: Tensor | None = None, v_scales: Tensor | None = None,
        k_zeros: Tensor | None = None, v_zeros: Tensor | None = None,
    ) -> Any:  # fmt: skip
        shorter = kv_lens - (kv_lens > 8).int()  # it forgets the last key of long rows
        return meaning(q, k_cache, v_cache, block_table, shorter, max_kv, scale)

    faulty.paged_decode_attention = paged_decode_attention
    model = _llama()
    found = dlinfer.check(model, PROMPTS, new_tokens=4)
    assert not found.passed and found.wrong is not None
    assert {(p.prompt, p.position) for p in found.failed} == {(0, 8), (0, 9)}
    assert (found.wrong.op, found.wrong.kernel) == ("paged_decode_attention", "faulty")
    assert found.wrong.layer == "model.layers.0.self_attn"
    text = str(found)
    assert "2 of 17 positions differ" in text and "prompt 0, position 8" in text
    assert "Cause: paged_decode_attention of faulty, in model.layers.0.self_attn" in text
    assert "--ops paged_decode_attention tries this op's hard cases" in text


def test_an_adaptor_that_is_wrong_with_right_ops_is_reported_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers: Any = importlib.import_module("dlinfer.framework.transformers.layers")
    monkeypatch.setitem(
        layers.FORWARDS,
        "LlamaMLP",
        lambda self, x: self.down_proj(2 * x[..., :1] + self.gate_proj(x)),
    )
    found = dlinfer.check(_llama(), PROMPTS[1:], new_tokens=1)
    assert not found.passed and found.wrong is None
    assert "Cause: no op alone." in str(found)


def test_prompts_are_token_ids() -> None:
    model = _llama()
    for wrong, said in (("a text", "got a text"), ([], "without token ids")):
        with pytest.raises(DeeplinkError, match=said):
            dlinfer.check(model, [wrong])
    with pytest.raises(DeeplinkError, match="needs prompts"):
        dlinfer.check(model, [])


def test_the_report_names_the_kernels_and_why_others_did_not_run(faulty: Any) -> None:
    model = _llama()
    with pytest.raises(DeeplinkError, match=r"none of dlinfer's ops(.|\n)*Hint: call"):
        dlinfer.report(model)
    faulty.silu_and_mul = dlinfer.OPS["silu_and_mul"].meaning
    dlinfer.apply(model, check=False)
    found = dlinfer.report(model)
    assert found.kernels["silu_and_mul"] == {"faulty": 2}  # a prompt, and one more token
    assert found.kernels["paged_decode_attention"] == {"reference": 1}
    assert "rms_norm ran by its reference" in str(found) and "it has no kernel for it" in str(found)
    assert "Graph: none: cpu has no graphs of launches" in str(found)
