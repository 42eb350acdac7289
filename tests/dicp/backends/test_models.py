"""Whole models on the backends: judged against float64, one compile for several sizes."""

import pytest

from dicp.conformance.model_check import DTYPES, check
from dicp.conformance.models import MODELS, OF_TRANSFORMERS, PLAIN
from scripts import dicp_models
from tests.dicp import model_table
from tests.dicp.model_table import BACKENDS


def right(name: str, backend: str, dtype: str, work: str, status: str = "right") -> None:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers", reason="the extra `models` is not installed")
    found = check(name, BACKENDS[backend], dtype, work)
    assert (found.status, found.text) == (status, "")


@pytest.mark.parametrize("name", ["plain llama", "small resnet"])
def test_one_compile_serves_several_batches_and_lengths(name: str) -> None:
    right(name, "onnxrtgraph", "float32", "dynamic")


@pytest.mark.slow
@pytest.mark.parametrize("work", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["onnxrtgraph", "openvinograph"])
def test_a_model_is_right(backend: str, name: str, dtype: str, work: str) -> None:
    right(name, backend, dtype, work)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # inductor's own imports
@pytest.mark.slow  # inductor compiles C++ for a minute
@pytest.mark.parametrize("name", [*MODELS, "mlp", "small resnet"])
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # torch cannot trace mixtral's
def test_gradients_of_a_model_are_right(name: str) -> None:
    status = "eager" if name == "mixtral" else "right"
    right(name, "inductorgraph", "float32", "training", status)


def test_the_page_of_models_is_that_of_the_table() -> None:
    rows = model_table.kept()
    assert dicp_models.PAGE.read_text("utf-8") == dicp_models.page(
        rows, dicp_models.PAGE.read_text("utf-8")
    )
    assert {row.model for row in rows} <= set(MODELS | PLAIN)
    assert {row.backend for row in rows} <= set(BACKENDS)
    assert [row for row in rows if row.status == "wrong" and not row.text] == []
    assert all(row.run for row in rows)
