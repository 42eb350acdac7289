"""A model of transformers with dlinfer's ops gives the tokens that it gave without them."""

import copy
import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dlinfer
from deeplink.errors import DeeplinkError, NoKernelError
from dlinfer import fused
from dlinfer.framework import internlm2

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

transformers_cache: Any = importlib.import_module("dlinfer.framework.transformers.cache")
transformers_attention: Any = importlib.import_module("dlinfer.framework.transformers.attention")
importlib.import_module("torch_dipu")  # before the first gradient: torch counts devices then
checks: Any = importlib.import_module("tests.dlinfer.models_transformers")


class Counted:
    """The ops, and how many times each was called."""

    def __init__(self, ops: Any, called: Counter[str]) -> None:
        self.ops, self.called = ops, called

    def __getattr__(self, name: str) -> Any:
        self.called[name] += 1
        return getattr(self.ops, name)


@pytest.fixture(scope="module")
def llama() -> Any:
    return checks.built("llama")


@pytest.mark.parametrize("name", ["Llama", pytest.param("Qwen2", marks=pytest.mark.slow)])
def test_generated_tokens_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = checks.built(name.lower())
    expected = checks.tokens(model, "generate")
    applied = dlinfer.apply(model)
    assert applied.layers == {
        f"{name}RMSNorm": 5,
        f"{name}MLP": 2,
        f"{name}Attention": 2,
        f"{name}DecoderLayer": 2,
        "Linear": 15,
    }
    assert applied.difference is not None and applied.difference < 1e-4
    monkeypatch.setenv("DLINFER_STRICT", "1")  # every op by the CPU's kernels
    assert checks.tokens(model, "generate") == expected


def test_requests_in_batches_have_the_same_tokens(llama: Any) -> None:
    """Run steps of prompts alone, of prompts in pieces with other tokens, and of one token each."""
    other = checks.built("llama")
    expected = checks.tokens(llama, "generate_batch")
    applied = dlinfer.apply(llama)
    called = Counter[str]()
    attention = transformers_attention.fused
    try:
        transformers_attention.fused = Counted(attention, called)
        assert checks.tokens(llama, "generate_batch") == expected
    finally:
        transformers_attention.fused = attention
    assert called.keys() == {
        "fill_kv_cache",
        "prefill_attention",
        "paged_prefill_attention",
        "paged_decode_attention",
    }
    assert llama.config._attn_implementation == "dlinfer"  # as `generate` has it, again
    assert other.init_continuous_batching.__func__ is type(other).init_continuous_batching
    applied.undo()
    assert "init_continuous_batching" not in vars(llama)


def test_a_cache_that_is_too_small_is_reported_by_the_requests(llama: Any) -> None:
    applied = dlinfer.apply(llama, check=False)
    config = transformers.GenerationConfig(max_new_tokens=9, do_sample=False, eos_token_id=-1)
    small = transformers.ContinuousBatchingConfig(page_size=4, num_blocks=2, max_batch_tokens=16)
    (result,) = llama.generate_batch([[5, 6, 7]], config, small).values()
    assert "out of cache blocks: 2 blocks of 4 tokens" in str(result.error)
    applied.undo()


def _names(call: Callable[[], object]) -> set[str]:
    with torch.profiler.profile() as profile:
        call()
    return {event.name for event in profile.events() if event.name.startswith("dlinfer::")}


def test_only_the_model_that_was_given_changes_and_undo_takes_it_back(llama: Any) -> None:
    other, ids = type(llama)(llama.config).eval(), torch.tensor([[5, 6, 7]])  # of one config
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
    model, ids = checks.built("llama"), torch.tensor([[5, 6, 7]])
    dlinfer.apply(model)
    doubled = {name: 2 * value for name, value in llama.state_dict().items()}
    with torch.no_grad():
        for target in (model, llama):
            target.load_state_dict(doubled)
        torch.testing.assert_close(model(ids).logits, llama(ids).logits)
        model.double()
        torch.testing.assert_close(model(ids).logits.float(), llama(ids).logits)


def test_weights_lie_as_the_kernels_want_them_and_are_saved_as_they_were(
    llama: Any, tmp_path: Path
) -> None:
    """[in, out] in memory, but for one that is also looked up, row by row."""
    config = copy.deepcopy(llama.config)
    config.tie_word_embeddings = True
    model = type(llama)(config).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    applied = dlinfer.apply(model)
    linears = {m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)}
    looked_up = model.model.embed_tokens.weight
    assert looked_up in linears and looked_up.is_contiguous()
    assert all(weight.stride(0) == 1 for weight in linears - {looked_up})
    model.save_pretrained(tmp_path)
    read = type(model).from_pretrained(tmp_path).state_dict()
    applied.undo()
    assert all(weight.is_contiguous() for weight in linears)
    for name, value in before.items():
        assert torch.equal(read[name], value) and torch.equal(model.state_dict()[name], value)


def test_keys_of_a_step_before_never_change_and_memory_is_not_copied_for_each_token() -> None:
    def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, 1, count, 4), torch.randn(2, 1, count, 4)

    cache, stock = transformers.DynamicCache(), transformers.DynamicCache()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(count: int) -> None:
        new = tokens(count)
        found = transformers_cache.extended(cache, *new, 0)
        for mine, expected in zip(found, stock.update(*new, 0), strict=True):
            assert torch.equal(mine, expected)
            seen.append((mine, mine.clone()))

    for _ in range(4):
        step(3)
    places = {held.data_ptr() for held, _ in seen[2:]}
    assert len(places) == 2  # one for keys, one for values, after the first
    for one in (cache, stock):
        one.crop(-2)
    step(1)
    for one in (cache, stock):
        one.batch_select_indices(torch.tensor([1, 0]))
    step(1)
    shared = copy.copy(cache.layers[0])
    step(1)
    cache.layers[0], stock.layers[0].keys = shared, stock.layers[0].keys[:, :, :-1]
    stock.layers[0].values = stock.layers[0].values[:, :, :-1]
    step(1)
    with torch.inference_mode():
        step(1)
    step(1)
    assert all(torch.equal(held, kept) for held, kept in seen)


