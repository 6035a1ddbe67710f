"""`uniform`: every key so far has the same weight, whatever its score.

A control: attention that can mix values and cannot choose among them. Queries and keys have no
effect and learn nothing. In the first phase of `dat` attention is absent, so a model with these
weights has bit for bit the first phase that it has with softmax.

Path: a block of queries at a time.
"""

from __future__ import annotations

from torch import Tensor

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("uniform")
class Uniform(Weights):
    """The same weight for every key so far; scores do not matter."""

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        # times 0, so that whatever made the scores has a gradient: 0
        equal = (scores * 0).masked_fill(scores == float("-inf"), float("-inf"))
        return equal.softmax(-1), carry
