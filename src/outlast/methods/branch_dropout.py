"""`branch_dropout(p)`: in training, a pathway adds nothing to some of the sequences.

At each step every sequence goes without the pathway with probability `p`: all of its sublayers add
nothing to that sequence. In a test they always add. So the rest of the model must be able to do its
part alone, for instance recurrence without attention.

It is stochastic depth (Huang et al., arXiv 1603.09382) for a whole pathway, and by sequence. Both
are ours, and so is that nothing is rescaled: a sublayer adds what it adds in a test. We know of no
paper that does this to hybrids. Which sequences are left out is a hash of seed, step and row, so a
resumed run leaves out the same ones.
"""

from __future__ import annotations

from typing import Literal

from outlast.errors import incompatible, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.registry import methods


@methods.register("branch_dropout")
class BranchDropout(Method):
    """Attention, or another pathway, adds nothing to some sequences in training.

    Args:
        p: The probability that a sequence goes without the pathway.
        pathway: Which sublayers are left out.
    """

    paper = "arXiv 1603.09382"

    def __init__(
        self, p: float = 0.1, pathway: Literal["attention", "recurrent"] = "attention"
    ) -> None:
        require(0 < p < 1, "p", p, "a probability between 0 and 1")
        self.p, self.pathway = p, pathway

    def check(self, setup: Setup) -> None:
        if self.pathway not in setup.pathways:
            reason = f"it has no sublayer on the {self.pathway} pathway to leave out"
            raise incompatible(str(self.spec), f"model={setup.model}", reason)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        control.keep[self.pathway] *= 1 - self.p
