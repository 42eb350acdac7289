"""Random programs: lines that refer to earlier lines hold the same statistics as lines that repeat
them, by the vendor's kernel and on the host.
"""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from op_tools import OpCapture
from op_tools.core import step_counter, tool_errors
from op_tools.core.call import Level
from op_tools.diagnosis.diff.recordings import Produced

STEPS = 30


class Program:
    """A few tensors, weights and an optimizer, and what may be done with them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.tensors = [torch.randn(rows, 4).to("dipu") for rows in (3, 4, 8)]
        self.weights = [torch.randn(4, 4).to("dipu").requires_grad_() for _ in range(3)]
        self.mean, self.variance = torch.zeros(4).to("dipu"), torch.ones(4).to("dipu")
        kind: Any = self.random.choice([torch.optim.AdamW, torch.optim.SGD])
        self.optimizer = kind(self.weights, lr=0.01, foreach=self.random.random() < 0.5)
        self.stream = torch.dipu.Stream()

    def run(self) -> None:
        for _ in range(STEPS):
            x = self.random.choice(self.tensors)
            made = self.random.choice(ACTIONS)(self, x)
            if isinstance(made, Tensor) and len(made) > 1:
                self.tensors = [*self.tensors[-7:], made.detach()]

    def train(self, x: Tensor) -> None:
        made = F.gelu(F.linear(x, self.weights[0])) @ self.weights[1] + x @ self.weights[2]
        if self.random.random() < 0.3:
            made.register_hook(lambda gradient: gradient.mul_(2))
        (made * made).sum().backward()

    def again(self, x: Tensor) -> None:
        def part(given: Tensor) -> Tensor:
            return F.relu(given @ self.weights[0], inplace=True) @ self.weights[1]

        checkpoint(part, x.clone(), use_reentrant=False).sum().backward()

    def clear(self, x: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=self.random.random() < 0.5)

    def clip(self, x: Tensor) -> None:
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)

    def elsewhere(self, x: Tensor) -> None:
        self.stream.wait_stream(torch.dipu.current_stream())
        with torch.dipu.stream(self.stream):
            x.add_(1)
        torch.dipu.current_stream().wait_stream(self.stream)

    def unrecorded(self, x: Tensor) -> None:
        with torch.inference_mode():
            x.add_((x * 2).sum())

    def normalised(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=True)


ACTIONS: list[Callable[[Program, Tensor], Any]] = [
    lambda program, x: x * 2,
    lambda program, x: x + 1,
    lambda program, x: x[1:] if len(x) > 2 else None,
    lambda program, x: x.t().contiguous().t(),
    lambda program, x: F.layer_norm(x, (4,)),
    lambda program, x: torch.neg(x, out=torch.zeros_like(x)),
    lambda program, x: torch.add(x, 1, out=x) if x.is_contiguous() else None,
    lambda program, x: x.add_(0.5),
    lambda program, x: x[:1].mul_(0.9),
    lambda program, x: x.data.sub_(0.1),
    lambda program, x: F.relu(x, inplace=True),
    lambda program, x: F.dropout(x, 0.5, True, True),
    lambda program, x: x.__setitem__(0, 7.0),
    lambda program, x: torch._foreach_add_(program.tensors[:2], 1.0),
    lambda program, x: program.optimizer.step(),
    Program.train,
    Program.train,
    Program.again,
    Program.clear,
    Program.clip,
    Program.elsewhere,
    Program.unrecorded,
    Program.normalised,
]


def recorded(folder: Path, seed: int, level: Level) -> list[dict[str, Any]]:
    """The lines of a random program, with the statistics that they refer to."""
    step_counter.reset()
    program = Program(seed)
    with OpCapture(mode="statistics", level=level):
        program.run()
    (file,) = folder.glob("**/*.jsonl")
    produced, found = Produced(), [json.loads(line) for line in file.read_text().splitlines()]
    for line in found:
        produced.resolve(line)
    return found


def tensors(line: dict[str, Any]) -> list[Any]:
    """The tensors of a line in order."""
    lists = [line.get(name, []) for name in ("inputs", "outputs", "grad_inputs", "grad_outputs")]
    return [one for each in lists for one in each] + list(line.get("mutated", {}).values())


@pytest.mark.parametrize("level", ["api", "aten"])
def test_references_lead_to_the_statistics_of_the_values(
    level: Level, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = unknown = 0
    for seed in range(12):
        both = []
        for inputs in ("new", "all"):
            folder = tmp_path / f"{seed} {inputs}"
            monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
            monkeypatch.setenv("OP_CAPTURE_INPUTS", inputs)
            both.append(recorded(folder, seed, level))
        for short, full in zip(*both, strict=True):
            assert (short["op"], short["module"]) == (full["op"], full["module"])
            if ".empty" in short["op"] or "bernoulli" in short["op"]:  # memory that was not written
                continue
            for one, other in zip(tensors(short), tensors(full), strict=True):
                # the hash of a view is derived from that of the values that it views
                if one is None or one.get("hash", "")[:4] in ("", "view"):
                    unknown += one is not None
                else:
                    compared += 1
                    assert one["hash"] == other["hash"], (seed, short, full)
    assert compared > 2 * unknown
    assert not tool_errors.problems("OpCapture")


def test_an_input_that_a_recorded_call_produced_is_not_read_again(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(4, device="dipu")
    with OpCapture(mode="statistics"):
        y = x * 2
        y.neg()
        y.view(2, 2).abs()
        y.add_(1)
        y.neg()
    (file,) = tmp_path.glob("**/*.jsonl")
    times, neg, view, absolute, add, again = map(json.loads, file.read_text().splitlines())
    assert neg["inputs"] == [
        {"dtype": "float32", "shape": [4], "same_as": [times["id"], "outputs", 0]}
    ]
    assert view["outputs"][0]["same_as"] == [times["id"], "outputs", 0]
    assert absolute["inputs"][0]["same_as"] == [times["id"], "outputs", 0]
    assert add["outputs"][0]["max"] == 3.0
    assert again["inputs"][0]["same_as"] == [add["id"], "outputs", 0]
    assert starts == [2, 1, 1, 1, 1]


def test_an_input_that_no_recorded_call_produced_is_read_at_every_call(
    starts: list[int], tmp_path: Path
) -> None:
    x = torch.ones(3, device="dipu")
    with OpCapture(ops="torch.Tensor.neg", mode="statistics"):
        x.neg()
        x.mul_(2)  # not captured
        x.neg()
    (file,) = tmp_path.glob("**/*.jsonl")
    first, second = map(json.loads, file.read_text().splitlines())
    assert [line["inputs"][0]["max"] for line in (first, second)] == [1.0, 2.0]


def test_values_are_read_at_the_call_whatever_writes_them_later(
    starts: list[int], tmp_path: Path
) -> None:
    x = torch.full((4,), 2.0, device="dipu")
    with OpCapture(mode="statistics"):
        y = x * 3
        overwrite(y)
        overwrite(x)
    (file,) = tmp_path.glob("**/*.jsonl")
    line = json.loads(file.read_text().splitlines()[0])
    assert (line["inputs"][0]["max"], line["outputs"][0]["max"]) == (2.0, 6.0)


def overwrite(tensor: Tensor) -> None:
    """Writes a tensor's memory as a kernel does that torch does not know."""
    torch.accelerator.synchronize()
    start, host, _ = torch.dipu.host_window(torch.dipu.current_device())
    place = address_of(tensor) - start + host
    (ctypes.c_float * tensor.numel()).from_address(place)[:] = [-100.0] * tensor.numel()


def address_of(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.data_ptr()
