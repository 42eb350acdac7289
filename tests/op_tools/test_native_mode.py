"""The function mode where it is native: the same calls are seen, and torch is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from op_tools import engine, kernels
from tests.op_tools.test_engine import Watcher, vector

PLAIN = torch.overrides.handle_torch_function


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    assert kernels.helper() is not None
    yield
    assert vars(F)["handle_torch_function"] is PLAIN
    assert "__torch_function__" not in vars(engine._function_mode)
    assert torch.overrides._get_current_function_mode_stack() == []


def is_native() -> bool:
    method = vars(engine._function_mode)["__torch_function__"]
    return type(method).__name__ == "Mode" and vars(F)["handle_torch_function"] is not PLAIN


def test_functions_of_c_and_of_python_are_seen_once_with_what_they_were_given() -> None:
    x = vector(1.0, 2.0)
    with Watcher() as seen:
        assert is_native()
        for _ in range(2):  # decided, and then known
            F.layer_norm(x, (2,), eps=0.5)
            torch.add(x, x, alpha=2)
            x.norm(p=1)
    names = ["torch.nn.functional.layer_norm", "torch.add", "torch.Tensor.norm"]
    assert seen.names == names * 2
    given = [(call.args[1:], call.kwargs) for call in seen.calls[3:]]
    assert given[0][0] == ((2,),) and given[0][1]["eps"] == 0.5
    assert given[1][1] == {"alpha": 2} and given[2][1]["p"] == 1


def test_an_error_is_the_programs_and_the_mode_is_there_afterwards() -> None:
    x = vector(1.0, 2.0)
    with Watcher() as seen:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="normalized_shape"):
                F.layer_norm(x, (7,))
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            F.layer_norm(x)  # type: ignore[call-arg]
        torch.neg(x)
    assert seen.names[-1] == "torch.neg"


class Other(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inside", [False, True])
def test_the_programs_own_mode_sees_the_calls_too(inside: bool) -> None:
    tool, other, x = Watcher(), Other(), vector(1.0, 2.0)
    first, second = (tool, other) if inside else (other, tool)
    with first, second:
        F.layer_norm(x, (2,))
        F.gelu(x)
    assert tool.names == ["torch.nn.functional.layer_norm", "torch.nn.functional.gelu"]
    assert [name for name in other.seen if name in ("layer_norm", "gelu")] == ["layer_norm", "gelu"]


class Refuses(torch.Tensor):
    """A tensor whose class has no answer."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_what_nobody_implements_is_told_as_torch_tells_it() -> None:
    x = torch.ones(2).as_subclass(Refuses)
    messages = []
    for tool in (None, Watcher()):
        with pytest.raises(TypeError) as raised, tool or torch.enable_grad():
            F.layer_norm(x, (2,))
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]


def test_a_compiled_function_is_one_graph_with_it() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(torch.relu(x), (2,)) * 2 + F.gelu(x)

    x = torch.tensor([-1.0, 2.0])
    expected = function(x)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with Watcher():
        assert is_native()
        for _ in range(3):
            assert torch.equal(compiled(x), expected)
    assert len(graphs) == 1
