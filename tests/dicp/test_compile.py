"""The pipeline end to end, on a toy backend."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.dicp import toy


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()


def test_a_model_runs_on_the_backend_and_gives_what_eager_gives() -> None:
    backend = toy.make()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(5, 4)
    with torch.no_grad():
        result = torch.compile(model, backend=backend)(x)
        assert torch.equal(result, model(x))
    assert len(backend.loads) == 1  # type: ignore[attr-defined]
