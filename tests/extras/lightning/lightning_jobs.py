"""A tiny hybrid as a LightningModule, and trainings in processes that have imported all already."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader

from outlast.lightning import DelayedAttention
from outlast.methods import triggers

WIDTH, STEPS = 8, 10


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Hybrid(L.LightningModule):
    """A recurrence, attention, and an answer for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(4, WIDTH)
        self.rnn, self.norm = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.LayerNorm(WIDTH)
        self.attn, self.head = Attn(), nn.Linear(WIDTH, 4)
        self.losses: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.rnn(self.embedding(tokens))[0]
        return self.head(x + self.attn(self.norm(x)))

    def loss(self, tokens: Tensor) -> Tensor:
        answers = tokens.cumsum(1) % 4
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), answers.flatten())

    def training_step(self, tokens: Tensor) -> Tensor:
        loss = self.loss(tokens)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, tokens: Tensor) -> None:
        self.log("val_loss", self.loss(tokens), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.5)

    def on_train_batch_end(self, *unused: Any) -> None:
        if self.trainer.global_step == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    dies_at: int | None = None


def loader(batch_size: int = 4, shuffle: bool = False) -> StatefulDataLoader:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (40, 6), generator=generator)
    return StatefulDataLoader(tokens, batch_size=batch_size, shuffle=shuffle)


def train(
    folder: Path | str,
    callback: DelayedAttention | None,
    model: Hybrid | None = None,
    resume: str | None = None,
    validate: bool = False,
    batch_size: int = 4,
    callbacks: tuple[Any, ...] = (),
    **others: Any,
) -> Hybrid:
    """Checkpoints every 3 steps of two batches each."""
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    settings = {"max_steps": STEPS, "accumulate_grad_batches": 2, "devices": 1}
    checkpoints = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    model = Hybrid() if model is None else model
    given = [callback] if callback is not None else []
    trainer = L.Trainer(
        callbacks=[*given, *callbacks, checkpoints],
        default_root_dir=str(folder),
        **{**settings, **quiet, **others},
    )
    smoothing, triggers.SMOOTHING = triggers.SMOOTHING, 1.0  # a trigger sees the loss of each step
    try:
        trainer.fit(model, loader(batch_size), loader() if validate else None, ckpt_path=resume)
    finally:
        triggers.SMOOTHING = smoothing
    return model


def killed_at(folder: str, step: int | None, arguments: dict[str, Any], resume: bool) -> None:
    """A training whose weights and switch are stored if it lives to its end."""
    model, callback = Hybrid(), DelayedAttention(where="attn", **arguments)
    model.dies_at = step
    newest = max(Path(folder).glob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
    train(folder, callback, model, str(newest) if resume else None)
    result = {"switched": callback.switched, "weights": model.state_dict()}
    torch.save(result, Path(folder) / "result.pt")
