"""Train a small network with Lightning, and compare the operators of one step with the CPU.

The program is written for CUDA: `deeplink run examples/lightning_trainer.py`.
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import op_tools
from op_tools.integrations import lightning_callback


class Network(L.LightningModule):  # type: ignore[misc]
    """Three classes of points in twelve dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
        )
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        points, classes = batch
        loss = nn.functional.cross_entropy(self.layers(points), classes)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    L.seed_everything(1, verbose=False)
    classes = torch.arange(96) % 3
    points = torch.randn(96, 12) + classes[:, None]
    comparison = op_tools.OpAutoCompare()
    trainer = L.Trainer(
        accelerator="cuda",
        devices=1,
        max_epochs=5,
        callbacks=[lightning_callback(comparison, "2")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Network()
    trainer.fit(model, DataLoader(TensorDataset(points, classes), batch_size=16))
    print(
        f"device: {torch.cuda.get_device_name()}, {comparison.compared} calls compared, "
        f"{len(comparison.failures)} wrong"
    )
    print(f"loss {model.losses[0]:.2f} -> {model.losses[-1]:.2f}")


if __name__ == "__main__":
    main()
