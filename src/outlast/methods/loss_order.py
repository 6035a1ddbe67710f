"""`loss_order`: the control for `dat`. The losses come in DAT's order; attention is always on.

State-first DAT changes two things at once: attention is absent in phase 1, and so is the recall
loss. This changes only the second. What DAT has over it is owed to the delay of attention; what
it shares with DAT is owed to the order of the losses. (Our own control; not in the paper.)
"""

from __future__ import annotations

from outlast.methods.phases import FirstPhase, Otherwise, Phased, Switch
from outlast.registry import methods
from outlast.specs import Spec


@methods.register("loss_order")
class LossOrder(Phased):
    """The losses in DAT's order with attention always on: the control for DAT."""

    def __init__(
        self,
        switch: Switch = Spec("below", (0.01,)),
        phase1: FirstPhase = "state",
        watch: str | None = None,
        latest: int | float | None = None,
        otherwise: Otherwise = "switch",
        rate: float = 1.0,
    ) -> None:
        super().__init__(switch, phase1, watch, latest, otherwise, rate)
