"""Callbacks of trainers: tools work in the requested steps, and only there."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from deeplink.errors import DeeplinkError
from op_tools import integrations
from op_tools.core import engine
from op_tools.core.call import Call
from op_tools.core.tool import Observer


class Counting(Observer):
    """Remembers the names of what it saw, and how often it was started."""

    key = "OBSERVE"
    hook = "CountingHook"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.seen: list[str] = []
        self.starts = 0

    def begin(self, options: Any) -> None:
        self.starts += 1

    def after(self, call: Call, state: Any, result: Any) -> None:
        self.seen.append(call.name)


class Stand:
    """In the place of a callback's base class."""


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers: Any = types.ModuleType("transformers")
    transformers.TrainerCallback = Stand
    lightning: Any = types.ModuleType("lightning")
    lightning.pytorch = types.ModuleType("lightning.pytorch")
    lightning.pytorch.Callback = Stand
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "lightning", lightning)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning.pytorch)


def work() -> None:
    torch.exp(torch.ones(2, device="dipu"))


def trained(callback: Any, steps: int) -> None:
    """As transformers' Trainer calls it: the step is counted before its end is reported."""
    state = types.SimpleNamespace(global_step=0)
    for _ in range(steps):
        callback.on_step_begin(None, state, None)
        work()
        state.global_step += 1
        callback.on_step_end(None, state, None)
        work()  # an evaluation between two steps
    callback.on_train_end(None, state, None)


def fitted(callback: Any, steps: int) -> None:
    """As Lightning's Trainer calls it."""
    trainer = types.SimpleNamespace(global_step=0)
    for index in range(steps):
        callback.on_train_batch_start(trainer, None, None, index)
        work()
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, None, index)
    callback.on_train_end(trainer, None)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("make", "drive", "between"),
    [
        (integrations.trainer_callback, trained, 1),
        (integrations.lightning_callback, fitted, 0),
    ],
    ids=["transformers", "lightning"],
)
@pytest.mark.parametrize(
    ("steps", "watched", "starts"), [("2-3", 2, 1), ("1,4", 2, 2), ("", 6, 1), ("9", 0, 0)]
)
def test_the_tool_works_in_its_steps(
    make: Any, drive: Any, between: int, steps: str, watched: int, starts: int
) -> None:
    tool = Counting(ops="torch.exp")
    drive(make(tool, steps), 6)
    # what lies between two steps of a range is seen with them
    inside = {"2-3": 1, "": 6}.get(steps, 0) * between
    assert len(tool.seen) == watched + inside
    assert tool.starts == starts
    assert engine.active() == []


@pytest.mark.usefixtures("stand_ins")
def test_several_tools_are_stopped_from_the_outside_in() -> None:
    inner, outer = Counting(ops="torch.exp"), Counting(ops="torch.exp")
    trained(integrations.trainer_callback([inner, outer], "1"), 3)
    assert inner.seen == outer.seen == ["torch.exp"]


@pytest.mark.usefixtures("stand_ins")
def test_an_exception_stops_the_tools() -> None:
    callback = integrations.lightning_callback(Counting(), "0-")
    callback.on_train_batch_start(types.SimpleNamespace(global_step=0), None, None, 0)
    assert engine.active()
    callback.on_exception(None, None, RuntimeError())
    assert engine.active() == []


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(integrations.importlib, "import_module", _missing)
    with pytest.raises(DeeplinkError, match="for transformers, which is not installed"):
        integrations.trainer_callback(Counting())
    with pytest.raises(DeeplinkError, match=r"for lightning\.pytorch, which is not installed"):
        integrations.lightning_callback(Counting())


def _missing(name: str) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_bad_steps_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match="'x' is neither a number nor a range of numbers"):
        integrations.Window(Counting(), "x")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of theirs, not ours
def test_with_transformers(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = (self.layer(x).squeeze(-1) - labels).square().mean()
            return {"loss": torch.exp(loss) - 1}

    tool = Counting(ops="torch.exp", devices=["cpu", "dipu", "cuda"])
    data = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(12)]
    trainer = transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=2, report_to="none",
            use_cpu=True, save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=data,
        callbacks=[integrations.trainer_callback(tool, "2-3")],
    )  # fmt: skip
    trainer.train()
    assert len(tool.seen) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of theirs, not ours
def test_with_lightning(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return torch.exp(self.layer(batch).mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    tool = Counting(ops="torch.exp", devices=["cpu"])
    lightning.Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(tmp_path),
        callbacks=[integrations.lightning_callback(tool, "2-3")],
    ).fit(Model(), torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=2))  # fmt: skip
    assert len(tool.seen) == 2
