"""A tiny hybrid as a LightningModule, and trainings in processes that have imported all already."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torchdata.stateful_dataloader import StatefulDataLoader

from outlast.lightning import DelayedAttention
from outlast.methods import triggers

WIDTH, STEPS = 8, 10


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # a bias of the keys has no gradient but rounding errors, which Adam makes large
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

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
        return self.head(self.mix(self.rnn(self.embedding(tokens))[0]))

    def mix(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))

    def loss(self, tokens: Tensor) -> Tensor:
        answers = tokens.cumsum(1) % 4
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), answers.flatten())

    def training_step(self, tokens: Tensor) -> Tensor:
        loss = self.loss(tokens)
        if not torch.compiler.is_compiling():
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


class Checkpointed(Hybrid):
    """Attention is computed again in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant, self.passes = use_reentrant, 0

    def mix(self, x: Tensor) -> Tensor:
        return checkpoint(self.mix_and_count, x, use_reentrant=self.use_reentrant)

    def mix_and_count(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().mix(x)


class Sharded(Hybrid):
    """FSDP2: attention, the recurrence and the rest are sharded over the ranks."""

    is_sharded = False

    def configure_model(self) -> None:
        if self.is_sharded:
            return
        mesh = self.device_mesh["data_parallel"]
        for module in (self.attn, self.rnn, self):
            fully_shard(module, mesh=mesh)
        self.is_sharded = True


class ShardedCheckpointed(Checkpointed, Sharded):
    pass


class Eager:
    """The backend "eager" of torch.compile, which counts the graphs that have attention in them."""

    def __init__(self) -> None:
        self.attention_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        names = [str(node.target) for node in graph.graph.nodes]
        self.attention_graphs += any("scaled_dot_product" in name for name in names)
        return graph.forward


def loader(batch_size: int = 4, rank: int = 0, ranks: int = 1) -> StatefulDataLoader:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (40, 6), generator=generator)
    return StatefulDataLoader(tokens[rank::ranks], batch_size=batch_size)


def train(
    folder: Path | str,
    callback: DelayedAttention | None,
    model: Hybrid | None = None,
    resume: str | None = None,
    validate: bool = False,
    batches: StatefulDataLoader | None = None,
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
        trainer.fit(model, batches or loader(), loader() if validate else None, ckpt_path=resume)
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


def weights(model: nn.Module) -> Tensor:
    """All weights, gathered if they are sharded."""
    parameters = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([p.detach().flatten().clone() for p in parameters])


class Watch(L.Callback):
    """Keep the weights of attention after each optimiser step."""

    def __init__(self) -> None:
        self.steps, self.attention = [0], [weights(Hybrid().attn)]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *unused: Any) -> None:
        if trainer.global_step != self.steps[-1]:
            self.steps.append(trainer.global_step)
            self.attention.append(weights(pl_module.attn))

    def first_move(self) -> int | None:
        """The optimiser step that moved attention first."""
        moves = [not torch.equal(*pair) for pair in pairwise(self.attention)]
        return moves.index(True) + 1 if True in moves else None
