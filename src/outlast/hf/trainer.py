"""Delayed attention in `transformers.Trainer`, by one callback::

    Trainer(..., callbacks=[outlast.hf.DelayedAttention(switch=0.3)])

The state is written to `trainer_state.json` of each checkpoint and read back on resume. No flag is
needed. A resumed training equals one that was not interrupted, bit for bit on a CPU.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.trainer_callback import (
    ExportableState,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.training_args import TrainingArguments

from outlast.errors import OutlastError, SpecError, incompatible
from outlast.hf.checkpoints import refuse_half_written, restore_renamed
from outlast.integrations.delayed import TrainerDelay
from outlast.methods.delay import Delay, delay
from outlast.methods.delay.arguments import FOREVER
from outlast.methods.delay.handle import Mode
from outlast.methods.delay.marks import FIELD
from outlast.methods.delay.selection import Where
from outlast.specs import Spec

log = logging.getLogger(__name__)

#: the attribute of a `TrainerState` that names its callback, so that a second one is noticed
CALLBACK = "outlast_delayed_attention"


class DelayedAttention(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Hold back attention in the model of a `transformers.Trainer` until `switch`.

    Until then the weights of attention do not change (except in mode ``detach``), weight decay
    included. All ranks switch at the same step. A training that starts at step 0 starts in phase 1.

    While attention is held back, the config of the model has a field ``delayed_attention``, and so
    has each `config.json` that is saved. `hold_back` reads it. Nothing is left in the model once
    attention is on.

    Args:
        switch: a step, a share of training, or ``"below(0.5)"`` or ``"plateau"``: a trigger on the
            smoothed training loss, or on `metric`.
        mode: what attention does before the switch: skip, freeze, ramp or detach, as in
            `outlast.delay`.
        where: the modules to hold back, as in `outlast.delay`; by default the attention of the
            model.
        latest: the step, or share of training, by which the switch happens in any case.
        ramp: the number of steps over which mode ``ramp`` opens the gate.
        metric: the metric of an evaluation to watch, with ``switch="below(2.0)"``,
            ``"above(0.9)"`` or ``"plateau(patience=3)"``. The patience counts evaluations.
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
        self._loss: StepLoss | None = None
        self._evaluated: set[str] = set()

    @property
    def switched(self) -> int | None:
        """The step at which attention was let in, or None. It stays known after training."""
        return self._delay.switched

    def state(self) -> dict[str, Any]:
        """What the Trainer writes to `trainer_state.json`."""
        names = ("switch", "mode", "latest", "ramp", "metric", "where")
        arguments = {name: _as_json(getattr(self._delay, name)) for name in names}
        return {"args": arguments, "attributes": {"saved": self._delay.state()}}

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Refuse what cannot work before training begins."""
        if args.restore_callback_states_from_checkpoint and not _is_json(self._delay.where):
            raise incompatible(
                "restore_callback_states_from_checkpoint=True",
                "a type or function as where=",
                "the Trainer would make this callback anew without it; use a pattern of names, or "
                "leave the flag out: DelayedAttention is restored without it",
            )
        refuse_half_written(Path(args.output_dir or "."))
        if (model := others.get("model")) is not None:
            self._delay.check(model)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        model, name = others["model"], type(self).__name__
        self._check(args, state)
        known = state.stateful_callbacks.get(name)
        saved = known["attributes"].get("saved") if known and state.global_step else None
        self._delay.begin(model, state.max_steps, state.global_step, saved)
        state.stateful_callbacks[name] = self.state()
        if state.global_step:
            restore_renamed(model, Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._evaluated = set()
        if self._delay.watches_loss:
            ranks = args.world_size if args.average_tokens_across_devices else 1
            self._loss = StepLoss(model, args.device, ranks)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Refuse a metric that no evaluation gave. Each evaluation set has a call of its own."""
        metric, evaluated = self._delay.metric, self._evaluated
        if metric is not None and evaluated and evaluated.isdisjoint(_names(metric)):
            names = ", ".join(sorted(evaluated))
            raise SpecError(f"metric={metric}: the evaluation does not give it; it gives {names}")
        evaluated.clear()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        loss = math.nan if self._loss is None else self._loss.take()
        self._after(state, switches=self._delay.step(loss))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._delay.metric is None or not self._delay.active:
            return
        metrics: dict[str, Any] = others.get("metrics") or {}
        self._evaluated |= metrics.keys()
        values = [metrics[name] for name in _names(self._delay.metric) if name in metrics]
        if values:
            self._after(state, switches=self._delay.evaluate(float(values[0])))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Take everything off the model. One that is still in phase 1 keeps its mark."""
        if self.switched is None:
            log.warning(
                "training has ended in phase 1: attention was never let in and is not trained; "
                "outlast.hf.hold_back(model) keeps it out of an evaluation"
            )
        elif args.load_best_model_at_end and 0 < (state.best_global_step or 0) <= self.switched:
            log.warning(
                "the best model, from step %d, was loaded: it is from phase 1 (the switch was at "
                "step %d), and its attention is not trained",
                state.best_global_step,
                self.switched,
            )
        self._stop_loss()
        self._delay.end()

    def _check(self, args: TrainingArguments, state: TrainerState) -> None:
        other = getattr(state, CALLBACK, None)  # not a field: it is not written to a checkpoint
        if other is not None and other is not self:
            raise OutlastError("the Trainer has two DelayedAttention callbacks; give it one")
        setattr(state, CALLBACK, self)
        if args.n_gpu > 1:
            raise OutlastError(
                f"DelayedAttention does not work with nn.DataParallel ({args.n_gpu} GPUs in one "
                "process); start one process for each GPU: torchrun --nproc-per-node ..."
            )
        if self._delay.metric is not None and args.eval_strategy == "no":
            raise SpecError(
                f"metric={self._delay.metric}: there is no evaluation while training; set "
                "eval_strategy to 'steps' or 'epoch'"
            )

    def _after(self, state: TrainerState, switches: bool) -> None:
        if switches:
            log.info("attention is let in after step %d", state.global_step)
            self._stop_loss()

    def _stop_loss(self) -> None:
        if self._loss is not None:
            self._loss.remove()
            self._loss = None


class StepLoss:
    """The loss of one optimiser step: the sum over its batches, kept on the device.

    The Trainer shows callbacks no loss but the logged one, whose mean begins anew on resume. So
    this is a hook on the model. Its value is that of a log after each step.

    Args:
        ranks: the number of ranks whose tokens the Trainer counts together.
    """

    def __init__(self, model: nn.Module, device: torch.device, ranks: int) -> None:
        self._ranks = ranks
        #: sum of losses, number of batches, and how many of them are means on their own
        self._sums = torch.zeros(3, device=device)
        self._hook = model.register_forward_hook(self._add, with_kwargs=True)

    def _add(self, model: nn.Module, args: Any, inputs: dict[str, Any], out: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        loss = out.get("loss") if isinstance(out, dict) else out[0]
        if not isinstance(loss, Tensor) or loss.dim():
            raise OutlastError(
                "the model returned no loss, so a trigger on it cannot be used (label smoothing "
                "and compute_loss_func take the loss out of the model); use a step, a share or a "
                "metric as the switch"
            )
        is_mean = inputs.get("num_items_in_batch") is None
        counts = torch.tensor([1.0, float(is_mean)], device=self._sums.device)
        self._sums.add_(torch.cat([loss.detach().float().reshape(1), counts]))

    def take(self) -> float:
        """The loss since the last call, on this rank."""
        total, batches, means = self._sums.tolist()
        self._sums.zero_()
        if not batches:
            raise OutlastError("the Trainer made a step without a call of its model")
        return total / means if means else total * self._ranks

    def remove(self) -> None:
        self._hook.remove()


def hold_back(model: nn.Module) -> Delay:
    """Put a model that was saved in phase 1 back into phase 1, for example to evaluate it.

    ``config.json`` of such a model says what was held back. The returned handle has `remove`.
    """
    mark = getattr(getattr(model, "config", None), FIELD, None)
    if not isinstance(mark, dict):
        raise SpecError(
            f"{type(model).__name__}: its config has no field {FIELD}, so attention was on when it "
            "was saved"
        )
    try:
        names, mode, ramp = set(mark["modules"]), mark["mode"], mark["ramp"]
        saved = {"steps": mark["steps"], "state": mark["state"]}
    except (KeyError, TypeError):
        raise SpecError(f"config.{FIELD}={mark}: expected what outlast.delay wrote") from None
    handle = delay(model, lambda name, _: name in names, mode=mode, ramp=ramp, switch=FOREVER)
    handle.load_state_dict(saved)
    return handle


def _names(metric: str) -> tuple[str, str]:
    """A metric as the user and as the Trainer may call it."""
    return metric, f"eval_{metric}"


def _as_json(argument: Any) -> Any:
    """An argument as `trainer_state.json` holds it."""
    if isinstance(argument, Spec):
        return str(argument)
    if isinstance(argument, np.generic):
        return argument.item()
    return argument if isinstance(argument, int | float) or _is_json(argument) else None


def _is_json(where: object) -> bool:
    return (
        where is None
        or isinstance(where, str)
        or (isinstance(where, list | tuple) and all(isinstance(choice, str) for choice in where))
    )
