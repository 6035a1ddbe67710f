"""Two phases and the switch between them: what `dat` and its control `loss_order` share.

Phase 1 trains on some parts of the task, or on all. Phase 2 trains on all. A trigger on the
smoothed loss of one part decides when to switch, for each seed on its own. A seed that has not
converged by the latest step switches and is reported, or waits, or starts again from fresh weights.

The event ``switch`` says why a seed switched. ``converged`` is true if the trigger fired, and false
if the latest step came first. A switch at a fixed step or share of training has ``reason:
schedule`` instead: nothing is known about convergence.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

from outlast.errors import bad_value, require
from outlast.methods.base import (
    Control,
    Event,
    HeldOutLosses,
    Losses,
    Method,
    MethodState,
    Setup,
)
from outlast.methods.triggers import as_step, check_before_end, make_trigger, smooth
from outlast.registry import suggest
from outlast.specs import Spec

Switch = int | float | Spec
FirstPhase = Literal["state", "full"] | dict[str, float]
Otherwise = Literal["switch", "wait", "retry"]
#: parts that a state-first phase trains on, where the task has them
STATE_PARTS = ("state", "running")
#: the latest switch where none is given, as a share of training
LATEST, RETRY_LATEST = 0.6, 0.3
#: steps over which learning rates are warmed up again after a restart
RESTART_WARMUP = 200


def has_state(parts: Collection[str]) -> bool:
    """Whether a task with these parts has a state, which a first phase can be about."""
    return not set(parts).isdisjoint(STATE_PARTS)


class Phased(Method):
    """A method with a first phase, a trigger, and a second phase.

    Args:
        switch: When phase 2 begins: a step, a share of training, `below(level)` or
            `plateau(patience, tolerance)` of a loss, or `converged(patience, tolerance)`.
        phase1: Which losses are trained in phase 1, or a weight for each part.
        watch: The part of the task whose loss decides; by default the running answer or the state.
        latest: The latest step or share of training for the switch; by default 0.6, or 0.3 with
            `otherwise=retry`.
        otherwise: What a seed does that has not switched by then: `retry` starts it from fresh
            weights.
        rate: A factor on every learning rate after the switch.
    """

    def __init__(
        self,
        switch: Switch = Spec("below", (0.01,)),
        phase1: FirstPhase = "state",
        watch: str | None = None,
        latest: int | float | None = None,
        otherwise: Otherwise = "switch",
        rate: float = 1.0,
    ) -> None:
        require(rate > 0, "rate", rate, "a factor > 0")
        self.switch, self.phase1, self.watch = switch, phase1, watch
        self.latest, self.otherwise, self.rate = latest, otherwise, rate
        self.restarts = otherwise == "retry"
        make_trigger(switch, 1)  # a bad trigger is an error now, not when training begins
        if latest is not None:
            as_step(latest, 1, "latest")

    def begin(self, setup: Setup) -> MethodState:
        self.trigger = make_trigger(self.switch, setup.steps)
        self.deadline = as_step(self._latest(), setup.steps, "latest")
        self.steps = setup.steps
        self.watched = self.watch or _default_watch(setup.parts)
        self.first_weights = self._first_weights(setup.parts)
        if self.otherwise == "retry" and 2 * self.deadline >= setup.steps:
            accepted = "less than half of training with otherwise=retry, to leave time for a retry"
            place = f"it is step {self.deadline} of {setup.steps}"
            raise bad_value("latest", self._latest(), f"{accepted}; {place}")
        if self.watched not in setup.parts:
            raise bad_value("watch", self.watched, f"a part of the task: {' | '.join(setup.parts)}")
        if self.first_weights[self.watched] == 0:
            raise bad_value("watch", self.watched, "a part that phase 1 trains on")
        self.trigger.guess = setup.guesses.get(self.watched, math.inf)
        return {"switched": None, "since": 0, "attempt": 0, "loss": None, "trigger": {}}

    def check(self, setup: Setup) -> None:
        trigger = make_trigger(self.switch, setup.steps)
        if not isinstance(self.switch, Spec):
            check_before_end(self.switch, setup.steps, "switch")
        far = max(trigger.held_out, default=0)
        for name, most, trained in (
            ("task", setup.longest, setup.lengths[1]),
            ("model", setup.ceiling, setup.tokens),
        ):
            if most is not None and far * trained > most:
                unit = "length" if name == "task" else "tokens"
                accepted = f"another trigger: at {far:g} x the training length the {name} is past"
                raise bad_value("switch", self.switch, f"{accepted} its limit, {unit} {most}")

    def _latest(self) -> int | float:
        """The latest switch. A scheduled one has no default: there is nothing to be late for."""
        if self.latest is not None:
            return self.latest
        if self.otherwise == "retry":
            return RETRY_LATEST
        return 1.0 if self.trigger.scheduled else LATEST

    def _first_weights(self, parts: tuple[str, ...]) -> dict[str, float]:
        if isinstance(self.phase1, dict):
            for part, weight in self.phase1.items():
                require(part in parts, "phase1", part, f"parts of the task{suggest(part, parts)}")
                require(weight >= 0, f"phase1.{part}", weight, "a weight >= 0")
            return {p: self.phase1.get(p, 1.0) for p in parts}
        if self.phase1 == "full" or not has_state(parts):
            return dict.fromkeys(parts, 1.0)
        return {p: float(p in STATE_PARTS) for p in parts}

    def control(self, step: int, state: MethodState, control: Control) -> None:
        factor = self.rate
        if state["switched"] is None:
            control.loss_weights.update(self.first_weights)
            factor = 1.0
        if state["attempt"]:
            factor *= min(1.0, (step - state["since"] + 1) / RESTART_WARMUP)
        for pathway in control.rate:
            control.rate[pathway] *= factor

    def observe(self, step: int, losses: Losses, state: MethodState) -> list[Event]:
        if state["switched"] is not None or self.watched not in losses:
            return []  # switched already, or another method does not train the watched part
        loss = state["loss"] = smooth(state["loss"], losses[self.watched])
        fires = self.trigger.fires(step, loss, state["trigger"])
        if step >= self.steps:  # too late to switch: no steps are left for the second phase
            name = "switch" if fires else "not converged"
            scheduled = self.trigger.scheduled
            return [] if scheduled else [Event(name, {"converged": fires, "loss": loss})]
        if fires:
            return self._switch(step, loss, state, converged=True)
        if step - state["since"] >= self.deadline:
            return self._overdue(step, loss, state)
        return []

    def held_out(self, state: MethodState) -> tuple[float, ...]:
        return self.trigger.held_out if state["switched"] is None else ()

    def observe_held_out(self, step: int, losses: HeldOutLosses, state: MethodState) -> None:
        watched = {multiple: parts[self.watched] for multiple, parts in losses.items()}
        self.trigger.look(step, watched, state["trigger"])

    def _overdue(self, step: int, loss: float, state: MethodState) -> list[Event]:
        if self.otherwise == "retry" and step + self.deadline < self.steps:
            state.update(since=step, attempt=state["attempt"] + 1, loss=None, trigger={})
            return [Event("restart", {"attempt": state["attempt"], "loss": loss})]
        if self.otherwise == "wait":
            return []
        return self._switch(step, loss, state, converged=False)

    def _switch(self, step: int, loss: float, state: MethodState, converged: bool) -> list[Event]:
        state["switched"] = step
        if self.trigger.scheduled:
            return [Event("switch", {"reason": "schedule", "loss": loss})]
        return [Event("switch", {"converged": converged, "loss": loss})]


def _default_watch(parts: tuple[str, ...]) -> str:
    """The running answer if it is supervised (it is the denser signal), else the state."""
    return next((p for p in ("running", "state") if p in parts), parts[0])
