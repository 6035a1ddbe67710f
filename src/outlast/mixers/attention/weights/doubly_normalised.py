"""`doubly_normalised`: each key first shares itself out among queries, then queries normalise.

Attention that does not explain away (Ding et al., 2009.14308): exp(s_ij) is divided by the sum
over queries i, then by the sum over keys j, so that no key can be ignored by all queries. The
causal form is ours: a query knows no later ones, so key j is divided by the running sum over the
queries j..i,

    d_ij = exp(s_ij) / sum_{l=j..i} exp(s_lj),    w_ij = d_ij / sum_{j<=i} d_ij.

The log of the running sums (batch, heads, keys) is the carry.

Path: a block of queries at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings

#: the log of nothing: finite, because the gradient of -inf is not
_NOTHING = -1e9


@weightings.register("doubly_normalised")
class DoublyNormalised(Weights):
    """Normalised over the queries so far, then over keys."""

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        later = scores == float("-inf")
        if carry is None:
            start = torch.full_like(scores[..., 0, :], _NOTHING)
        else:
            start = F.pad(
                carry.to(scores.dtype), (0, scores.shape[-1] - carry.shape[-1]), value=_NOTHING
            )
        rows = torch.cat([start[..., None, :], scores.masked_fill(later, _NOTHING)], -2)
        sums = rows.logcumsumexp(-2)[..., 1:, :]
        shares = (scores.masked_fill(later, 0) - sums).masked_fill(later, float("-inf"))
        return shares.softmax(-1), sums[..., -1, :]
