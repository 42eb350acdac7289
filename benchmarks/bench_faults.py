"""Accuracy of OpAutoCompare and Guard: the faulty operator must be named, and none without a fault.

    python -m benchmarks.bench_faults [--device cuda] [--only sign --only healthy] [--steps 200]

Each fault is planted in a kernel of a Llama-like training (bfloat16, AdamW): the kernel of the
device is replaced by one that calls it and then corrupts its result. A cell has the number of the
step (from 1) in which OpAutoCompare with its defaults named the operator, of 20. The other table
has trainings without faults, and how many calls each tool reported as wrong in them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from benchmarks import bench_real_size
from benchmarks.bench_real_size import Model, Size
from op_tools.core import step_counter

STEPS = 20  # in which an operator has to be named
SIZES = {
    "cuda": bench_real_size.SIZES["cuda"],
    "dipu": Size(256, 704, 2, 4, 2, 1000, 2, 128),
}
KEYS = {"cuda": "CUDA", "dipu": "PrivateUse1"}


# Faults: the changes of a kernel's result.

Kernel = Callable[..., Any]  # the device's own: kernel(*arguments)
Fault = Callable[[Kernel, tuple[Any, ...]], Any]


def _corrupted(corrupt: Callable[[Tensor], Tensor]) -> Fault:
    """Corrupt the first result, or each tensor of the list that the kernel writes."""

    def run(kernel: Kernel, args: tuple[Any, ...]) -> Any:
        made = kernel(*args)
        if made is None or made == ():  # a list of tensors is written
            for one in args[0]:
                corrupt(one)
            return made
        if isinstance(made, Tensor):
            return corrupt(made)
        return (corrupt(made[0]), *made[1:])

    return run


def _written(change: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor], Tensor]:
    """Overwrite the elements of a result: `change` receives them flat and as rows."""

    def corrupt(made: Tensor) -> Tensor:
        copy = made.contiguous().clone() if made.dim() else made.reshape(1).clone()
        change(copy.view(-1), copy.view(-1, copy.shape[-1]))
        return made.copy_(copy.view_as(made))

    return corrupt


def _tile_zero(flat: Tensor, rows: Tensor) -> None:
    rows[len(rows) // 2 :, rows.shape[1] // 2 :][:32, :32] = 0


def _doubled(flat: Tensor, rows: Tensor) -> None:
    flat[len(flat) // 3] *= 2


def _sign(flat: Tensor, rows: Tensor) -> None:
    flat[len(flat) // 3] *= -1


def _exchanged(flat: Tensor, rows: Tensor) -> None:
    place = len(flat) // 3
    flat[place : place + 2] = flat[place : place + 2].flip(0)


def _other_row(flat: Tensor, rows: Tensor) -> None:
    rows[len(rows) // 3] = rows[len(rows) // 3 - 1]


def _too_large(flat: Tensor, rows: Tensor) -> None:
    flat *= 1.01


def _dropped_tail(flat: Tensor, rows: Tensor) -> None:
    flat[-32:] = 0


def _nan(flat: Tensor, rows: Tensor) -> None:
    flat[len(flat) // 3] = math.nan


def _coarse(flat: Tensor, rows: Tensor) -> None:
    """Keep five digits, as with partial sums in a narrow type."""
    wide = flat.float()
    scale = torch.exp2(4 - wide.abs().clamp_min(1e-30).log2().floor())
    flat.copy_((wide * scale).round() / scale)


class _Stale:
    """Returns the result of the previous call of equal shape."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, made: Tensor) -> Tensor:
        last = self._last.get(tuple(made.shape))
        self._last[tuple(made.shape)] = made.clone()
        return made if last is None else made.copy_(last)


