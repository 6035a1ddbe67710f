"""Triggers: when a phase ends. Each is a pure update of a small JSON state.

::

    switch=1500            at that step
    switch=0.3             after that share of training
    switch=below(0.01)     when the smoothed loss of the watched part falls under a level
    switch=plateau         when it has fallen and then stopped improving
    switch=converged       when it has done so on held-out sequences, at twice the length too
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from outlast.arguments import build_from
from outlast.errors import SpecError, bad_value, require
from outlast.methods.base import WORST_LOSS
from outlast.registry import suggest
from outlast.specs import Spec

#: how much of a new loss enters the smoothed one at each step
SMOOTHING = 0.02
#: a share of training after which steps are left
BEFORE_THE_END = "a share of training >= 0 and < 1"


def smooth(value: float | None, losses: Sequence[float]) -> float:
    """Update the exponential average of a loss with new values."""
    for loss in losses:
        value = loss if value is None else value + SMOOTHING * (loss - value)
    if value is None:
        raise ValueError("nothing to smooth")
    return value


class Trigger(ABC):
    """Decides after each block whether the phase is over."""

    #: whether the step is fixed from the start, so that the loss says nothing about it
    scheduled: ClassVar[bool] = False
    #: multiples of the training length at which it looks at held-out losses
    held_out: ClassVar[tuple[float, ...]] = ()
    #: the loss of a guess at the watched part, if it is known
    guess: float = math.inf

    @abstractmethod
    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool: ...

    def look(self, step: int, losses: Mapping[float, float], state: dict[str, Any]) -> None:
        """Take in held-out losses after `step` steps, by multiple of the training length."""
        return


class AtStep(Trigger):
    """Fires at a fixed step, whatever the loss."""

    scheduled = True

    def __init__(self, step: int) -> None:
        self.step = step

    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool:
        return step >= self.step


class Below(Trigger):
    """Fires when the smoothed loss is under `level`."""

    def __init__(self, level: float = 0.01) -> None:
        require(level > 0, "level", level, "a loss > 0")
        self.level = level

    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool:
        return loss < self.level


class Plateau(Trigger):
    """Fires when the smoothed loss, having at least halved, stops improving for `patience` steps.

    Improving means by more than the share `tolerance`. Without the first condition the plateau
    at chance level, where every run begins, would count.
    """

    def __init__(self, patience: int = 500, tolerance: float = 0.1) -> None:
        require(patience >= 1, "patience", patience, "a number of steps >= 1")
        require(0 <= tolerance < 1, "tolerance", tolerance, "a share from 0 to below 1")
        self.patience, self.tolerance = patience, tolerance

    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool:
        first = state.setdefault("first", loss)
        best = state.setdefault("best", loss)
        if loss < best * (1 - self.tolerance):
            state["best"], state["best_step"] = loss, step
        waited = step - state.setdefault("best_step", step)
        return bool(state["best"] < first / 2 and waited >= self.patience)


class Converged(Trigger):
    """Fires when the held-out loss at twice the training length has converged too.

    It needs no level of one's own choice. The band is the share `tolerance` of what the loss of the
    long sequences has fallen since the first look, where it counts as the loss of a guess at least
    and twice that at most. For `patience` steps that loss must stay within the band, and be above
    the loss of short sequences by no more than the band. A loss that is not finite begins the wait
    anew.

    It must also be far below where it began, and far below the loss of a guess: to know which
    outputs are answers at all, or the parity of an answer, is no convergence. Among many answers a
    guess between two has a small part of the loss of a guess between all, so the bound is at most
    half the loss of a guess between two. (Ours; the paper asks when to switch.)
    """

    held_out = (1.0, 2.0)
    #: the part of the loss of a guess that may be left, and of that of a guess between two answers.
    #: A sum modulo 10 whose parity alone is known has 0.7 of the loss of a guess
    LEFT: ClassVar[float] = 0.25
    LEFT_OF_TWO: ClassVar[float] = 0.5

    def __init__(self, patience: int = 300, tolerance: float = 0.01) -> None:
        require(patience >= 1, "patience", patience, "a number of steps >= 1")
        require(0 < tolerance < 1, "tolerance", tolerance, "a share between 0 and 1")
        self.patience, self.tolerance = patience, tolerance

    def look(self, step: int, losses: Mapping[float, float], state: dict[str, Any]) -> None:
        short, long = (losses[multiple] for multiple in self.held_out)
        if max(short, long) >= WORST_LOSS:  # a loss that is not finite: the wait begins anew
            state["looks"] = []
            return
        state.setdefault("first", self._start(long))
        looks = state.setdefault("looks", [])
        looks.append([step, short, long])
        while len(looks) > 1 and looks[1][0] <= step - self.patience:
            del looks[0]

    def fires(self, step: int, loss: float, state: dict[str, Any]) -> bool:
        looks = state.get("looks")
        if not looks or looks[-1][0] - looks[0][0] < self.patience:
            return False
        _, short, long = zip(*looks, strict=True)
        band = self.tolerance * (state["first"] - min(long))
        learned = max(long) < min(state["first"] / 2, self._most_left())
        excess = max(b - a for a, b in zip(short, long, strict=True))
        return bool(learned and max(long) - min(long) <= band and excess <= band)

    def _start(self, long: float) -> float:
        """Where the loss began, by the first look; from the loss of a guess to twice that.

        The first look is after a block of steps, in which much may have been learned. A model that
        is not trained is near a guess, and a larger loss would make the band wide.
        """
        return long if self.guess == math.inf else min(max(long, self.guess), 2 * self.guess)

    def _most_left(self) -> float:
        """The bound on the loss that what is guessed sets; none if nothing is known of a guess."""
        if self.guess == math.inf:
            return math.inf
        return min(self.LEFT * self.guess, self.LEFT_OF_TWO * math.log(2))


_NAMED: dict[str, tuple[Callable[..., Trigger], dict[str, type]]] = {
    "below": (Below, {"level": float}),
    "plateau": (Plateau, {"patience": int, "tolerance": float}),
    "converged": (Converged, {"patience": int, "tolerance": float}),
}


def make_trigger(switch: int | float | Spec, steps: int) -> Trigger:
    """Build the trigger of a ``switch=``."""
    if isinstance(switch, Spec):
        if switch.name not in _NAMED:
            raise SpecError(
                f"switch: there is no trigger {switch.name!r}{suggest(switch.name, _NAMED)}"
            )
        factory, fields = _NAMED[switch.name]
        trigger: Trigger = build_from(switch, factory, fields, "switch")
        return trigger
    return AtStep(as_step(switch, steps, "switch", BEFORE_THE_END))


def as_step(
    value: int | float, steps: int, field: str, share: str = "a share of training from 0 to 1"
) -> int:
    """A step, given as a whole number or as a share of training; `share` is what is accepted."""
    if value < 0 or (isinstance(value, float) and value > 1):
        raise bad_value(field, value, f"a step >= 0, or {share}")
    return round(value * steps) if isinstance(value, float) else value


def check_before_end(value: int | float, steps: int, field: str) -> None:
    """Refuse a step, or a share of training, after which no step is left."""
    if as_step(value, steps, field) >= steps:
        accepted = f"a step before {steps}, the end of training, or a share under 1"
        raise bad_value(field, value, accepted)
