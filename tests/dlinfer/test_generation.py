"""`generate` of a model with dlinfer's ops: the fast loop gives what transformers' own gives."""

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dlinfer

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
checks: Any = importlib.import_module("tests.dlinfer.models_transformers")
generation: Any = importlib.import_module("dlinfer.framework.transformers.generation")
GREEDY = {"max_new_tokens": 20, "do_sample": False}


@pytest.fixture(scope="module")
def prompts() -> dict[str, Tensor]:
    rows = torch.randint(3, 90, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(rows)
    mask[0, :4], mask[2, :1] = 0, 0
    return {"input_ids": rows, "attention_mask": mask}


@pytest.fixture
def pair() -> Any:
    """A model with the ops, and its stock twin."""
    model, stock = checks.built("llama"), checks.built("llama")
    dlinfer.apply(model, check=False)
    return model, stock


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the loop: what it leaves to transformers is an error."""

    def refuse(model: Any, reason: str) -> None:
        raise AssertionError(f"not by the loop: {reason}")

    monkeypatch.setattr(generation, "_told", refuse)
    yield


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "name", ["llama", "mistral", pytest.param("mixtral", marks=pytest.mark.slow)]
)
def test_greedy_tokens_of_padded_rows_are_stocks(name: str, prompts: Any) -> None:
    model, stock = checks.built(name), checks.built(name)
    dlinfer.apply(model, check=False)
    assert torch.equal(model.generate(**prompts, **GREEDY), stock.generate(**prompts, **GREEDY))
    ids = prompts["input_ids"][1:2]
    assert torch.equal(model.generate(ids, **GREEDY), stock.generate(ids, **GREEDY))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("check", [1, 16])
def test_rows_end_where_stocks_do_and_are_padded(
    check: int, pair: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "CHECK", check)
    model, stock = pair
    plain = stock.generate(**prompts, **GREEDY)[:, 9:]
    ends = [int(plain[0, 3]), int(plain[1, 6]), int(plain[2, 5])]
    how = {**GREEDY, "eos_token_id": ends, "pad_token_id": 1}
    expected = stock.generate(**prompts, **how)
    assert expected.shape[1] < 9 + 20
    assert torch.equal(model.generate(**prompts, **how), expected)


@pytest.mark.usefixtures("alone")
def test_sampled_tokens_are_stocks_for_the_same_seed(pair: Any, prompts: Any) -> None:
    model, stock = pair
    how = {"max_new_tokens": 8, "do_sample": True, "temperature": 1.3, "top_k": 9, "top_p": 0.8}
    found = []
    for one in (model, stock):
        torch.manual_seed(3)
        found.append(one.generate(**prompts, **how))
    assert torch.equal(*found)


@pytest.mark.usefixtures("alone")
def test_a_streamer_gets_every_token(pair: Any, prompts: Any) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def put(self, value: Tensor) -> None:
            self.got.append(value.tolist())

        def end(self) -> None:
            self.got.append("end")

    ids, seen = prompts["input_ids"][:1], []
    for one in pair:
        seen.append(Streamer())
        one.generate(ids, **GREEDY, streamer=seen[-1])
    assert seen[0].got == seen[1].got and len(seen[0].got) == 22


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"num_beams": 2}, "the option num_beams=2"),
        ({"repetition_penalty": 1.5}, "the option repetition_penalty=1.5"),
        ({"logits_processor": [lambda ids, scores: scores]}, "the argument logits_processor"),
        ({"return_dict_in_generate": True}, "the option return_dict_in_generate=True"),
    ],
)
def test_what_the_loop_lacks_is_transformers_own_and_logged_once(
    more: Any, reason: str, pair: Any, prompts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    generation._log.cache_clear()
    model, stock = pair
    with caplog.at_level(logging.INFO, "dlinfer"):
        found = [model.generate(**prompts, **GREEDY, **more) for _ in range(2)]
    expected = stock.generate(**prompts, **GREEDY, **more)
    told = [m for m in caplog.messages if m.startswith("generate of")]
    assert told == [f"generate of LlamaForCausalLM is transformers' own: {reason}"]
    tokens = [getattr(one, "sequences", one) for one in (*found, expected)]
    assert torch.equal(tokens[0], tokens[2]) and torch.equal(tokens[1], tokens[2])


def test_models_without_such_a_cache_keep_their_generate() -> None:
    assert generation.why_not(checks.built("internvl")) == "the model takes more than tokens"
    model = checks.built("llama")
    applied = dlinfer.apply(model, check=False)
    assert generation.why_not(model) == ""
    applied.undo()
    assert "generate" not in vars(model)
