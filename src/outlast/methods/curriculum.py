"""`curriculum`: short sequences first.

``by=steps`` lengthens evenly until the share `until` of training. ``by=loss`` adds `grow` to the
longest length whenever the smoothed loss of every trained part is under `level`. ``by=plateau``
needs no level: it adds `grow` when every such loss is below half of where training began, and has
stopped improving at the present length for `patience` steps (ours). The loss is that of all lengths
up to the present one. Each seed grows on its own.
"""

from __future__ import annotations

from typing import Literal

from outlast.errors import bad_value, require
from outlast.methods.base import Control, Event, Losses, Method, MethodState, Setup
from outlast.methods.triggers import Plateau, smooth
from outlast.registry import methods

#: what lengthens the sequences, by the arguments that are for it alone
USED_BY = {
    "until": ("steps",),
    "level": ("loss",),
    "grow": ("loss", "plateau"),
    "patience": ("plateau",),
}


@methods.register("curriculum")
class Curriculum(Method):
    """Lengths grow during training, by steps, by loss, or when the loss has converged.

    Args:
        from: The longest length at the start.
        by: What lengthens the sequences: the steps, a low loss, or one that no longer improves.
        until: The share of training at which the full length is reached, with `by=steps`.
        level: The loss under which the length grows, with `by=loss`.
        grow: How much is added to the length each time, with `by=loss` and `by=plateau`.
        patience: The steps without progress after which the length grows, with `by=plateau`.
    """

    def __init__(
        self,
        from_: int = 4,
        by: Literal["steps", "loss", "plateau"] = "steps",
        until: float = 0.5,
        level: float = 0.1,
        grow: int = 1,
        patience: int = 200,
    ) -> None:
        require(from_ >= 1, "from", from_, "a length >= 1")
        require(0 < until <= 1, "until", until, "a share of training > 0 and up to 1")
        require(level > 0, "level", level, "a loss > 0")
        require(grow >= 1, "grow", grow, "a whole number >= 1")
        self.first, self.by, self.until, self.level, self.grow = from_, by, until, level, grow
        self.plateau = Plateau(patience)

    def check(self, setup: Setup) -> None:
        for name, value in self.spec.kwargs:  # those that differ from the default
            if self.by not in (uses := USED_BY.get(name, (self.by,))):
                right = " or ".join(f"by={use}" for use in uses)
                accepted = f"nothing with by={self.by}; give it with {right} alone"
                raise bad_value(name, value, accepted)

    def begin(self, setup: Setup) -> MethodState:
        shortest, longest = setup.lengths
        if not shortest <= self.first <= longest:
            raise bad_value("from", self.first, f"a length from {shortest} to {longest}")
        self.longest, self.steps = longest, setup.steps
        state: MethodState = {"length": self.first, "loss": {}}
        return state | {"plateau": {}} if self.by == "plateau" else state

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
            if self._is_learned(step, losses, state):
                state.update(length=min(self.longest, before + self.grow), loss={})
        return [Event("length", {"length": state["length"]})] if state["length"] != before else []

    def _is_learned(self, step: int, losses: Losses, state: MethodState) -> bool:
        """Whether the present length is learned; what is known of its plateau is then forgotten."""
        smoothed = state["loss"]
        if self.by == "loss":
            return bool(max(smoothed.values()) < self.level)
        parts = state["plateau"]
        still = [self.plateau.fires(step, smoothed[p], parts.setdefault(p, {})) for p in losses]
        if not all(still):
            return False
        state["plateau"] = {part: {"first": known["first"]} for part, known in parts.items()}
        return True
