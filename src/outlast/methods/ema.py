"""`ema(decay)`: test with an exponential average of the weights, corrected for its start.

Averaging removes the noise of single updates. That matters most on lengths the model never saw
(used so in arXiv 2510.08341).
"""

from __future__ import annotations

from outlast.errors import require
from outlast.methods.base import Method
from outlast.registry import methods


@methods.register("ema")
class Ema(Method):
    """An exponential moving average of the weights, used for every test.

    Args:
        decay: How much of the average is kept at each step.
    """

    paper = "arXiv 2510.08341"

    def __init__(self, decay: float = 0.999) -> None:
        require(0 < decay < 1, "decay", decay, "a number between 0 and 1, such as 0.999")
        self.average = decay
