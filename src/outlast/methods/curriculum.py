"""`curriculum`: short sequences first.

``by=steps`` lengthens evenly until the share `until` of training; ``by=loss`` adds `grow` to the
longest length whenever the smoothed loss of every trained part is under `level`.
"""

from __future__ import annotations

from typing import Literal

from outlast.errors import bad_value, require
from outlast.methods.base import Control, Event, Losses, Method, MethodState, Setup
from outlast.methods.triggers import smooth
from outlast.registry import methods


@methods.register("curriculum")
class Curriculum(Method):
    """Lengths grow during training, by steps or by loss.

    Args:
        from: The longest length at the start.
        by: What lengthens the sequences: the steps, or a low loss.
        until: The share of training at which the full length is reached, with `by=steps`.
        level: The loss under which the length grows, with `by=loss`.
        grow: How much is added to the length each time, with `by=loss`.
    """

    def __init__(
        self,
        from_: int = 4,
        by: Literal["steps", "loss"] = "steps",
        until: float = 0.5,
        level: float = 0.1,
        grow: int = 1,
    ) -> None:
        require(from_ >= 1, "from", from_, "a length >= 1")
        require(0 < until <= 1, "until", until, "a share of training from 0 to 1")
        require(level > 0, "level", level, "a loss > 0")
        require(grow >= 1, "grow", grow, "a whole number >= 1")
        self.first, self.by, self.until, self.level, self.grow = from_, by, until, level, grow

    def begin(self, setup: Setup) -> MethodState:
        shortest, longest = setup.lengths
        if not shortest <= self.first <= longest:
            raise bad_value("from", self.first, f"a length from {shortest} to {longest}")
        self.longest, self.steps = longest, setup.steps
        return {"length": self.first, "loss": {}}

    def control(self, step: int, state: MethodState, control: Control) -> None:
        control.lengths = (control.lengths[0], state["length"])

    def observe(self, step: int, losses: Losses, state: MethodState) -> list[Event]:
        before = state["length"]
        if self.by == "steps":
            done = min(1.0, step / (self.until * self.steps))
            state["length"] = self.first + round(done * (self.longest - self.first))
        else:
            smoothed = state["loss"]
            for part, values in losses.items():
                smoothed[part] = smooth(smoothed.get(part), values)
            if max(smoothed.values()) < self.level:
                state.update(length=min(self.longest, before + self.grow), loss={})
        return [Event("length", {"length": state["length"]})] if state["length"] != before else []
