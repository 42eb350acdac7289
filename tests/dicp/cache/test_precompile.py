"""With torch's `caching_precompile`, a later process does not trace compiled functions."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _reset_precompile_entries
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from dicp import Backend
from dicp.dynamo_bridge import compile_fx, report
from dicp.dynamo_bridge.cache import guard_identity, precompile
from tests.dicp import toy


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.inner(x)[:, :3])


class Acting(nn.Module):
    """Calls a function that it was given."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.act(x))


def plain(x: Tensor) -> Tensor:
    return x + 1


ALIAS = torch.cos


class Aliased(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ALIAS(plain(x))


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
    """Remove all state of an earlier process from this one."""
    torch.compiler.reset()
    PrecompileContext.clear()
    for model in (Scaled, Acting, Aliased):
        _reset_precompile_entries(model.forward.__code__)


def process(model: nn.Module, x: Tensor, **options: Any) -> int:
    """Run a new process; return its output and the number of traced frames."""
    forget()
    counters.clear()
    backend: Backend = compile_fx.find("")
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, options=options)
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


def test_what_calls_a_function_of_its_own_is_traced_again(made: list[int]) -> None:
    x = torch.randn(2, 4)
    assert process(Acting(torch.cos), x) == 1
    assert process(Acting(torch.exp), x) == 1


def test_a_name_that_is_bound_to_another_function_is_traced_again(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    assert process(Aliased(), x) == 1
    assert process(Aliased(), x) == 0
    monkeypatch.setattr(f"{__name__}.ALIAS", torch.exp)
    assert process(Aliased(), x) == 1


def test_other_options_are_not_those_of_an_earlier_process(made: list[int]) -> None:
    x = torch.randn(2, 4)
    assert process(Scaled(), x) == 1
    assert process(Scaled(), x, verify=True) == 1
    assert process(Scaled(), x) == 0


def _holding(x: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor + x


HOLDING, BOUND = _holding(1.0), nn.Linear(2, 2).forward


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("G['torch'].cos", True),
        (
            "G['nn'].functional.max_pool2d",
            True,
        ),  # holds two functions, which torch's version identifies
        ("G['plain']", True),
        ("G['__builtins_dict___0']['len']", True),
        ("G['__import_torch_dot_nn'].Linear", True),
        ("G['HOLDING']", False),
        ("G['BOUND']", False),
        ("L['self'].act", False),
        ("G['gone']", False),
    ],
)
def test_only_what_a_name_identifies_has_one(source: str, told: bool) -> None:
    assert (guard_identity.named([source], globals()) is not None) == told
