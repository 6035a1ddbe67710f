"""`inline`: InLine attention, weights linear in the scores (Han et al., 2412.06590).

With n keys so far, w_ij = (s_ij - mean_l s_il + 1) / n: they add up to 1, may be negative, and
different queries have different weights, which ordinary linear attention does not ensure. The
paper has w_ij = s_ij - mean + 1/N for a fixed number N of tokens; the mean over the keys so far
and the 1/n on the scores, without which the weights of a long sequence grow with it, are ours,
and φ is the identity. The paper's short convolution beside it is left out.

Path: a block of queries at a time (running sums would do without position; not built).
"""

from __future__ import annotations

from torch import Tensor

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("inline")
class Inline(Weights):
    """Weights linear in the scores that add up to 1."""

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        later = scores == float("-inf")
        count = (~later).sum(-1, keepdim=True)
        known = scores.masked_fill(later, 0)
        mean = known.sum(-1, keepdim=True) / count
        return ((known - mean + 1) / count).masked_fill(later, 0), carry
