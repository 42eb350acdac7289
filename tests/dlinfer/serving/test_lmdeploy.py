"""LMDeploy on dlinfer's ops gives the tokens of stock transformers, in every mode of its engine."""

import importlib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.frameworks
pytest.importorskip("lmdeploy", reason="not installed: scripts/frameworks lmdeploy")
runs: Any = importlib.import_module("tests.dlinfer.serving.runs")


@pytest.fixture(scope="module", params=runs.MODELS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.getbasetemp() / "models"
    folder.mkdir(exist_ok=True)
    return {"model": request.param, **runs.lmdeploy(request.param, folder)}


@pytest.mark.parametrize("mode", runs.MODES)
def test_tokens_are_those_of_transformers(served: Any, mode: str) -> None:
    run = served[mode]
    assert run["tokens"] == run["expected"]
    assert len({token for row in run["tokens"] for token in row}) > 20  # they say something


def test_each_mode_is_what_it_says(served: Any) -> None:
    """A prefix is found again, where LMDeploy searches one; a long prompt comes in parts; decoding
    is two graphs, made before the first request: one row, and several.
    """
    sought = (served["model"], "prefix caching") not in runs.NOTES
    assert bool(served["prefix caching"]["cached"]) == sought
    assert served["eager"]["cached"] == 0
    if served["model"] != "mistral":  # the published calls know no window: it does without them
        assert "paged_prefill_attention" in served["chunked prefill"]["calls"]
        assert "paged_prefill_attention" not in served["eager"]["calls"]
    assert served["graph"]["graphs"] == 2
    assert served["graph"]["graphs while serving"] == 0
