"""Delayed attention in Lightning, by one callback::

    L.Trainer(..., callbacks=[outlast.lightning.DelayedAttention(switch=0.3)])

The state is written to each checkpoint and read back from ``fit(ckpt_path=...)``.

Lightning itself saves neither random numbers nor the position in the data. So a resumed training
equals one that was not interrupted only without dropout and with a loader that saves its position,
such as `torchdata`'s `StatefulDataLoader`.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from outlast.errors import OutlastError, SpecError
from outlast.integrations.delayed import TrainerDelay
from outlast.lightning import sharded_checkpoints
from outlast.methods.delay.handle import Mode
from outlast.methods.delay.selection import Where
from outlast.specs import Spec

log = logging.getLogger(__name__)


class DelayedAttention(pl.Callback):  # type: ignore[misc]
    """Hold back attention in a `LightningModule` until `switch`.

    Until then the weights of attention do not change (except in mode ``detach``), weight decay
    included. All ranks switch at the same step. A checkpoint made before that says so: its state of
    this callback names the modules that are held back.

    Args:
        switch: an optimiser step, a share of training, or ``"below(0.5)"`` or ``"plateau"``: a
            trigger on the smoothed training loss, or on `metric`.
        mode: what attention does before the switch: skip, freeze, ramp or detach, as in
            `outlast.delay`.
        where: the modules to hold back, as in `outlast.delay`; by default the attention of the
            model.
        latest: the step, or share of training, by which the switch happens in any case.
        ramp: the number of steps over which mode ``ramp`` opens the gate.
        metric: a metric that validation logs, with ``switch="below(2.0)"``, ``"above(0.9)"`` or
            ``"plateau(patience=3)"``. The patience counts validations.
    """

    def __init__(
        self,
        switch: str | int | float | Spec = "below(0.01)",
        mode: Mode = "skip",
        where: Where | None = None,
        latest: int | float | None = None,
        ramp: int = 500,
        metric: str | None = None,
    ) -> None:
        self._delay = TrainerDelay(where, mode, switch, latest, ramp, metric)
        self._saved: dict[str, Any] | None = None
        self._stateless: list[str] = []
        self._losses: list[Tensor] = []
        self._steps, self._has_loss = 0, False

    @property
    def switched(self) -> int | None:
        """The step at which attention was let in, or None. It stays known after training."""
        return self._delay.switched

    def state_dict(self) -> dict[str, Any]:
        held_back = [] if self._delay.is_on else self._delay.modules
        return {"saved": self._delay.state(), "held_back": held_back}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict.get("saved")
        self._stateless = state_dict.get("stateless", [])

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        stateless = sharded_checkpoints.fill(trainer, pl_module, checkpoint)
        if stateless:
            checkpoint["callbacks"][self.state_key]["stateless"] = stateless

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        steps = int(total) if math.isfinite(total) else None
        if self._delay.metric is not None and not trainer.enable_validation:
            raise SpecError(
                f"metric={self._delay.metric}: there is no validation while training; give the "
                "Trainer validation data, or leave metric= out"
            )
        self._delay.begin(pl_module, steps, trainer.global_step, self._saved)
        sharded_checkpoints.empty(trainer.optimizers, pl_module, self._stateless)
        self._saved, self._stateless = None, []
        self._losses, self._steps = [], trainer.global_step
        self._has_loss = False

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._delay.watches_loss:
            self._note_loss(outputs, trainer.accumulate_grad_batches)
        if trainer.global_step == self._steps:
            return  # gradients are accumulated
        self._steps = trainer.global_step
        losses, self._losses = self._losses, []
        if self._delay.step(sum(map(float, losses)) / len(losses) if losses else math.nan):
            log.info("attention is let in after step %d", trainer.global_step)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metric = self._delay.metric
        if metric is None or not self._delay.active or trainer.sanity_checking:
            return
        if metric not in trainer.callback_metrics:
            names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise SpecError(f"metric={metric}: validation does not log it; it logs {names}")
        if self._delay.evaluate(float(trainer.callback_metrics[metric])):
            log.info("attention is let in after step %d", trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._delay.end()
        if self.switched is None:
            log.warning(
                "training has ended in phase 1: attention was never let in and is not trained"
            )

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._delay.end()

    def _note_loss(self, outputs: Any, divisor: int) -> None:
        """Keep the loss of a batch. Lightning has divided it by the number of batches of a step."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach() * divisor)
            self._has_loss = True
        elif not self._has_loss:  # later a batch may be left out
            raise OutlastError(
                "training_step returned no loss, so a trigger on it cannot be used; return the "
                "loss, or use a step, a share or a metric as the switch"
            )
