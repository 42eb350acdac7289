"""Small random trainings on a device, for tests that run tools around a whole program.

A seed decides model, data, optimizer, mixed precision and what happens between the steps, so two
runs of one seed do the same work and every tensor of their results can be compared bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.op_tools import small

WIDTH = 8
ROWS = 6
STEPS = 3
WORDS = 11


class Block(nn.Module):
    """One of the things that a training does to activations of shape (ROWS, WIDTH)."""

    def __init__(self, kind: str, randomness: random.Random) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=randomness.random() < 0.5)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.instance_norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        self.convolution = nn.Conv1d(2, 2, 3, padding=1)
        self.reentrant = randomness.random() < 0.3
        self.register_buffer("total", torch.zeros(WIDTH))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        run: Callable[[Tensor], Tensor] = getattr(self, f"run_{self.kind}")
        return run(x)

    def run_mlp(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(F.gelu(self.first(x)))
        return x + hidden

    def run_checkpointed(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.run_mlp, x, use_reentrant=self.reentrant and self.training)
        return result

    def run_layer_norm(self, x: Tensor) -> Tensor:
        return self.layer_norm(x)  # type: ignore[no-any-return]

    def run_batch_norm(self, x: Tensor) -> Tensor:
        return self.batch_norm(self.first(x)) + x  # type: ignore[no-any-return]

    def run_instance_norm(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.instance_norm(x.view(ROWS, 2, WIDTH // 2))
        return normalised.reshape(ROWS, WIDTH) + x

    def run_convolution(self, x: Tensor) -> Tensor:
        made: Tensor = self.convolution(x.reshape(ROWS, 2, WIDTH // 2))
        return F.relu(made, inplace=True).reshape(ROWS, WIDTH) + x

    def run_attention(self, x: Tensor) -> Tensor:
        # each weight is used once: autocast adds the gradients of two uses in half precision, and
        # a tool that moves each use to the CPU adds them in float32
        query, key, value = (
            part(x).view(1, ROWS, 2, WIDTH // 2).transpose(1, 2)
            for part in (self.first, self.second, self.third)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(ROWS, WIDTH) + x

    def run_softmax(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.first(x) @ x.t(), -1)
        return scores.to(x.dtype) @ x

    def run_in_place(self, x: Tensor) -> Tensor:
        made = self.first(x)
        made[:, 1:3].mul_(0.5)
        made[0] = 0.25
        return F.relu(made, inplace=True) + x

    def run_views(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        joined = torch.cat([right.sigmoid(), left * right], -1)
        return joined.t().contiguous().t() + x[torch.arange(ROWS - 1, -1, -1, device=x.device)]

    def run_total(self, x: Tensor) -> Tensor:
        """Write buffers through out= and in place, outside of the graph."""
        with torch.no_grad():
            mean = torch.empty(0, device=x.device)
            torch.sum(x.detach().float(), 0, out=mean)
            torch.add(self.total, mean, alpha=0.125, out=self.total)
            self.total.clamp_(-4, 4)
        return x + self.total.to(x.dtype).tanh()

    def run_created(self, x: Tensor) -> Tensor:
        """Tensors created on the device, one of them a leaf with a gradient of its own."""
        leaf = torch.full((WIDTH,), 0.5, device=x.device, requires_grad=True)
        (leaf * 3).sum().backward()
        assert leaf.grad is not None
        return x * leaf.grad.to(x.dtype) / 3 + torch.zeros_like(x)

    def run_scatter(self, x: Tensor) -> Tensor:
        index = torch.tensor([0, 2, 2, 5], device=x.device)
        return x.index_add(0, index, x[:4] * 0.5).cumsum(0) / ROWS


KINDS = sorted(name.removeprefix("run_") for name in vars(Block) if name.startswith("run_"))


def _optimizer(name: str, how: str, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
    }
    options: dict[str, Any] = {"lr": 0.02}
    if name == "sgd":
        options["momentum"] = 0.9
    if how != "plain":
        options[how] = True
    return kinds[name](weights, **options)  # type: ignore[no-any-return]


OPTIMIZERS = [
    (name, how)
    for name in ("sgd", "adam", "adamw", "adagrad", "rmsprop")
    for how in ("plain", "foreach", "fused", "capturable")
    if not (how == "fused" and name == "rmsprop")
    and not (how == "capturable" and name in ("sgd", "adagrad"))
    and not (how == "fused" and name == "adagrad")  # torch has it for the CPU alone
]


class Program:
    """One training, decided by its seed; `describe()` describes it."""

    def __init__(self, seed: int, *, dropout: bool = True) -> None:
        choice = random.Random(seed)
        self.seed = seed
        self.blocks = [choice.choice(KINDS) for _ in range(choice.randint(2, 4))]
        self.optimizer = choice.choice(OPTIMIZERS)
        self.precision = choice.choice(["float32", "float32", "bfloat16", "float16"])
        self.dropout = dropout and choice.random() < 0.4
        self.sparse = choice.random() < 0.2
        self.clip = choice.random() < 0.5
        self.evaluate = choice.random() < 0.5
        self.overflows = choice.random() < 0.5  # one step of GradScaler that it must skip
        self.generator = choice.random() < 0.3
        self._choice = choice.getrandbits(32)

    def describe(self) -> str:
        words = [f"seed {self.seed}", "+".join(self.blocks), "-".join(self.optimizer)]
        words += [self.precision]
        flags = "dropout sparse clip evaluate overflows generator".split()
        return ", ".join(words + [flag for flag in flags if getattr(self, flag)])

    def run(self, device: str = small.CARD) -> dict[str, Tensor]:
        """Train and return every loss, gradient, weight, buffer, optimizer state and RNG state."""
        torch.manual_seed(self.seed)
        randomness = random.Random(self._choice)
        embedding = nn.Embedding(WORDS, WIDTH, sparse=self.sparse).to(device)
        blocks = nn.ModuleList(Block(kind, randomness) for kind in self.blocks).to(device)
        head = nn.Linear(WIDTH, 4).to(device)
        nn.init.normal_(head.weight, std=0.3)
        nn.init.zeros_(head.bias)
        modules = nn.ModuleList([blocks, head])
        optimizers = [_optimizer(*self.optimizer, list(modules.parameters()))]
        words = [torch.optim.SparseAdam, torch.optim.SGD][not self.sparse]
        optimizers.append(words(embedding.parameters(), lr=0.05))
        scaler = torch.amp.GradScaler(
            torch.device(device).type, init_scale=256.0, enabled=self.precision == "float16"
        )
        source = torch.randint(0, WORDS, (STEPS, ROWS)).to(device)
        targets = torch.randint(0, 4, (STEPS, ROWS)).to(device)
        generator = (
            torch.Generator(device=device).manual_seed(self.seed) if self.generator else None
        )
        results: dict[str, Tensor] = {}
        for step in range(STEPS):
            with self._autocast(device):
                x = embedding(source[step])
                if generator is not None:
                    x = x + 0.01 * torch.randn(ROWS, WIDTH, device=device, generator=generator)
                for block in blocks:
                    x = block(x)
                if self.dropout:
                    x = F.dropout(x, 0.25)
                loss = F.cross_entropy(head(x).float(), targets[step])
            if self.overflows and step == 1 and scaler.is_enabled():
                loss = loss * float("inf")
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer) if optimizer is optimizers[0] else None
            if self.clip:
                results[f"norm {step}"] = nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            results[f"loss {step}"] = loss.detach()
            if self.evaluate:
                results[f"evaluation {step}"] = self._evaluate(modules, embedding, source[step])
        results |= _state(nn.ModuleList([embedding, modules]), optimizers, device)
        results["scale"] = torch.tensor(scaler.get_scale())
        return {name: _plain(value) for name, value in results.items()}

    def _autocast(self, device: str) -> torch.autocast:
        return torch.autocast(
            torch.device(device).type,
            dtype=torch.float16 if self.precision == "float16" else torch.bfloat16,
            enabled=self.precision != "float32",
        )

    def _evaluate(self, modules: nn.ModuleList, embedding: nn.Module, source: Tensor) -> Tensor:
        kinds = ("created",)  # needs a graph
        modules.eval()
        with torch.inference_mode():
            x: Tensor = embedding(source)
            for block in modules[0]:  # type: ignore[attr-defined]
                x = x if block.kind in kinds else block(x)
            x = modules[1](x).add_(1)
        modules.train()
        return x


def _state(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], device: str
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = dict(model.state_dict())
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            found[f"gradient of {name}"] = weight.grad
    for number, optimizer in enumerate(optimizers):
        for name, value in _tensors(optimizer.state_dict()["state"], f"optimizer {number}"):
            found[name] = value
    found["random numbers of the CPU"] = torch.get_rng_state()
    if device != "cpu":
        module = torch.get_device_module(device)
        found["random numbers of the device"] = module.get_rng_state()
    return found


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")


def _plain(tensor: Tensor) -> Tensor:
    dense = tensor.detach().cpu()
    return dense.coalesce().to_dense() if dense.is_sparse else dense.clone()


def differences(mine: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    """The names of results that are not the same bits in two runs (NaN equals NaN)."""
    names = [name for name in wanted if name not in mine] + [n for n in mine if n not in wanted]
    for name in wanted.keys() & mine.keys():
        a, b = mine[name], wanted[name]
        if a.dtype != b.dtype or a.shape != b.shape or not _same_bits(a, b):
            names.append(name)
    return sorted(names)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_floating_point():
        nan = a.isnan() & b.isnan()
        a, b = a.masked_fill(nan, 0), b.masked_fill(nan, 0)
    return torch.equal(a, b)
