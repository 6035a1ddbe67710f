"""`temperature(length)`: the softmax as trained up to the training length, sharper beyond it.

The query at position t (counted from 1) has its scores multiplied by max(1, log t / log length):
what keeps an even spread of scores as concentrated as at the training length (the log-n rule of
Chiang & Cholak, 2202.12172, applied past the training length alone; that it is applied there
alone is our choice). `length` is counted in tokens. Nothing is learned, so a model trained with
`softmax` on no more than `length` tokens has the same weights.

Path: the factor goes into the queries, so torch's fused attention.
"""

from __future__ import annotations

import math

from torch import Tensor

from outlast.errors import require
from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("temperature")
class Temperature(Weights):
    """Softmax that is sharpened by log n past the training length alone.

    Args:
        length: The training length in tokens; scores are sharpened past it.
    """

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__(width, heads)
        require(length >= 2, "length", length, "a number of tokens >= 2")
        self.length = length

    def sharpen(self, q: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        factor = (positions + 1).float().log() / math.log(self.length)
        return q * factor.clamp_min(1)[:, None].to(q.dtype)
