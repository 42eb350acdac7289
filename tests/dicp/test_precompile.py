"""With torch's `caching_precompile`, a later process does not trace what is compiled already."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _reset_precompile_entries
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from dicp import Backend
from dicp.dynamo_bridge import compile_fx, precompile, report
from tests.dicp import toy


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.inner(x)[:, :3])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts what is compiled by a backend that is found by its name, as an installed one is."""
    compiled: list[int] = []

    def compile_blob(blob: bytes) -> bytes:
        compiled.append(1)
        return blob

    backend = toy.make(compile=compile_blob)
    for module in (compile_fx, precompile):
        monkeypatch.setattr(module, "find", lambda name: backend)
    with torch._dynamo.config.patch(caching_precompile=True), fresh_cache():
        yield compiled
    forget()


def forget() -> None:
    """Nothing of an earlier process is in this one."""
    torch.compiler.reset()
    PrecompileContext.clear()
    _reset_precompile_entries(Scaled.forward.__code__)


def process(model: nn.Module, x: Tensor) -> int:
    """What a process does that starts now, and how many frames it traces; its results are right."""
    forget()
    counters.clear()
    backend: Backend = compile_fx.find("")
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    return counters["stats"]["unique_graphs"]


def test_a_later_process_does_not_trace(made: list[int]) -> None:
    assert process(Scaled(), torch.randn(2, 4)) == 1
    assert process(Scaled(), torch.randn(2, 4)) == 0  # other weights
    assert list(report.RECORDS[-1].seconds) == ["load"]
    assert len(made) == 1
    assert process(Scaled(), torch.randn(3, 4)) == 1  # other sizes


def test_what_is_gone_from_the_cache_is_compiled_anew(made: list[int], tmp_path: Path) -> None:
    process(Scaled(), torch.randn(2, 4))
    shutil.rmtree(tmp_path / "cache" / "toygraph")
    assert process(Scaled(), torch.randn(2, 4)) == 0
    assert len(made) == 2


def test_another_version_of_the_compiler_compiles_anew(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    process(Scaled(), torch.randn(2, 4))
    monkeypatch.setattr(compile_fx.find(""), "version", lambda: "2")
    assert process(Scaled(), torch.randn(2, 4)) == 0
    assert len(made) == 2
