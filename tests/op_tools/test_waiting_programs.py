"""Programs at random: what is written of tensors that wait is what is written where none does."""

from __future__ import annotations

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

from op_tools import OpCapture, diagnostics, outsiders, steps

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


def test_who_waits_tells_what_others_tell(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(seed: int, alone: bool) -> list[dict[str, Any]]:
        folder = tmp_path / f"{seed} {alone}"
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
        monkeypatch.setattr(outsiders, "_has_compiled", lambda: not alone)
        steps.reset()
        program = Program(seed)
        with OpCapture(mode="hash"):
            program.run()
        (file,) = folder.glob("**/*.jsonl")
        return [{**json.loads(line), "id": 0} for line in file.read_text().splitlines()]

    counts = []
    for seed in range(25):
        counts.append(len(starts))
        waiting = told(seed, alone=True)
        counts.append(len(starts))
        assert waiting == told(seed, alone=False), seed
    assert not diagnostics.problems("OpCapture")
    together = sum(counts[1::2]) - sum(counts[::2])
    assert together < (len(starts) - together) * 0.8  # starts, of those that wait
