"""`topk(k)`: the softmax over the k highest scores, everything else exactly 0.

As in "Transformers Learn Faster with Semantic Focus" (2506.14095), where k is small and fixed.
Scores that tie with the k-th highest are all kept (our choice: which of them came first is no
property of a set). No gradient passes through the choice.

Path: a block of queries at a time.
"""

from __future__ import annotations

from torch import Tensor

from outlast.errors import require
from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("topk")
class TopK(Weights):
    """Softmax over the k highest scores.

    Args:
        k: How many keys have a weight.
    """

    def __init__(self, width: int, heads: int, k: int = 8) -> None:
        super().__init__(width, heads)
        require(k >= 1, "k", k, "a whole number >= 1")
        self.k = k

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        least = scores.detach().topk(min(self.k, scores.shape[-1])).values[..., -1:]
        return scores.masked_fill(scores < least, float("-inf")).softmax(-1), carry
