"""Jobs of OpAutoCompare that other processes judge."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from op_tools.compare import judging
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.host_verdicts import Differed, RecordedCall
from op_tools.compare.judging import Job, Judges, receive, send
from op_tools.compare.rerun import make_rerun
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import Gradients
from op_tools.core.worker import Background


def job_of(
    name: str, func: Any, *args: Any, result: Any = None, flown: Tensor | None = None, **kwargs: Any
) -> Job:
    """A job of a call whose result is the CPU's, unless it is given."""
    call = Call(1, name, func, args, kwargs, "aten" if name.startswith("aten") else "api")
    requires = frozenset(id(t) for t in call.inputs if t.is_floating_point())
    before = call.with_arguments(*_copies(call))
    requires = frozenset(
        id(t) for t in before.inputs if t.is_floating_point() and flown is not None
    )
    made = func(*args, **kwargs) if result is None else result
    types = [t.dtype for t in tensor_list(made)]
    again = make_rerun(before, requires, False, None, types)
    taken = RecordedCall(again, made, [None] * len(before.inputs), flown is not None, "dipu:0")
    gradients = None
    if flown is not None:
        leaves = [t.detach().clone().requires_grad_() for t in call.inputs]
        func(*leaves, **kwargs).backward(flown)
        gradients = Gradients([flown], [leaf.grad for leaf in leaves], True)
    return Job(taken, gradients, "calibrated", bitwise=False)


def _copies(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in call.args), call.kwargs


def traveled(job: Job) -> Job:
    file = io.BytesIO()
    send(file, job)
    file.seek(0)
    found: Job = receive(file)
    return found


X, W = torch.randn(5, 7), torch.randn(3, 7)
JOBS = {
    "api": lambda: job_of("torch.nn.functional.linear", F.linear, X, W),
    "gradients": lambda: job_of(
        "torch.nn.functional.linear", F.linear, X, W, flown=torch.randn(5, 3)
    ),
    "aten": lambda: job_of("aten.mm.default", torch.ops.aten.mm.default, X, W.t()),
    "method": lambda: job_of("torch.Tensor.mul", torch.Tensor.mul, X.half(), 2.0),
    "list": lambda: job_of("torch.cat", torch.cat, [X, X.flip(0)], dim=1),
    "wrong": lambda: job_of("torch.neg", torch.neg, X, result=X * 1.01),
    "empty": lambda: job_of("torch.neg", torch.neg, X[:0]),
    "complex": lambda: job_of("torch.abs", torch.abs, torch.randn(4, dtype=torch.complex64)),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_traveled_has_the_same_verdict(name: str) -> None:
    job = JOBS[name]()
    items = traveled(job).items(Differed())
    assert items == job.items(Differed())
    assert all(item.verdict.passed for item in items) == (name != "wrong")


def test_tensors_share_memory_after_the_way_as_before() -> None:
    base = torch.arange(12.0).view(3, 4)
    job = job_of("torch.add", torch.add, base, base)
    call = Call(1, "torch.add", torch.add, (base, base[1:], base.t(), base.expand(2, 3, 4)), {})
    job = Job(
        RecordedCall(make_rerun(call, (), False, None, []), base, [], False), None, "torch", False
    )
    args = traveled(job).recorded.call.args
    assert traveled(job).recorded.call.args[0].is_contiguous()
    assert [a.stride() for a in args] == [(4, 1), (4, 1), (1, 4), (0, 4, 1)]
    args[0][1, 2] = -1.0
    assert args[1][0, 2] == args[2][2, 1] == args[3][1, 1, 2] == -1.0


def test_only_functions_of_torch_travel() -> None:
    file = io.BytesIO()
    send(file, job_of("program.double", double, X))
    file.seek(0)
    with pytest.raises(judging.pickle.UnpicklingError, match=r"double is not torch's"):
        receive(file)


def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judges]:
    """With one process, which is ready."""
    monkeypatch.setattr(judging, "MOST", 1)
    background = Background("verdicts")
    found = Judges(background)
    found._start()
    judging.select.select([found._starting[0].output], [], [], 120)
    yield found
    found.close()
    background.close()


def test_processes_judge_as_this_one_does(judges: Judges) -> None:
    for make in JOBS.values():
        job = make()
        assert judges.items(job) == job.items(Differed())
    with pytest.raises(NoReferenceError):
        judges.items(job_of("torch.rand_like", torch.rand_like, X))
    assert not judges._local
    assert len(judges._free) == 1


def test_what_another_process_cannot_judge_is_judged_here(judges: Judges) -> None:
    (item,) = judges.items(job_of("program.double", double, X))
    assert item.verdict.passed
    assert judges._local == {"program.double"}
    (item,) = judges.items(JOBS["aten"]())
    assert item.verdict.passed
    assert len(judges._free) == 1  # it goes on


def test_a_process_that_was_killed_is_done_without(judges: Judges) -> None:
    judges.items(JOBS["api"]())
    process = judges._free[0]._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (item,) = judges.items(JOBS["api"]())
    assert item.verdict.passed
    assert not judges._free


def test_jobs_wait_for_processes_that_are_started_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST", 1)
    monkeypatch.setattr(Job, "items", None)  # not in this process
    background = Background("verdicts")
    found = Judges(background, at_once=True)
    (item,) = found.items(JOBS["api"]())
    assert item.verdict.passed
    found.close()
    background.close()


def test_a_run_of_many_calls_is_judged_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "BUSY", 0.0)
    monkeypatch.setattr(judging, "MANY", -1)
    judged = []
    items = judging._Judge.items
    monkeypatch.setattr(
        judging._Judge, "items", lambda self, job: judged.append(job) or items(self, job)
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to("dipu")
    x = torch.randn(256, 64).to("dipu")
    with torch.dipu.quirk("nan", "gelu"), op_tools.OpAutoCompare(background=True) as tool:
        for _ in range(2000):
            model(x).sum().backward()
            if len(judged) > 20:
                break
    assert len(judged) > 20
    assert {failure.name for failure in tool.failures} == {"torch.nn.functional.gelu"}
