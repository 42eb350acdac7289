"""Every test has its own cache, and no graph stays eager because it is small."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DICP_MEASURE", "0")
    torch.compiler.reset()
    yield
    torch.compiler.reset()
