"""Lightning with accelerator="cuda": fit, validate, a checkpoint, and prediction from it."""

import json
import sys
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

on_cpu = "--cpu" in sys.argv
precision = sys.argv[1]


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 3)
        self.losses = []
        self.save_hyperparameters()

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def predict_step(self, batch, _):
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


L.seed_everything(1)
loader = DataLoader(TensorDataset(torch.randn(64, 12), torch.arange(64) % 3), batch_size=16)
model = Net()
with tempfile.TemporaryDirectory() as folder:
    best = ModelCheckpoint(dirpath=folder, monitor="val_loss")
    trainer = L.Trainer(
        accelerator="cpu" if on_cpu else "cuda",
        devices=1,
        precision=precision,
        max_epochs=3,
        gradient_clip_val=1.0,
        callbacks=[best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        log_every_n_steps=1,
    )
    trainer.fit(model, loader, loader)
    val = trainer.validate(model, loader, verbose=False)[0]["val_loss"]
    again = Net.load_from_checkpoint(best.best_model_path)
    predictions = torch.cat(trainer.predict(again, loader)).tolist()
is_cuda = trainer.strategy.root_device.type == "cuda"
print(json.dumps({"losses": model.losses, "val": val, "n": len(predictions), "is_cuda": is_cuda}))
