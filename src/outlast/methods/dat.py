"""`dat`: Delayed Attention Training (Phan, Ebrahimi, Haresh, Memisevic, arXiv 2510.00258).

Hybrids of recurrence and attention trained together on a task that needs state tracking and
recall learn shortcuts through attention and fail past their training length. DAT keeps attention
out of the first phase of training.

What "delayed" means is not public, so each reading is a mode (all of them our re-design):

========  ===========================================================================
skip      the attention branch adds nothing in phase 1, and costs nothing
freeze    attention is active from the start, its weights fixed until the switch
ramp      as skip; after the switch the gate opens linearly over `ramp` steps
detach    attention is active and learns, but sends no gradient upstream in phase 1
========  ===========================================================================

``phase1=state`` (state-first: the recall loss is off too) is our default, because literal DAT
(``phase1=full``) converges on few seeds; ``phase1=weights(recall=0.1)`` sets any weights.
See docs/reproduce-dat.md for what each does.

The other arguments: `switch` is when attention joins: a step, a share of training, ``below(level)``
or ``plateau(patience, tolerance)`` on the smoothed loss of the part `watch`. ``converged`` looks at
that loss on held-out sequences of the training length and of twice that length, and needs no level
(ours). All are checked once a block of steps. A switch at a step or share is recorded as scheduled,
not as converged. A seed that has not switched by the step `latest` does what `otherwise` says:
``switch`` and be reported, ``wait``, or ``retry`` from fresh weights. By default `latest` is 0.6 of
training, 0.3 with ``retry``, and none if the switch is a step or share. From the switch on, `rate`
is a factor on every learning rate, and `recurrent` another one on the recurrent pathway (0 freezes
it). Over `rewarm` steps the rate of attention rises to its own.

A model without attention is refused, and so is one without recurrence in the modes skip and ramp:
there no token would see another one in phase 1.
"""

from __future__ import annotations

from typing import Literal

from outlast.errors import incompatible, require
from outlast.methods.base import Control, MethodState, Setup
from outlast.methods.phases import FirstPhase, Otherwise, Phased, Switch
from outlast.registry import methods
from outlast.specs import Spec


@methods.register("dat")
class DelayedAttention(Phased):
    """Delayed attention training: attention joins when recurrence has learned its part.

    Args:
        mode: What attention does in phase 1: see above.
        rewarm: Steps over which the rate of attention rises after the switch.
        ramp: Steps over which the gate opens, with `mode=ramp`.
        recurrent: A factor on the rate of the recurrent pathway after the switch.
    """

    paper = "arXiv 2510.00258"

    def __init__(
        self,
        mode: Literal["skip", "freeze", "ramp", "detach"] = "skip",
        switch: Switch = Spec("below", (0.01,)),
        phase1: FirstPhase = "state",
        watch: str | None = None,
        latest: int | float | None = None,
        otherwise: Otherwise = "switch",
        rate: float = 1.0,
        rewarm: int = 200,
        ramp: int = 500,
        recurrent: float = 1.0,
    ) -> None:
        super().__init__(switch, phase1, watch, latest, otherwise, rate)
        for name, value in (("rewarm", rewarm), ("ramp", ramp)):
            require(value >= 0, name, value, "a number of steps >= 0")
        require(recurrent >= 0, "recurrent", recurrent, "a factor >= 0 (0 freezes)")
        self.mode, self.rewarm, self.ramp, self.recurrent = mode, rewarm, ramp, recurrent

    def check(self, setup: Setup) -> None:
        super().check(setup)
        model = f"model={setup.model}"
        if "attention" not in setup.pathways:
            remedy = "add attention, or use loss_order, which orders the losses alone"
            raise incompatible("dat", model, f"it has no attention to delay; {remedy}")
        if "recurrent" in setup.pathways:
            return
        if self.mode in ("skip", "ramp"):
            reason = "without attention no token sees another one in phase 1"
            remedy = "add a recurrent mixer, or use mode=freeze or mode=detach"
            raise incompatible(f"dat(mode={self.mode})", model, f"{reason}; {remedy}")
        if self.recurrent != 1:
            reason = "it has no recurrent mixer whose rate could be changed"
            raise incompatible(f"dat(recurrent={self.recurrent:g})", model, reason)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        super().control(step, state, control)
        if state["switched"] is None:
            self._hold_back(control)
            return
        since = step - state["switched"] + 1
        if self.mode == "ramp":
            control.gate["attention"] = min(1.0, since / max(1, self.ramp))
        if self.mode != "detach":
            control.rate["attention"] *= min(1.0, since / max(1, self.rewarm))
        control.rate["recurrent"] *= self.recurrent

    def _hold_back(self, control: Control) -> None:
        match self.mode:
            case "skip" | "ramp":
                control.gate["attention"] = 0.0
            case "freeze":
                control.rate["attention"] = 0.0
            case "detach":
                control.upstream_grad["attention"] = 0.0
