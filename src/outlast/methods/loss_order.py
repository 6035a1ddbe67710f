"""`loss_order`: the control for `dat`. The losses come in DAT's order; attention is always on.

State-first DAT changes two things at once: attention is absent in phase 1, and so is the recall
loss. This method changes only the second. A difference between the two comes from the delay of
attention. What both achieve comes from the order of the losses. (Our control; not in the paper.)
"""

from __future__ import annotations

from outlast.methods.phases import Phased
from outlast.registry import methods


@methods.register("loss_order")
class LossOrder(Phased):
    """The losses in DAT's order with attention always on: the control for DAT."""