def test_weights_stay_plain_tensors_when_first_used_in_inference_mode() -> None:
    model = checks.built("llama")
    dlinfer.apply(model, check=False)
    with torch.inference_mode():
        model(torch.tensor([[5, 6, 7]]))
    assert not any(parameter.is_inference() for parameter in model.parameters())


def test_an_adaptor_that_changes_the_result_is_taken_back(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "rms_norm", lambda x, weight, eps: x)
    with pytest.raises(DeeplinkError, match="computes something else with dlinfer's ops: off by"):
        dlinfer.apply(llama)
    assert "forward" not in vars(llama.model.norm)
    assert llama.config._attn_implementation != "dlinfer"


def test_in_half_types_what_rounding_alone_does_is_allowed(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = importlib.import_module("dlinfer.framework.transformers")
    monkeypatch.setitem(framework.TOLERANCE, torch.bfloat16, 0.0)
    model = copy.deepcopy(llama).bfloat16()
    applied = dlinfer.apply(model)
    assert 0 < applied.difference < framework.MOST
    applied.undo()
    monkeypatch.setattr(fused, "rms_norm", lambda x, weight, eps: x)
    with pytest.raises(DeeplinkError, match="computes something else"):
        dlinfer.apply(model)


def test_which_of_two_equal_experts_is_taken_does_not_count_and_a_wrong_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = checks.built("mixtral")
    model.set_attn_implementation("eager")  # which makes something else of padding
    for layer in model.model.layers:
        layer.mlp.gate.weight.data[1] = layer.mlp.gate.weight[0]  # for every token as good
    gating, turned = fused.moe_gating, []

    def other(*given: Any) -> Any:
        weights, experts = gating(*given)
        one = ((experts < 2).sum(-1, keepdim=True) == 1) & (experts < 2)
        turned.append(int(one.sum()))
        return weights, torch.where(one, 1 - experts, experts)

    monkeypatch.setattr(fused, "moe_gating", other)
    applied = dlinfer.apply(model)
    assert sum(turned) > 0 and applied.difference < 1e-4
    applied.undo()
    monkeypatch.setattr(
        fused, "moe_gating", lambda *given: (gating(*given)[0], 3 - gating(*given)[1])
    )
    with pytest.raises(DeeplinkError, match="computes something else"):
        dlinfer.apply(model)


def test_the_check_leaves_aside_what_a_model_keeps_of_its_last_image() -> None:
    model = checks.built("qwen2_vl")
    image = {name: torch.cat([given] * 4) for name, given in next(checks.images(model)).items()}
    with torch.no_grad():
        model(**image)  # four rows: the check has two
    kept = model.model.rope_deltas
    dlinfer.apply(model)
    assert kept.shape[0] == 4 and model.model.rope_deltas is kept


def test_a_model_without_an_adaptor_is_reported() -> None:
    with pytest.raises(DeeplinkError, match=r"no adaptor for torch.nn.modules.linear.Linear"):
        dlinfer.apply(torch.nn.Linear(2, 2))
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)
    known = "knows no layer of GPT2LMHeadModel(.|\n)*Hint: families that it knows: Llama, Mistral"
    with pytest.raises(DeeplinkError, match=known):
        dlinfer.apply(transformers.GPT2LMHeadModel(config))


def test_a_type_without_kernels_is_reported_and_refused_when_strict(
    llama: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = checks.built("llama").half()
    monkeypatch.setenv("DLINFER_STRICT", "1")
    with pytest.raises(NoKernelError, match=r"'cpu' does not run rms_norm: .* not Half"):
        dlinfer.apply(model)
    assert "forward" not in vars(model.model.norm)  # as it was
    monkeypatch.delenv("DLINFER_STRICT")
    dlinfer.apply(model)
    assert any("not by cpu: its kernel has float32 and bfloat16" in m for m in caplog.messages)


def test_a_release_that_is_not_tested_is_reported_and_checked(
    llama: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    adaptor = importlib.import_module("dlinfer.framework.transformers")
    monkeypatch.setattr(adaptor, "transformers", SimpleNamespace(__version__="6.0.0"))
    applied = dlinfer.apply(llama)
    assert "tested with transformers 5.17, 5.22, 5.23, not 6.0.0: the check decides" in caplog.text
    assert applied.difference is not None
    applied.undo()


def test_a_model_on_the_reference_device_runs_through_the_ops_there(llama: Any) -> None:
    model = checks.built("llama")
    expected = checks.tokens(model, "generate")
    dlinfer.apply(model.to("dipu"))
    ids = torch.tensor([[5, 6, 7]], device="dipu")
    with torch.no_grad():
        assert "dlinfer::prefill_attention" in _names(lambda: model(ids))
    assert checks.tokens(model, "generate") == expected


def test_an_internlm2_is_loaded_as_the_llama_that_it_is(llama: Any, tmp_path: Path) -> None:
    checks.write_internlm2(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(
            internlm2.load(tmp_path)(ids).logits, checks.built("llama")(ids).logits
        )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    with pytest.raises(DeeplinkError, match="holds a model of type 'llama', not 'internlm2'"):
        internlm2.load(tmp_path)
