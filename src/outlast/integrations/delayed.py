"""`outlast.delay` inside the loop of another trainer.

A callback makes a `TrainerDelay` from its arguments and calls it at four moments::

    begin(model, ...)    training begins or is resumed; the model is wrapped already
    step(loss)           after each optimiser step
    evaluate(values)     after an evaluation
    end()                training ends

`state` is plain JSON. It goes into the checkpoints of the trainer.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from torch import nn

from outlast.arguments import build_from, shown
from outlast.errors import OutlastError, bad_value, require
from outlast.methods.delay import Delay, delay
from outlast.methods.delay.arguments import FOREVER, read_step, read_switch
from outlast.methods.delay.distributed import mean_over_ranks
from outlast.methods.delay.selection import Where
from outlast.methods.triggers import Trigger, make_trigger
from outlast.specs import Spec, parse_value

log = logging.getLogger(__name__)

#: what a metric may be compared with
METRIC_SWITCH = '"below(level)", "above(level)" or "plateau(patience=evaluations)"'


class Above(Trigger):
    """Fires when a metric is over `level`, for metrics that rise, such as accuracy."""

    def __init__(self, level: float) -> None:
        self.level = level

    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool:
        return loss > self.level


class TrainerDelay:
    """Delayed attention whose loop belongs to a trainer. Its arguments are those of `delay`.

    Args:
        metric: the metric of an evaluation that `switch` watches, in place of the training loss.
            It is not smoothed. The patience of a plateau counts evaluations.
    """

    def __init__(
        self,
        where: Where | None,
        mode: str,
        switch: str | int | float | Spec,
        latest: int | float | None,
        ramp: int,
        metric: str | None,
    ) -> None:
        if metric is not None and (not isinstance(metric, str) or not metric):
            raise bad_value("metric", shown(metric), "the name of an evaluation metric, or None")
        self.where, self.mode, self.switch = where, mode, switch
        self.latest, self.ramp, self.metric = latest, ramp, metric
        self._trigger = None if metric is None else _metric_trigger(switch)
        self.active = False
        #: the names of the sublayers that are delayed
        self.modules: list[str] = []
        self._handle: Delay | None = None
        self._evaluations, self._trigger_state = 0, dict[str, Any]()

    @property
    def switched(self) -> int | None:
        """The step at which attention was let in, or None. It stays known after training."""
        return None if self._handle is None else self._handle.switched

    @property
    def is_on(self) -> bool:
        """Whether attention takes part as in the plain model, the ramp included."""
        if self._handle is None or self.switched is None:
            return False
        since = self._handle.state_dict()["steps"] - self.switched + 1
        return self.mode != "ramp" or since >= self.ramp

    @property
    def watches_loss(self) -> bool:
        """Whether the training loss still decides about the switch."""
        by_loss = self.metric is None and isinstance(self.switch, str | Spec)
        return by_loss and self.switched is None

    def begin(self, model: nn.Module, steps: int | None, done: int, saved: object) -> None:
        """Hold attention back, or continue from a checkpoint made after `done` steps.

        `steps` is the length of training, for a switch that is a share of it.
        """
        self.end()
        self._evaluations, self._trigger_state = 0, {}
        if saved is None and done:
            raise OutlastError(
                f"this checkpoint (step {done}) was written without DelayedAttention, so its "
                "attention is trained already; begin a new training to delay attention, or resume "
                "without the callback"
            )
        handle = self._delay(model, steps)
        if self.metric is None and steps is not None and saved is None:
            self._check_reached(steps)
        if saved is not None:
            try:
                self._load(handle, saved)
            except BaseException:
                handle.remove()
                raise
        self._handle, self.modules, self.active = handle, handle.modules, True

    def _check_reached(self, steps: int) -> None:
        """Warn if training ends before the switch."""
        switch = read_switch(self.switch, steps)
        latest = FOREVER if self.latest is None else read_step("latest", self.latest, steps)
        if isinstance(switch, int) and min(switch, latest) >= steps:
            log.warning(
                "switch=%s: training ends at step %d, so attention will never be let in",
                self.switch, steps,
            )  # fmt: skip

    def check(self, model: nn.Module) -> None:
        """Refuse arguments that do not fit the model. The model stays as it is."""
        self._delay(model, FOREVER).remove()

    def step(self, loss: float = math.nan) -> bool:
        """Count an optimiser step. True at the step that switches. All ranks must call it."""
        return self._handle is not None and self.active and self._handle.step(loss)

    def evaluate(self, value: float) -> bool:
        """Show the watched metric of one evaluation. True if it switches. All ranks must call it.

        A value that is not finite counts for nothing.
        """
        if self._handle is None or self._trigger is None or self.switched is not None:
            return False
        value = mean_over_ranks(value)
        self._evaluations += 1
        if not math.isfinite(value):
            return False
        fires = self._trigger.fires(self._evaluations, value, self._trigger_state)
        if fires:
            saved = self._handle.state_dict()
            saved["state"]["switched"] = saved["steps"]
            self._handle.load_state_dict(saved)
        return fires

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must hold, as JSON."""
        return {
            "delay": None if self._handle is None else self._handle.state_dict(),
            "evaluations": self._evaluations,
            "trigger": dict(self._trigger_state),
        }

    def end(self) -> None:
        """Restore the model. State and mark stay, because a trainer may save once more."""
        if self._handle is not None:
            self._handle.remove(keep_mark=True)
        self.active = False

    def _delay(self, model: nn.Module, steps: int | None) -> Delay:
        return delay(
            model,
            self.where,
            mode=self.mode,  # type: ignore[arg-type]
            switch=self.switch if self.metric is None else FOREVER,
            steps=steps,
            latest=self.latest,
            ramp=self.ramp,
        )

    def _load(self, handle: Delay, saved: object) -> None:
        if not isinstance(saved, dict) or saved.keys() != self.state().keys():
            expected = f"a state of {', '.join(self.state())}"
            raise bad_value("state of DelayedAttention in the checkpoint", shown(saved), expected)
        handle.load_state_dict(saved["delay"])
        self._evaluations, self._trigger_state = saved["evaluations"], dict(saved["trigger"])


def _metric_trigger(switch: object) -> Trigger:
    spec = parse_value(switch) if isinstance(switch, str) else switch
    spec = Spec(spec) if isinstance(spec, str) else spec
    if not isinstance(spec, Spec):
        raise bad_value("switch", shown(switch), f"{METRIC_SWITCH}, because metric= is given")
    if spec.name == "above":
        require(bool(spec.args or spec.kwargs), "switch", spec, "above(level)")
        trigger: Trigger = build_from(spec, Above, {"level": float}, "switch")
        return trigger
    if spec.name == "plateau" and not (spec.args or spec.kwargs):
        raise bad_value("switch", spec, "plateau(patience=...), in evaluations of metric=")
    named = make_trigger(spec, 1)
    require(not named.held_out, "switch", spec, METRIC_SWITCH)
    return named
