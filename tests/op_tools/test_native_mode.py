"""The function mode where it is native: the same calls are seen, and torch is left as it was."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from op_tools import engine, kernels, modules
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


class Fails(nn.Module):
    """Says where it is called, by name and by place, and may fail."""

    def forward(self, x: Any, *, fails: bool = False) -> tuple[Any, str]:
        if fails:
            raise KeyError("the program's own")
        return x, modules.path()


def frames_of_ours(call: Callable[[], object]) -> int:
    """Frames of Python that following a module's call takes."""
    files: list[str] = []
    sys.setprofile(lambda frame, event, arg: files.append(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    return files.count(str(modules.__file__))


def test_modules_are_followed_without_a_frame_of_python() -> None:
    inner, plain = Fails(), nn.Module.__call__
    outer = nn.Sequential(OrderedDict(a=nn.Sequential(OrderedDict(b=inner))))
    with Watcher():
        assert isinstance(nn.Module.__call__, FunctionType) and nn.Module.__call__ is not plain
        assert outer(1) == (1, "a.b")
        assert inner(x=2, fails=False) == nn.Module.__call__(inner, 2) == (2, "a.b")
        assert frames_of_ours(lambda: outer(1)) == 2 * 1  # `path`, which is asked for: in and out
        with pytest.raises(KeyError, match="the program's own"):
            inner(1, fails=True)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            inner()
        with pytest.raises(TypeError, match="self"):
            nn.Module.__call__()
        assert modules.path() == ""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(outer(3)))
        thread.start()
        thread.join()
    assert found == [(3, "a.b")]
    assert nn.Module.__call__ is plain and outer(1) == (1, "")


def test_a_module_that_is_gone_leaves_nothing_behind() -> None:
    with Watcher():
        module = Fails()
        module(1)
        gone, stale = weakref.ref(module), weakref.ref(nn.Module.__call__)
        del module
    gc.collect()
    assert gone() is None and stale() is None


class Halves(nn.Module):
    """Two graphs, with a module in each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.LayerNorm(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        torch._dynamo.graph_break()
        return torch.relu(self.two(y))


def test_a_compiled_module_has_the_graphs_that_it_has_without() -> None:
    model, x = Halves().requires_grad_(False), torch.ones(3, 2)

    def graphs() -> int:
        found = []
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=lambda graph, _: found.append(graph) or graph)
        assert torch.equal(compiled(x), model(x))
        return len(found)

    plain = graphs()
    with Watcher():
        assert nn.Module.__call__.__module__ == modules.__name__
        assert [graphs(), graphs()] == [plain, plain] == [2, 2]  # before it has a name, and after
