"""Models of transformers with dlinfer's ops, and their table in the documents."""

import importlib
from typing import Any

import pytest

from scripts import dlinfer_models
from tests.dlinfer import support

NAMES = list(dict.fromkeys(row.model for row in support.kept() if row.framework == "transformers"))


def test_the_table_of_docs_is_that_of_the_file() -> None:
    rows = support.kept()
    assert len({row.key for row in rows}) == len(rows)
    assert {row.status for row in rows} <= set(support.STATUS)
    before = dlinfer_models.PAGE.read_text("utf-8")
    assert dlinfer_models.page(rows, before) == before


@pytest.fixture(scope="module")
def checks() -> Any:
    pytest.importorskip("transformers", reason="the extra `models` is not installed")
    return importlib.import_module("tests.dlinfer.models_transformers")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_stock_transformers_in_another_process(name: str, checks: Any) -> None:
    kept = {row.key: row.status for row in support.kept()}
    for found in checks.measured([name]):
        assert kept[found.key] == found.status, found


def test_every_model_is_in_the_table(checks: Any) -> None:
    assert {*checks.MODELS, *checks.REASONS} == set(NAMES)
