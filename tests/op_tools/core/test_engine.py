"""What a tool sees: levels, threads, nesting, order of stopping, and a program left as it was."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import op_tools
from op_tools.core import engine, module_stack, native_library, terminal, tool_errors
from op_tools.core.call import Call
from op_tools.core.tool import Observer, Substitute
from tests.torch_dipu.interpreter import output_of


class Watcher(Observer):
    """Keeps the records of the calls it sees."""

    key = "OBSERVE"
    hook = "WatcherHook"
    wants_modules = True

    def begin(self, options: Any) -> None:
        self.calls: list[Call] = []

    def after(self, call: Call, state: Any, result: Any) -> None:
        self.calls.append(call)

    def finish(self, started: Any) -> None:
        pass

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]


class Broken(Watcher):
    """Fails wherever it can."""

    def before(self, call: Call) -> None:
        raise ValueError("before")


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values or (1.0, 2.0), device="dipu")


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("a + a", "torch.Tensor.add"),
        ("2 - a", "torch.Tensor.__rsub__"),
        ("a ** 2", "torch.Tensor.__pow__"),
        ("a == a", "torch.Tensor.__eq__"),
        ("a[0]", "torch.Tensor.__getitem__"),
        ("torch.add(a, a)", "torch.add"),
        ("torch.norm(a)", "torch.functional.norm"),
        ("F.linear(input=m, weight=m)", "torch.nn.functional.linear"),
        ("nn.ReLU()(a)", "torch.nn.functional.relu"),
        ("torch.ops.aten.add.Tensor(a, a)", "aten.add.Tensor"),
        ("torch.zeros(2, device='dipu')", "torch.zeros"),
    ],
)
def test_a_call_has_the_name_that_torch_resolves(expression: str, name: str) -> None:
    scope = {"torch": torch, "F": F, "nn": nn, "a": vector(), "m": vector().reshape(1, 2)}
    with Watcher() as seen:
        eval(expression, scope)
    assert seen.names == [name]


@pytest.mark.parametrize("outside", [True, False])
def test_what_is_made_on_the_default_device_is_seen(outside: bool) -> None:
    with contextlib.ExitStack() as around:
        if outside:  # its mode is below the tool's, and would say the device after it
            around.enter_context(torch.device("dipu"))
        seen = around.enter_context(Watcher())
        if not outside:
            around.enter_context(torch.device("dipu"))
        made = torch.zeros(2), torch.arange(3), torch.tensor([1.0])
        torch.zeros(2, device="cpu")
    assert all(tensor.device.type == "dipu" for tensor in made)
    assert seen.names == ["torch.zeros", "torch.arange", "torch.tensor"]
    assert {call.device.type for call in seen.calls if call.device} == {"dipu"}


def test_questions_about_a_tensor_are_no_calls() -> None:
    a = vector()
    with Watcher() as seen:
        _ = (a.shape, a.dtype, a.numel(), a.stride(), a.is_contiguous(), a.data_ptr(), a.dim())
        a.requires_grad_().register_hook(lambda g: g)
    assert seen.names == []


def test_the_cpu_is_watched_on_request() -> None:
    with Watcher() as device, Watcher(devices=["cpu"]) as cpu:
        _ = torch.ones(2) + 1
        _ = vector() + 1
    assert "torch.Tensor.add" in device.names and "torch.Tensor.add" in cpu.names
    assert device.names.count("torch.Tensor.add") == cpu.names.count("torch.Tensor.add") == 1


def test_the_aten_level_sees_backward_and_optimizer_with_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).to("dipu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with Watcher(level="aten") as seen:
        model(vector().reshape(1, 2)).sum().backward()
        optimizer.step()
    backward = [call for call in seen.calls if call.direction == "backward"]
    relu = next(call for call in backward if call.name == "aten.threshold_backward.default")
    assert relu.module == "1" and relu.site is not None and "test_engine" in relu.site.file
    mm = next(call for call in backward if call.name == "aten.mm.default")
    assert mm.module == "0"
    assert "aten.add_.Tensor" in seen.names  # of the optimizer


def test_a_module_that_came_in_later_has_its_path() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Tanh()])}).to("dipu")
    model.forward = lambda x: [block(x) for block in model["blocks"]]  # type: ignore[method-assign]
    with Watcher() as seen:
        model(vector(1))
        model["blocks"].append(nn.Sigmoid())
        model(vector(1))
    assert [call.module for call in seen.calls][-2:] == ["blocks.0", "blocks.1"]


def test_the_module_level_sees_modules_by_their_paths() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh())).to("dipu")
    with Watcher(level="module") as seen:
        model(vector().reshape(1, 2))
    found = {call.module: call.name for call in seen.calls}
    assert found["0"] == "torch.nn.modules.linear.Linear"
    assert found["1.0"] == "torch.nn.modules.activation.Tanh"


def test_a_recomputation_in_autograds_thread_is_seen() -> None:
    x = vector().requires_grad_()
    with Watcher(ops="torch.sin") as seen:
        checkpoint(lambda t: torch.sin(t).cos(), x, use_reentrant=False).sum().backward()
    assert [call.direction for call in seen.calls] == ["forward", "backward"]


def test_threads_started_meanwhile_are_seen_and_none_is_lost() -> None:
    def work() -> None:
        for _ in range(50):
            torch.add(a, a)

    a = vector()
    with Watcher(ops="torch.add") as seen:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen.calls) == 200
    assert len({call.id for call in seen.calls}) == 200


def test_tools_stop_in_any_order_and_twice() -> None:
    a = vector()
    first, second = Watcher().start(), Watcher().start()
    first.stop()
    torch.add(a, a)
    first.stop()
    second.end()
    torch.add(a, a)
    assert first.names == [] and second.names == ["torch.add"]


def test_other_modes_stay_where_they_are() -> None:
    outer = Watcher().start()
    with torch.device("cpu"):
        outer.stop()
        assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0


def test_a_tool_can_be_started_again() -> None:
    a, tool = vector(), Watcher()
    for _ in range(2):
        with tool:
            torch.add(a, a)
        assert tool.names == ["torch.add"]


def test_an_error_inside_a_tool_is_counted_and_the_program_goes_on() -> None:
    a = vector()
    with Broken(ops="torch.add"):
        assert torch.add(a, 1).tolist() == [2.0, 3.0]
        assert torch.add(a, 1).tolist() == [2.0, 3.0]
    (problem,) = tool_errors.problems()
    assert (problem.op, problem.count) == ("torch.add", 2)
    assert problem.message == "ValueError: before"
    assert "test_engine.py" in problem.trace


def test_an_error_of_the_operator_is_the_programs() -> None:
    with Watcher(), pytest.raises(RuntimeError, match="must match the size"):
        torch.add(vector(1, 2), vector(1, 2, 3))
    assert tool_errors.problems() == []


def test_a_condition_that_fails_is_counted() -> None:
    def condition(a: torch.Tensor) -> bool:
        raise KeyError("no")

    with Watcher(ops="torch.sin", condition=condition) as seen:
        torch.sin(vector())
    assert seen.names == [] and tool_errors.problems()[0].message == "KeyError: 'no'"


def test_the_outer_tool_sees_what_the_inner_one_made() -> None:
    class Doubled(Substitute):
        key, hook = "FALLBACK", "DoubledHook"

        def substitute(self, call: Call) -> Any:
            return call.run() * 2

        def finish(self, started: Any) -> None:
            pass

    class Results(Watcher):
        def after(self, call: Call, state: Any, result: Any) -> None:
            self.results = result.tolist()

    with Doubled(ops="torch.add"), Results(ops="torch.add") as seen:
        torch.add(vector(), 0)
    assert seen.results == [2.0, 4.0]


def test_steps_are_those_of_the_first_optimizer() -> None:
    model = nn.Linear(2, 2).to("dipu")
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with Watcher(ops="torch.nn.functional.linear") as seen:
        for _ in range(3):
            model(vector().reshape(1, 2)).sum().backward()
            one.step()
            two.step()
    assert [call.step for call in seen.calls] == [0, 1, 2]


def test_functional_transforms_and_subclasses_are_left_alone_with_a_reason() -> None:
    with Watcher() as seen:
        torch.func.vmap(torch.sin)(vector())
        torch.func.grad(lambda t: t.sin().sum())(vector())
    assert "torch.sin" not in seen.names
    assert any("torch.func" in reason for reason in tool_errors.skipped())


def test_tensors_without_values_are_left_alone_with_a_reason() -> None:
    with FakeTensorMode(), Watcher() as seen:
        made = torch.empty(2, device="dipu") + 1
    assert made.shape == (2,) and "torch.Tensor.add" not in seen.names
    assert any("FakeTensor" in reason for reason in tool_errors.skipped())


@pytest.mark.parametrize("kind", ["OpCapture", "OpAutoCompare", "OpFallback", "OpDtypeCast"])
def test_the_storage_of_a_tensor_is_no_business_of_a_tool(kind: str) -> None:
    x = torch.zeros(1 << 18, device="dipu")
    with getattr(op_tools, kind)() as tool:
        storage = x.untyped_storage()
        assert tool.started.applied == 0  # to go through its bytes would take a minute
    assert storage.nbytes() == 1 << 20 and storage.data_ptr() == x.data_ptr()


def test_how_gradients_are_wanted_is_no_operator() -> None:
    x = vector(1)
    with Watcher() as seen, torch.no_grad(), torch.profiler.record_function("x"):
        x + 1
    assert seen.names == ["torch.Tensor.add"]


def test_a_function_that_names_no_module_has_a_name() -> None:
    function, x = torch._C._VariableFunctions.unique_dim, vector(2, 1, 2)
    with Watcher() as seen:
        found = function(x, 0)[0]
    assert function.__module__ is None and found.tolist() == [1.0, 2.0]
    assert seen.names == ["torch._VF.unique_dim"]


@pytest.mark.parametrize("level", ["api", "aten"])
def test_a_compiled_function_works_under_a_tool(level: Any) -> None:
    compiled = torch.compile(lambda t: torch.relu(t) * 2, backend="eager")
    with Watcher(level=level):
        assert compiled(vector(-1, 2)).tolist() == [0.0, 4.0]


@pytest.mark.parametrize("first", [True, False], ids=["compiled before", "compiled under it"])
def test_torch_compile_does_not_look_into_what_sees_kernels(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "watch", lambda *given: False)  # by the mode

    def broken(t: torch.Tensor) -> torch.Tensor:
        doubled = t * 2
        torch._dynamo.graph_break()
        return doubled + 1

    torch._dynamo.reset()
    backend = CompileCounterWithBackend("eager")
    compiled, own = torch.compile(broken, backend=backend), 2 * first
    if first:
        compiled(vector(-1, 2))
    with Watcher(level="aten") as seen:
        for _ in range(2):
            assert compiled(vector(-1, 2)).tolist() == [-1.0, 5.0]
    assert backend.frame_count == own  # with a mode about it, torch compiles nothing new
    assert {"aten.mul.Tensor", "aten.add.Tensor"} <= set(seen.names)


def test_a_compiled_module_is_one_graph_under_a_tool_that_follows_modules() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(nn.Sequential(nn.ReLU(), nn.Identity()), backend=backend)
    with Watcher():
        assert compiled(vector(-1, 2)).tolist() == [0.0, 2.0]
    assert len(graphs) == 1


def test_what_others_put_around_a_modules_call_stays() -> None:
    plain, calls = nn.Module.__call__, []

    def around(self: nn.Module, *args: Any) -> Any:
        calls.append(module_stack.path())
        return before(self, *args)

    layer = nn.Sequential(nn.Identity())
    module_stack.follow(None, True)
    before = nn.Module.__call__
    nn.Module.__call__ = around  # type: ignore[method-assign]
    try:
        module_stack.follow(None, False)
        assert nn.Module.__call__ is around
        for paths in (True, False):
            module_stack.follow(None, paths)
            assert layer(1) == 1
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]
    assert calls == ["Sequential", "0", "", "Sequential"]  # the second time by the one within


def test_a_tool_that_is_never_stopped_reports_at_the_end() -> None:
    source = """
