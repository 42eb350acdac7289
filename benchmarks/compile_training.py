"""Training compiled against eager: forward, backward and a step of SGD, on the CPU or on CUDA.

`python -m benchmarks.bench_compile --training` prints it: inductor, and `backend="dicp"` on the
same model, which stays eager where its first steps show that compiling is slower. On the CPU it is
process time; on CUDA (`--device cuda`) wall time between two synchronisations.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from dicp.choice import dicp
from dicp.conformance.networks import MLP, Llama, ResNet, UNet, rope_tables
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.tuning.bypass import measures

QUICK = {"mode": "reduce-overhead"}
AGAIN = "eager, again"  # eager once more: the variation of the machine
BACKENDS: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {"inductor": {"backend": "inductor"}, "dicp": {"backend": dicp}, AGAIN: {}},
    "cuda": {
        "inductor": {"backend": "inductor"},
        "inductor, reduce-overhead": {"backend": "inductor", **QUICK},
        "dicp": {"backend": dicp},
        "dicp, reduce-overhead": {"backend": dicp, **QUICK},
        AGAIN: {},
    },
}
WARM = 3


@dataclass(frozen=True)
class TrainingRow:
    """One model by one backend: the speed-up of a step over eager."""

    model: str
    backend: str
    ratio: float
    low: float
    high: float
    # the largest difference from a gradient of eager, relative to that gradient's largest value
    error: float
    compile_seconds: float
    decision: str = ""


@dataclass(frozen=True)
class Lesson:
    """A model and the arguments for its training."""

    model: nn.Module
    arguments: tuple[Tensor, ...]

    def on(self, device: str) -> Lesson:
        return Lesson(self.model.to(device), tuple(x.to(device) for x in self.arguments))

    def step(self, run: Callable[..., Any]) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        optimizer.zero_grad()
        self.loss(run).backward()
        optimizer.step()

    def loss(self, run: Callable[..., Any]) -> Tensor:
        made = run(*self.arguments)
        first: Tensor = made if isinstance(made, Tensor) else made[0]
        return first.float().square().mean()


def llama(layers: int = 2, length: int = 64) -> Lesson:
    model = Llama(layers, vocabulary=1024)
    tokens = torch.randint(0, 1024, (1, length))
    return Lesson(model, (tokens, *rope_tables(torch.arange(length), model.each)))


def resnet() -> Lesson:
    return Lesson(ResNet(((32, 1, 1), (64, 2, 2)), 100), (torch.randn(4, 3, 64, 64),))


def unet() -> Lesson:
    return Lesson(UNet(), (torch.randn(2, 4, 16, 16), torch.tensor([3.0, 37.0])))


def of_transformers(kind: str, head: str, **extra: Any) -> Lesson:
    """Create a model of transformers (the extra `models`) whose input is tokens alone."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, use_cache=False, **extra,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}{head}")(config)
    return Lesson(model, (torch.randint(0, 1024, (2, 64)),))


SHARED = {"num_key_value_heads": 2}
LESSONS: dict[str, Callable[[], Lesson]] = {
    "mlp": lambda: Lesson(MLP(), (torch.randn(64, 512),)),
    "llama": llama,
    "resnet": resnet,
    "diffusion unet": unet,
    "qwen": lambda: of_transformers("Qwen2", "ForCausalLM", **SHARED),
    "bert": lambda: of_transformers("Bert", "Model"),
    "mixtral": lambda: of_transformers("Mixtral", "ForCausalLM", num_local_experts=4, **SHARED),
}


def measure(name: str, backends: list[str], rounds: int, device: str = "cpu") -> list[TrainingRow]:
    """Measure all backends on one model, and eager, alternately."""
    torch.manual_seed(0)
    torch.compiler.reset()
    lesson = LESSONS[name]().on(device)
    runs: dict[str, Callable[..., Any]] = {"eager": lesson.model}
    made: dict[str, tuple[float, float, str]] = {}
    for backend in backends:
        runs[backend] = _run(lesson, BACKENDS[device][backend])
        before, start = len(report.RECORDS), time.perf_counter()
        lesson.loss(runs[backend]).backward()
        seconds = time.perf_counter() - start
        while measures(runs[backend]):  # in steps of this backend alone
            lesson.step(runs[backend])
        error = _error(lesson, runs[backend])
        made[backend] = (error, seconds, _told(report.RECORDS[before:]))
    steps = {key: partial(lesson.step, run) for key, run in runs.items()}
    times = _rounds(steps, rounds, _clock(device))
    return [_row(name, key, times["eager"], times[key], *found) for key, found in made.items()]


def _told(kept: Sequence[report.Record]) -> str:
    """Format a backend's decision on its training graphs in one line."""
    told = [record.decision.partition(";")[0] for record in kept if record.kind == "training"]
    if len(set(told)) <= 1:
        return "".join(set(told))
    return f"{sum(map(bool, told))} of {len(told)} graphs eager"


def _row(
    name: str, backend: str, eager: list[float], mine: list[float],
    error: float, seconds: float, told: str,
) -> TrainingRow:  # fmt: skip
    ratios = sorted(e / m for e, m in zip(eager, mine, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    middle = statistics.median(ratios)
    return TrainingRow(name, backend, middle, low, high, error, seconds, told)


def _run(lesson: Lesson, options: Mapping[str, Any]) -> Any:
    return torch.compile(lesson.model, dynamic=False, **options) if options else lesson.model


def _error(lesson: Lesson, run: Callable[..., Any]) -> float:
    """Return the largest difference from a gradient of eager."""
    expected, found = _gradients(lesson, lesson.model), _gradients(lesson, run)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(_gap(found[key], expected[key], largest) for key in expected)


def _gradients(lesson: Lesson, run: Callable[..., Any]) -> dict[str, Tensor]:
    lesson.model.zero_grad()
    lesson.loss(run).backward()
    named = lesson.model.named_parameters()
    return {key: p.grad.clone() for key, p in named if p.grad is not None}


def _gap(a: Tensor, b: Tensor, largest: float) -> float:
    """Return a difference relative to the gradient's largest value; for a gradient that is 0 except
    for rounding, relative to a share of the largest of all.
    """
    scale = max(float(b.double().abs().max()), 1e-5 * largest)
    return float((a.double() - b.double()).abs().max()) / (scale or 1.0)


def _clock(device: str) -> Callable[[], float]:
    """Return a clock in seconds that synchronizes the device first."""
    if device == "cpu":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def _rounds(
    runs: Mapping[str, Callable[[], None]], rounds: int, now: Callable[[], float]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM + rounds):
        order = list(runs.items())
        for name, run in order[number % len(order) :] + order[: number % len(order)]:
            run()  # the first finds caches full of other data
            start, calls, clock = now(), 0, time.perf_counter()
            while calls < 2 or time.perf_counter() - clock < 0.05:
                run()
                calls += 1
            if number >= WARM:
                times[name].append((now() - start) / calls)
    return times


def show(rows: list[TrainingRow]) -> Table:
    """Build the table of rows; more than 1 is faster than eager."""
    table = Table(title="training: times as fast as eager")
    headings = ("model", "backend", "ratio", "middle half", "gradient error", "first s", "decision")
    for heading in headings:
        left = heading in ("model", "backend", "decision")
        table.add_column(heading, justify="left" if left else "right")
    for row in rows:
        table.add_row(
            row.model, row.backend, f"{row.ratio:.2f}", f"{row.low:.2f}-{row.high:.2f}",
            f"{row.error:.1e}", f"{row.compile_seconds:.0f}", row.decision,
        )  # fmt: skip
    return table