def _wrong_strides(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    """Read the first floating argument with other strides."""
    given = list(args)
    for at, one in enumerate(given):
        if isinstance(one, Tensor) and one.is_floating_point() and one.dim() > 1:
            given[at] = one.transpose(-1, -2).contiguous().view(one.shape)
            break
    return kernel(*given)


def _last_of_k(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    return kernel(args[0][:, :-1], args[1][:-1])


def _narrow_sums(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    inner = args[1].shape[0]
    part = max(1, inner // 8)
    made = kernel(args[0][:, :part], args[1][:part])
    for at in range(part, inner, part):
        made = made + kernel(args[0][:, at : at + part], args[1][at : at + part])
    return made


def _wrong_step(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    """Double the step."""
    return kernel(*args[:3], [2 * value for value in args[3]])


def _wrong_scale(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    first, *others = kernel(*args)
    return (first * 1.1, *others)


def _more(made: Tensor) -> Tensor:
    """Use another epsilon in the mean of squares of a norm."""
    return made.add_(0.1)


def _wrong_epsilon(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    return kernel(*args[:3], 0.1)  # input, shape, weight, epsilon


@dataclass(frozen=True)
class Operator:
    """A kernel that is corrupted, and the calls that are then wrong."""

    kernels: dict[str, tuple[str, ...]]  # by the kind of device: the kernels that it may call
    name: str  # the last part of the name of the calls, at the level api


def _attention(end: str) -> Operator:
    name = "_scaled_dot_product_{}_attention" + end
    return Operator(
        {
            "dipu": (name.format("flash").replace("attention", "attention_for_cpu"),),
            "cuda": (name.format("cudnn"), name.format("flash")),
        },
        "scaled_dot_product_attention",
    )


def _everywhere(kernel: str, name: str) -> Operator:
    return Operator(dict.fromkeys(KEYS, (kernel,)), name)


OPERATORS = {
    "mm": _everywhere("mm", "linear"),
    "silu": _everywhere("silu", "silu"),
    "attention": _attention(""),
    "log_softmax": _everywhere("_log_softmax", "cross_entropy"),
    "embedding": _everywhere("embedding", "embedding"),
    "optimizer": _everywhere("_foreach_addcdiv_.ScalarList", "_foreach_addcdiv_"),
    # a device without a fused norm computes it from the mean of squares
    "norm": Operator({"cuda": ("_fused_rms_norm",), "dipu": ("mean.dim",)}, "rms_norm"),
    "attention backward": _attention("_backward"),
}
GENERAL = ("mm", "silu", "attention", "log_softmax", "embedding", "optimizer")

# A fault, and the operators that contain it.
FAULTS: dict[str, tuple[Callable[[], Fault], tuple[str, ...]]] = {
    "tile zero": (lambda: _corrupted(_written(_tile_zero)), GENERAL),
    "one element doubled": (lambda: _corrupted(_written(_doubled)), GENERAL),
    "one sign flipped": (lambda: _corrupted(_written(_sign)), GENERAL),
    "neighbours exchanged": (lambda: _corrupted(_written(_exchanged)), GENERAL),
    "a row is another's": (lambda: _corrupted(_written(_other_row)), GENERAL),
    "1 % too large": (lambda: _corrupted(_written(_too_large)), GENERAL),
    "five digits left": (lambda: _corrupted(_written(_coarse)), GENERAL),
    "tail dropped": (lambda: _corrupted(_written(_dropped_tail)), GENERAL),
    "NaN": (lambda: _corrupted(_written(_nan)), GENERAL),
    "stale copy": (lambda: _corrupted(_Stale()), GENERAL),
    "wrong strides": (lambda: _wrong_strides, ("mm", "silu", "attention", "log_softmax")),
    "last of K dropped": (lambda: _last_of_k, ("mm",)),
    "narrow partial sums": (lambda: _narrow_sums, ("mm",)),
    "wrong epsilon": (lambda: _wrong_epsilon, ("norm",)),
    "wrong scale": (lambda: _wrong_scale, ("attention backward",)),
    "wrong step": (lambda: _wrong_step, ("optimizer",)),
}


@contextmanager
def planted(device: str, operator: str, fault: Fault) -> Iterator[Callable[[], int]]:
    """Replace a kernel of the device; yield a function that counts the calls of the kernel."""
    library = torch.library.Library("aten", "IMPL")
    calls = 0
    try:
        for name in OPERATORS[operator].kernels[device]:
            own = torch.library.get_kernel(f"aten::{name}", KEYS[device])
            chosen = fault
            if operator == "norm" and name == "mean.dim":  # a device without a fused norm
                chosen = _corrupted(_more)

            def run(
                keys: Any, *args: Any, _own: Any = own, _fault: Fault = chosen, **kwargs: Any
            ) -> Any:
                nonlocal calls
                calls += 1
                return _fault(lambda *given: _own.call_boxed(keys, *given, **kwargs), args)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.impl(name, run, KEYS[device], with_keyset=True)
        yield lambda: calls
    finally:
        library._destroy()


# Trainings.


class Training:
    """A model, its optimizer and data; `restore` resets the initial state."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor], **adam: Any) -> None:
        self.model, self._loss, self._adam = model, loss, adam
        self._start = {name: value.clone() for name, value in model.state_dict().items()}
        self.restore()

    def restore(self) -> None:
        self.model.load_state_dict(self._start)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **self._adam)
        torch.manual_seed(0)

    def step(self) -> None:
        self._loss(self.model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step_with_autocast(self, scaler: Any, device: str, dtype: torch.dtype) -> None:
        with torch.autocast(device, dtype=dtype):
            loss = self._loss(self.model)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()


def llama(device: str, dtype: torch.dtype) -> Training:
    size = SIZES[device]
    torch.manual_seed(0)
    model = Model(size).to(device, dtype)
    words = torch.randint(0, size.words, (size.batch, size.length)).to(device)
    return Training(model, lambda model: model(words))


def bert(device: str) -> Training:
    """An encoder that predicts masked words."""
    size = SIZES[device]
    width, words, length = size.width, size.words, size.length
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        width, size.heads, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=False
    )

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.norm = nn.LayerNorm(width)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(width, words)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.words(x) + self.places.weight)
            made: Tensor = self.head(self.layers(x))
            return made

    target = torch.randint(0, words, (size.batch, length))
    given = torch.where(torch.rand(size.batch, length) < 0.15, 0, target).to(device)
    target = torch.where(given.cpu() == 0, target, -100).to(device)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(given).flatten(0, 1).float(), target.flatten())

    return Training(Bert().to(device), loss)


class _Residual(nn.Module):
    """Two convolutions with batch norms."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))
        self.beside = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(y)) + self.beside(x))


def resnet(device: str) -> Training:
    """Classifies images."""
    width, batch, side = (64, 32, 112) if device == "cuda" else (16, 4, 32)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), _Residual(width, width, 1), _Residual(width, 2 * width, 2),
        _Residual(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, 100),
    ).to(device)  # fmt: skip
    images, labels = torch.randn(batch, 3, side, side), torch.randint(0, 100, (batch,))
    images, labels = images.to(device), labels.to(device)
    return Training(model, lambda model: F.cross_entropy(model(images).float(), labels))


class _Unet(nn.Module):
    """A U-shaped network with skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Conv2d(4, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 4, 3, 1, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, n * width) for n in (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        y = F.silu(self.norms[1](self.down(F.silu(self.norms[0](x)))))
        y = torch.cat([x, self.up(F.interpolate(y, scale_factor=1.0))], 1)
        made: Tensor = self.out(F.silu(self.norms[2](y)))
        return made


def unet(device: str) -> Training:
    """Removes noise of images."""
    width, batch, side = (64, 16, 64) if device == "cuda" else (16, 2, 32)
    torch.manual_seed(0)
    model = _Unet(width).to(device)
    images, noise = (torch.randn(batch, 4, side, side).to(device) for _ in range(2))
    return Training(model, lambda model: F.mse_loss(model(images + noise).float(), noise))


MODELS: dict[str, Callable[[str], Training]] = {
    "Llama": lambda device: llama(device, torch.float32),
    "BERT": bert,
    "ResNet": resnet,
    "UNet": unet,
}


# Runs.


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the tools' output, and write their files to a temporary folder."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        tempfile.TemporaryDirectory() as folder,
        _environment("OP_TOOLS_RESULTS", folder),
    ):
        yield


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@dataclass(frozen=True)
class Outcome:
    """The result of a run with a fault."""

    fault: str
    operator: str
    step: int | None  # in which the operator was named, from 1; None: not at all
    others: tuple[str, ...]  # operators that were named and are correct
    note: str = ""

    @property
    def cell(self) -> str:
        text = self.note or ("missed" if self.step is None else str(self.step))
        return text + (f" + {', '.join(self.others)}" if self.others else "")


def search(training: Training, device: str, fault: str, operator: str) -> Outcome:
    """Train with a fault until OpAutoCompare names an operator, at most STEPS steps."""
    make, _ = FAULTS[fault]
    training.restore()
    step_counter.reset()
    name = OPERATORS[operator].name
    with planted(device, operator, make()) as calls:
        tool = op_tools.OpAutoCompare(devices=[device])
        with _quietly(), tool:
            for _ in range(STEPS):
                training.step()
                if any(failure.name.rpartition(".")[2] == name for failure in tool.failures):
                    break
        count = calls()
    right = [one for one in tool.failures if one.name.rpartition(".")[2] == name]
    others = {one.name for one in tool.failures if one.name.rpartition(".")[2] != name}
    step = min((one.step + 1 for one in right), default=None)
    note = "" if count else "not called"
    return Outcome(fault, operator, step, tuple(sorted(others)), note)


@dataclass(frozen=True)
class Healthy:
    """The result of a run without a fault."""

    model: str
    precision: str
    steps: int
    compare: int  # failures of OpAutoCompare
    guard: int  # findings of Guard
    compared: int  # calls
    seconds: float
    named: tuple[str, ...] = ()

    @property
    def cells(self) -> list[str]:
        wrong = f"{self.compare}" + (f" ({', '.join(self.named)})" if self.named else "")
        return [
            *(self.model, self.precision, str(self.steps), str(self.compared), wrong),
            *(str(self.guard), f"{self.seconds:.0f}"),
        ]


PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


def healthy(model: str, precision: str, device: str, count: int) -> Healthy:
    """Train without a fault under OpAutoCompare, and as long under Guard."""
    began = time.perf_counter()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    training = MODELS[model](device)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def step() -> None:
        if precision in ("float32", "tf32"):
            training.step()
        else:
            training.step_with_autocast(scaler, device, getattr(torch, precision))

    compare, guard = op_tools.OpAutoCompare(devices=[device]), op_tools.Guard(budget=1.0)
    tools: tuple[Any, ...] = compare, guard
    for tool in tools:
        training.restore()
        step_counter.reset()
        with _quietly(), tool:
            for _ in range(count):
                step()
    torch.set_float32_matmul_precision("highest")
    named = tuple(sorted({one.name for one in compare.failures}))
    wrong, seconds = len(compare.failures), time.perf_counter() - began
    return Healthy(
        model, precision, count, wrong, guard.confirmed, compare.compared, seconds, named
    )


def faults_table(outcomes: list[Outcome]) -> Table:
    """Build the table of faults by operators, with the step in which the operator was named."""
    table = Table(title=f"The step in which OpAutoCompare named the operator, of {STEPS}")
    operators = list(dict.fromkeys(outcome.operator for outcome in outcomes))
    for name in ("fault", *operators):
        table.add_column(name)
    for fault in dict.fromkeys(outcome.fault for outcome in outcomes):
        cells = {one.operator: one.cell for one in outcomes if one.fault == fault}
        table.add_row(fault, *(cells.get(operator, "-") for operator in operators))
    return table


def healthy_table(runs: list[Healthy]) -> Table:
    """Build the table of runs without faults, with the false reports."""
    table = Table(title="Without a fault: calls that were reported as wrong")
    names = "model precision steps compared OpAutoCompare Guard seconds"
    for name in names.split():
        table.add_column(name)
    for run in runs:
        table.add_row(*run.cells)
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=SIZES, default="dipu")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run without a fault")
    parser.add_argument(
        "--only", action="append", help="faults, operators or models that contain it"
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device: str = options.device
    if device == "dipu":
        import torch_dipu  # noqa: F401
    console = Console(width=160)

    def wanted(*words: str) -> bool:
        return not options.only or any(part in word for part in options.only for word in words)

    outcomes: list[Outcome] = []
    training = llama(device, torch.bfloat16)
    for fault, (_, operators) in FAULTS.items():
        for operator in operators:
            if wanted(fault, operator, "faults"):
                outcomes.append(search(training, device, fault, operator))
                console.print(f"{fault}, {operator}: {outcomes[-1].cell}", highlight=False)
    runs: list[Healthy] = []
    for model in MODELS:
        for precision in PRECISIONS:
            if precision == "tf32" and device != "cuda":
                continue
            if wanted(model, precision, "healthy"):
                runs.append(healthy(model, precision, device, options.steps))
                console.print(" ".join(runs[-1].cells), highlight=False)
    if outcomes:
        console.print(faults_table(outcomes))
        named = sum(one.step is not None for one in outcomes)
        console.print(f"{named} of {len(outcomes)} named", highlight=False)
    if runs:
        console.print(healthy_table(runs))
    if options.json:
        rows = {
            "device": device,
            "faults": [vars(one) for one in outcomes],
            "healthy": [vars(one) for one in runs],
        }
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