import torch, torch_dipu, op_tools
op_tools.OpFallback(ops="torch.sin").start()
torch.sin(torch.ones(2, device="dipu"))
"""
    assert "OpFallback: 1 call of 1 operator ran on the CPU" in output_of(source)


def test_nothing_but_the_engine_holds_a_mode_after_the_last_tool() -> None:
    """The end of Python waits for those who do."""
    source = """
import torch, torch_dipu, op_tools
from op_tools.core import engine
with op_tools.OpTimeMeasure():  # lists torch's functions while its own stands for one of them
    torch.sin(torch.ones(2, device="dipu"))
print(engine._holders() - engine._ALONE)
"""
    assert output_of(source).splitlines()[-1] == "0"


def test_a_forked_worker_is_not_watched() -> None:
    source = """
import os, torch, torch_dipu, op_tools
with op_tools.OpFallback(devices=["cpu", "dipu"]) as tool:
    child = os.fork()
    if not child:
        torch.sin(torch.ones(2))
        os._exit(0 if not tool.hits else 1)
    print(os.waitpid(child, 0)[1])
"""
    assert output_of(source).splitlines()[0] == "0"


def test_the_stack_is_shown_when_requested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_PRINT_STACK", "1")
    with op_tools.OpObserve(ops="torch.sin"):
        torch.sin(vector())
    assert "torch.sin(vector())" in capsys.readouterr().out.split("| ")[0]


def test_a_terminal_sees_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(terminal, "PERIOD", 0.0)
    x = vector()
    with Watcher(ops="torch.sin"):
        torch.sin(x)
        op_tools.step()
    assert "[op_tools] step 1: Watcher 1 call" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with Watcher(ops="torch.sin"):
        op_tools.step()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)  # its lines are the program's
    with Watcher(ops="torch.sin"):
        op_tools.step()
    assert "step" not in capsys.readouterr().err


def test_the_end_waits_for_threads_that_still_hold_a_mode() -> None:
    """Autograd's threads do for a moment after `backward()`; the end of Python would abort them."""
    holding, may_let_go, letting_go = (threading.Event() for _ in range(3))

    def hold() -> None:
        mode = engine._dispatch_mode
        holding.set()
        assert may_let_go.wait(60)
        time.sleep(0.05)  # so that who does not wait comes too early
        letting_go.set()
        del mode

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(60)
    engine._wait_for_threads(seconds=0.001)  # not for ever
    assert not letting_go.is_set()
    may_let_go.set()
    engine._wait_for_threads(seconds=60)
    assert letting_go.is_set()
    thread.join()
