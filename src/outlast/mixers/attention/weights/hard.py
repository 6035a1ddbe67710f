"""`hard`: all weight on the key with the highest score, and the gradient of a softmax.

The weights are the limit of softmax(c s) for large c: 1 for the highest score, 0 for all others;
scores that tie share the weight equally. That has no gradient, so the backward pass takes the
softmax's (straight through; Bengio et al., 1308.3432, for binary units). To use it for attention so
is our choice.

Path: a block of queries at a time.
"""

from __future__ import annotations

from torch import Tensor

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("hard")
class Hard(Weights):
    """All weight on the highest score; learns by the gradient of a softmax."""

    jumps = True

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        soft, fixed = scores.softmax(-1), scores.detach()
        highest = (fixed == fixed.amax(-1, keepdim=True)).to(soft.dtype)
        weights = highest / highest.sum(-1, keepdim=True)
        return weights + (soft - soft.detach()), carry
