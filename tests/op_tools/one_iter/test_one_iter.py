"""One iteration recorded on the CPU and compared on the reference device, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import op_tools
import torch_dipu
from op_tools.one_iter.record_store import OneIterError
from tests.op_tools.compare.test_autocompare_precision import tf32_allowed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 6, -1)
        return self.out(weights @ v)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(32), Attention()
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Tied weights, dropout, a checkpoint, one block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.last = nn.Embedding(40, 32), Block(), Block()
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.block(self.block(self.embedding(x)))
        return self.head(checkpoint(self.last, hidden, use_reentrant=False))


class Recurrent(nn.Module):
    """Results in tuples, weights that are in no dictionary, a part that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        mixed, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        return self.head(mixed)


class Convolutional(nn.Module):
    """Running statistics, and a result that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.conv, self.norm = nn.Conv1d(16, 16, 3, padding=1), nn.BatchNorm1d(16)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(16, 40)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.conv(self.embedding(x).transpose(1, 2)))
        self.act(hidden)
        hidden = hidden * 2
        return self.head(hidden.transpose(1, 2))


MODELS = (Transformer, Recurrent, Convolutional)


def train(
    model_class: type[nn.Module], device: str, steps: int = 1, autocast: bool = False, size: int = 9
) -> None:
    torch.manual_seed(3 if device == "cpu" else 4)  # the record is what both start from
    model = model_class().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randint(0, 40, (3, size)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def record(folder: Path, *arguments: object, step: int = 0) -> None:
    with op_tools.OneIteration(folder, step=step):
        train(*arguments)  # type: ignore[arg-type]


def compare(folder: Path, *arguments: object, step: int = 0) -> op_tools.OneIteration:
    with op_tools.OneIteration(folder, "compare", step=step) as iteration:
        train(*arguments)  # type: ignore[arg-type]
    return iteration


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[nn.Module]], Path]:
    made: dict[type[nn.Module], Path] = {}

    def of(model: type[nn.Module]) -> Path:
        if model not in made:
            made[model] = tmp_path_factory.mktemp(model.__name__)
            record(made[model], model, "cpu")
        return made[model]

    return of


@pytest.mark.parametrize("model", MODELS)
def test_a_healthy_device_has_no_layer_that_diverges(
    records: Callable[[type[nn.Module]], Path], model: type[nn.Module]
) -> None:
    found = compare(records(model), model, "dipu")
    assert [(f.label, f.skipped) for f in found.findings if f.diverges or f.skipped] == []
    assert {f.entry.kind for f in found.findings} == {"module", "operator", "optimizer"}
    assert max(f.drift or 0 for f in found.findings) < 1e-6
    assert found.first is None


def test_a_tensor_that_is_given_twice_stays_one(
    records: Callable[[type[nn.Module]], Path],
) -> None:
    """Attention to itself is one product of the same input, and alone it is as well."""
    found = compare(records(Recurrent), Recurrent, "dipu").findings
    attention = next(f for f in found if f.entry.path == "attention")
    assert {item.verdict.rule for item in attention.backward} == {"as recorded"}


QUIRKS = [
    (Transformer, ("wrong_epsilon", "native_layer_norm"), "block.norm", "forward"),
    (Transformer, ("bf16_accumulate", "addmm"), "block.attention.qkv", "forward"),
    (Transformer, ("ignore_strides", "bmm"), "block.attention", "forward"),
    (Transformer, ("nan", ".*embedding.*backward"), "embedding", "backward"),
    (Transformer, ("ignore_strides", "mm"), "head", "forward"),
    (Transformer, ("nan", "gelu"), "block.mlp.1", "forward"),
    (Recurrent, ("nan", ".*flash_attention_for_cpu"), "attention", "forward"),
    (Convolutional, ("wrong_epsilon", ".*batch_norm.*"), "norm", "forward"),
    (
        Convolutional,
        ("nan", ".*nll_loss.*forward.*"),
        "torch.nn.functional.cross_entropy",
        "forward",
    ),
]


@pytest.mark.parametrize(
    ("model", "quirk", "layer", "direction"), QUIRKS, ids=[" ".join(row[1]) for row in QUIRKS]
)
def test_the_faulty_layer_is_the_first(
    records: Callable[[type[nn.Module]], Path],
    model: type[nn.Module],
    quirk: tuple[str, str],
    layer: str,
    direction: str,
) -> None:
    folder = records(model)
    with torch.dipu.quirk(*quirk):
        found = compare(folder, model, "dipu")
    assert found.first is not None
    assert (found.first[0].entry.path, found.first[1]) == (layer, direction)


def test_a_wrong_optimizer_is_named(records: Callable[[type[nn.Module]], Path]) -> None:
    with torch.dipu.quirk("ignore_strides", "add"):  # sound here: all is contiguous
        assert compare(records(Convolutional), Convolutional, "dipu").first is None
    with torch.dipu.quirk("nan", ".*addcdiv.*"):
        found = compare(records(Convolutional), Convolutional, "dipu")
    assert found.first is not None
    assert found.first[0].entry.path == "AdamW"
    assert not any(f.diverges for f in found.findings if f.entry.kind != "optimizer")


@pytest.mark.parametrize("model", (pytest.param(Recurrent, marks=pytest.mark.slow), Convolutional))
def test_tf32_diverges_unless_the_program_allows_it(
    records: Callable[[type[nn.Module]], Path], model: type[nn.Module]
) -> None:
    with torch.dipu.quirk("tf32"):
        assert compare(records(model), model, "dipu").first is not None
        with tf32_allowed():
            found = compare(records(model), model, "dipu")
    assert [f.label for f in found.findings if f.diverges] == []


def test_rounding_of_another_kind_is_no_divergence(
    records: Callable[[type[nn.Module]], Path],
) -> None:
    """A device that sums in another order: products here are computed in float64, then rounded."""

    def wide(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor:
        given = [a.cpu().double() if isinstance(a, Tensor) else a for a in args]
        overload = getattr(torch.ops.aten, name.split("::")[1].split(".")[0]).default
        return overload(*given, **kwargs).float().to("dipu")

    folder = records(Transformer)
    products = [op for op in torch_dipu._C.operators() if op in ("aten::mm", "aten::addmm")]
    torch_dipu._C.set_hook(products, wide)
    try:
        found = compare(folder, Transformer, "dipu")
    finally:
        torch_dipu._C.set_hook(products, None)
    assert max(f.drift or 0 for f in found.findings) > 0
    assert [f.label for f in found.findings if f.diverges] == []


def test_a_later_iteration_starts_from_the_record(tmp_path: Path) -> None:
    record(tmp_path, Transformer, "cpu", 3, step=2)
    found = compare(tmp_path, Transformer, "dipu", 3, step=2)
    assert found.first is None
    assert max(f.drift or 0 for f in found.findings) == 0


def test_under_autocast(tmp_path: Path) -> None:
    record(tmp_path, Transformer, "cpu", 1, True)
    assert compare(tmp_path, Transformer, "dipu", 1, True).first is None
    with torch.dipu.quirk("wrong_epsilon", "native_layer_norm"):
        found = compare(tmp_path, Transformer, "dipu", 1, True)
    assert found.first is not None
    assert found.first[0].entry.path == "block.norm"


WRONG = [
    (Recurrent, 9, "Recurrent .* which the record has not; it has: Transformer"),
    (
        Transformer,
        12,
        r"Transformer \(call 1\) is given int64\[3, 11\] and was given int64\[3, 8\]",
    ),
]


@pytest.mark.parametrize(("model", "size", "message"), WRONG, ids=["other model", "other shape"])
def test_what_does_not_fit_is_reported(
    records: Callable[[type[nn.Module]], Path], model: type[nn.Module], size: int, message: str
) -> None:
    with pytest.raises(OneIterError, match=message):
        compare(records(Transformer), model, "dipu", 1, False, size)


def test_other_weights_are_reported(records: Callable[[type[nn.Module]], Path]) -> None:
    folder = records(Convolutional)
    wider = type("Convolutional", (Convolutional,), {"__module__": Convolutional.__module__})
    plain = wider.__init__

    def init(self: Convolutional) -> None:
        plain(self)
        self.head = nn.Linear(16, 41)

    wider.__init__ = init  # type: ignore[method-assign,misc]
    with pytest.raises(
        OneIterError, match=r"head.weight of Convolutional has the shape \[41, 16\]"
    ):
        compare(folder, wider, "dipu")


def test_an_iteration_that_never_comes_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OneIterError, match="ended after 1 step, before the iteration 5"):
        record(tmp_path, Convolutional, "cpu", step=5)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OneIterError, match="no record of rank 0 at"):
        compare(tmp_path, Convolutional, "dipu")


def test_findings_as_json(records: Callable[[type[nn.Module]], Path]) -> None:
    with torch.dipu.quirk("nan", ".*batch_norm.*"):
        found = compare(records(Convolutional), Convolutional, "dipu")
    rows = json.loads(json.dumps([f.as_dict() for f in found.findings]))
    row = next(row for row in rows if row["layer"] == "norm")
    assert row["diverges"] and row["forward"][-1]["ratio"] == "inf"


def test_a_record_of_the_device_under_test_itself_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.dipu.quirk("ignore_strides", "mm"):
        record(tmp_path, Recurrent, "dipu")
        assert "one-iter: recorded on reference device (CPU)" in capsys.readouterr().out
        compare(tmp_path, Recurrent, "dipu")
    said = capsys.readouterr().out
    assert "WARNING: the record is from the device under test itself" in said
    assert "Hint: record on a device that you trust" in said
