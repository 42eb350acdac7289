"""Cases from models: what is traced, and that each stored call can be made."""

from __future__ import annotations

import json

import torch

from diopi.conformance.execution.running import run
from diopi.conformance.models import stored, trace


def test_a_trace_keeps_what_computes_with_its_shapes() -> None:
    recorder = trace.Recorder()
    with torch.device("meta"):
        layer, x = torch.nn.Linear(8, 3), torch.zeros(2, 8)
    with recorder:
        layer(x).sum().backward()
    calls = [json.loads(call) for call in recorder.calls]
    first = next(call for call in calls if call["op"] == "aten.addmm.default")
    assert [arg["t"] for arg in first["args"]] == [[3], [2, 8], [8, 3]]
    assert first["args"][2]["s"] == [1, 0]  # the weight, transposed
    assert not any("view" in call["op"] or call["op"] == "aten.t.default" for call in calls)


def test_there_are_as_many_models_and_cases_as_promised() -> None:
    assert len(stored.names()) >= 43
    assert (
        sum(len(calls) for name in stored.names() for calls in stored.calls(name).values()) > 5000
    )


def test_stored_calls_can_be_made() -> None:
    done, refused = 0, []
    for name in ("resnet", "bert"):  # of float32: some machines cannot do bfloat16 products
        for calls in stored.calls(name).values():
            call = calls[0]
            try:
                run(stored.callee(call), stored.sample(call), grad=False)
                done += 1
            except RuntimeError as error:
                refused.append((call["op"], str(error)[:80]))
    assert done > 25 and len(refused) <= done // 10, refused


def test_scaled_sizes_stay_together() -> None:
    tensors = [{"t": [8, 4096], "d": "float32"}, {"t": [4096, 14336], "d": "float32"}]
    call = {"op": "aten.mm.default", "args": tensors, "kwargs": {}}
    a, b = stored.sample(call).args
    assert a.shape[1] == b.shape[0] < 4096
