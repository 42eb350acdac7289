# SPDX-License-Identifier: Apache-2.0
"""Reduction of a graph with a wrong result to the smallest part that still has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from dicp.dynamo_bridge.partition import extract

Fails = Callable[[fx.GraphModule, list[Any]], bool]


@dataclass(frozen=True)
class Cut:
    """The smallest failing graph, and inputs with which it fails."""

    gm: fx.GraphModule
    inputs: list[Any]
    queries: int

    @property
    def ops(self) -> list[str]:
        return [str(n.target) for n in self.gm.graph.nodes if n.op == "call_function"]


def minify(gm: fx.GraphModule, args: Sequence[Any], fails: Fails) -> Cut | None:
    """Return the smallest failing part; None when even the whole graph does not fail again."""
    trial = _Trial(gm, args, fails)
    nodes = trial.calls
    if not trial(nodes):
        return None
    nodes = nodes[: _first(len(nodes), lambda end: trial(nodes[:end]))]
    nodes = nodes[_last(len(nodes), lambda start: trial(nodes[start:])) :]
    before = len(nodes) + 1
    while len(nodes) < before:
        before = len(nodes)
        for node in list(nodes):
            rest = [n for n in nodes if n is not node]
            if rest and trial(rest):
                nodes = rest
    found, inputs = trial.cut(nodes)
    return Cut(found, inputs, trial.queries)


class _Trial:
    """Runs parts of a graph; the inputs of a part are the values that the whole graph computed."""

    def __init__(self, gm: fx.GraphModule, args: Sequence[Any], fails: Fails) -> None:
        self.calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        self.queries = 0
        self._fails = fails
        recorder = _Recorder(gm)
        with torch.no_grad():
            recorder.run(*args)
        self._values = recorder.values

    def __call__(self, nodes: Sequence[fx.Node]) -> bool:
        if not nodes or not self._closed(nodes):
            return False
        self.queries += 1
        gm, inputs = self.cut(nodes)
        return self._fails(gm, inputs)

    def cut(self, nodes: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[Any]]:
        inputs, _, gm = extract(list(nodes), "cut")
        return gm, [self._values[node] for node in inputs]

    def _closed(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether a part is valid: a multi-result op is no input,
        and some result of the part is used.
        """
        inside = set(nodes)
        outer = [n for node in nodes for n in node.all_input_nodes if n not in inside]
        return not any(isinstance(self._values[n], (list, tuple)) for n in outer)


class _Recorder(fx.Interpreter):
    """An interpreter that records the value of every node."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number up to count that holds, if those above it do."""
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _last(count: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number below count that holds, if those below it do."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


SCRIPT = '''"""A graph that {backend} computes wrong: {why}"""

from pathlib import Path

import torch
from torch import device

import dicp

aten = torch.ops.aten


def run({names}):
{body}


inputs = torch.load(Path(__file__).with_name("inputs.pt"))
backend = dicp.find("{backend}")
with torch.no_grad():
    compiled = torch.compile(run, backend=backend, options={{"measure": False}})(*inputs)
    for mine, right in zip(compiled, run(*inputs)):
        print("largest difference:", (mine - right).abs().max().item())
'''


def write_script(folder: Path, cut: Cut, backend: str, why: str) -> Path:
    """Write a program that reproduces the error, and a file with its inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [x.detach().cpu() if isinstance(x, Tensor) else x for x in cut.inputs]
    torch.save(inputs, folder / "inputs.pt")
    names = [node.name for node in cut.gm.graph.find_nodes(op="placeholder")]
    lines = cut.gm.code.strip().splitlines()
    body = [line for line in lines if line.startswith("    ")]
    text = SCRIPT.format(
        backend=backend, why=why.replace('"""', "'''"), names=", ".join(names), body="\n".join(body)
    )
    path = folder / "repro.py"
    path.write_text(text)
    return path
